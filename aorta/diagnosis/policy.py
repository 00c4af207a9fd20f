"""The thresholds in force: the configuration's values, with null resolved, for records or for traces."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from aorta.config.thresholds import Thresholds

CROSS_CHECK_TOLERANCE = 0.2
"""Difference between throughput and batch / latency, or mean and median step, above which a note says so. If
a larger share of the time lies between steps, the verdict is left open."""
CULPRIT_SHARE = 0.5
"""A rank is named with a cause if it has this share of the worst rank's."""
MIN_STEADY_STEPS = 10
"""Fewer steady steps of records say nothing of the spread."""
MIN_TRACED_STEPS = 3
"""Kernel traces are exact to the ns and have no start-up of a profiler in them, and captures are short."""
TRACED_STRAGGLER_PCT = 10.0
"""Waits in kernel traces hold no scheduling noise of the host: a smaller share is sure."""


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
