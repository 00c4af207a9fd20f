"""The thresholds in force: the configuration's values, with null resolved, for records or for traces."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from aorta.config.thresholds import Thresholds

CROSS_CHECK_TOLERANCE = 0.2
"""A note is added if throughput differs from batch size ÷ step time by more than this, or the mean step from
the median step. If a larger share of the time lies between steps, the verdict is left open.
"""
CULPRIT_SHARE = 0.5
"""A rank is named with a cause if its value is at least this share of the worst rank's value."""
MIN_STEADY_STEPS = 10
"""Fewer recorded steady steps do not show how much steps vary."""
MIN_TRACED_STEPS = 3
"""Kernel traces are exact to the nanosecond and exclude the start-up of the profiler, so a few steps
suffice.
"""
TRACED_STRAGGLER_PCT = 10.0
"""Waits in kernel traces contain no scheduling noise of the host, so a smaller share is certain."""


class Policy(Struct, frozen=True):
    """Each threshold with its value; `aorta.config.thresholds` says what it means."""

    effective_gpu_utilization_pct: float
    data_wait_pct: float
    exposed_comm_pct: float
    memory_used_pct: float
    straggler_pct: float
    host_pct: float
    exchange_pct: float
    alloc_retries_per_step: float
    swap_mb_per_s: float
    compute_inefficiency_pct: float
    between_steps_pct: float
    pipeline_bubble_pct: float
    stall_pct: float
    min_steady_steps: int

    @classmethod
    def of(cls, chosen: Thresholds | None = None, *, traced: bool = False) -> Policy:
        """Returns the policy of a configuration's thresholds, of the defaults without.

        Args:
            chosen: keys that are null take their meaning from the other keys, or from `traced`.
            traced: the breakdown is of kernel traces.
        """
        rows = chosen or Thresholds()
        own: dict[str, Any] = {name: getattr(rows, name) for name in cls.__struct_fields__}
        comm = rows.exposed_comm_pct
        nulls: dict[str, Any] = {
            "straggler_pct": min(comm, TRACED_STRAGGLER_PCT) if traced else comm,
            "exchange_pct": comm,
            "min_steady_steps": MIN_TRACED_STEPS if traced else MIN_STEADY_STEPS,
        }
        return cls(**{key: nulls[key] if value is None else value for key, value in own.items()})

    def as_dict(self) -> dict[str, float]:
        """Returns the thresholds that the analysis prints with its values."""
        return {name: float(getattr(self, name)) for name in self.__struct_fields__}
