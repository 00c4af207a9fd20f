"""Counts kernels and their lengths per step, in the steps that were recorded kernel by kernel."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from aorta.artefacts.range_columns import ABSENT
from aorta.artefacts.step_columns import StepColumns
from aorta.averages import fmean
from aorta.metrics.steady import Steady
from aorta.units import NS_PER_MS


class Launches(Struct, frozen=True):
    """GPU steps that were recorded kernel by kernel within the training process; means per step."""

    kernels: float
    kernels_ms: float
    """Time in which a compute kernel ran."""
    windows_ms: float
    """Time of compute by the step records, from ready to done."""
    not_hidden_ms: float = 0.0
    """Communication inside of those windows beside which no compute kernel ran: the windows count it as
    hidden, the kernels show that compute stood still.
    """

    @property
    def idle_ms(self) -> float:
        """The GPU idle inside the windows: launches came too late."""
        return max(self.windows_ms - self.kernels_ms - self.not_hidden_ms, 0.0)


def recorded_launches(by_rank: Mapping[int, StepColumns], steady: Steady) -> Launches | None:
    """Returns means over the steps recorded kernel by kernel; windows are those of the steady steps.

    Recording makes launches slower and windows longer, so a recorded step is no steady one; it does not
    change how long a kernel runs.
    """
    if not steady.numbers:
        return None
    sampled = [
        item
        for rank in steady.ranks
        for number, item in by_rank[rank].executions.items()
        if number > steady.numbers[0] and item.kernels
    ]
    if not sampled:
        return None
    plain = [_not_recorded(steps) for steps in steady.by_rank.values()]
    hidden, windows = (
        np.concatenate([steps.column(name) for steps in plain]) for name in ("hidden_comm_ns", "compute_ns")
    )
    if not len(hidden):
        return None
    claimed = float(hidden.mean()) / NS_PER_MS
    truly = [item.hidden_comm_ms for item in sampled if item.hidden_comm_ms is not None]
    return Launches(
        kernels=fmean(item.kernels for item in sampled),
        kernels_ms=fmean(item.per_stream_ms.get("compute", 0.0) for item in sampled),
        windows_ms=float(windows.mean()) / NS_PER_MS,
        not_hidden_ms=max(claimed - fmean(truly), 0.0) if truly else 0.0,
    )


def _not_recorded(steps: StepColumns) -> StepColumns:
    """Returns the steps with a breakdown that were not recorded kernel by kernel."""
    recorded = np.isin(steps.column("global_step"), list(steps.executions))
    return steps.where(~recorded & (steps.column("compute_ns") != ABSENT))
