"""Global throughput and step latency over the steady steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from aorta.artefacts.measured import Throughput
from aorta.artefacts.range_columns import ABSENT
from aorta.artefacts.step_columns import StepColumns
from aorta.metrics.bootstrap import ratio_interval
from aorta.metrics.steady import Steady, consecutive
from aorta.units import NS_PER_MS, NS_PER_S


def throughput(steady: Steady) -> Throughput | None:
    """Samples per second of all ranks together.

    None without a steady step, where samples were not counted, or where a clock went back.

    Each rank's rate is its samples ÷ its own window. The window lasts from the start of the first step of
    each unbroken run of steady steps to the end of the last. Time lost between steps therefore counts, and
    validation does not. A record's `samples` is that rank's own, so the rates are added. `cross_check_ratio`
    compares the sum with the global batch over the median step time, which needs no addition.
    """
    if not len(steady):
        return None
    runs = consecutive(steady.numbers)
    rate = 0.0
    each = list(steady.by_rank.values())
    samples = np.array([steps.column("samples") for steps in each])
    if not counted(steady):
        return None
    for steps, own in zip(each, samples, strict=True):
        window = _window_ns(steps, runs)
        if window <= 0:
            return None  # the clock went back between steps: no rate, rather than a wrong one
        rate += int(own.sum()) / (window / NS_PER_S)
    durations = np.array([steps.duration_ns for steps in each]) / NS_PER_MS
    global_batch = int(np.median(samples.sum(axis=0)))
    step_ms = durations.mean(axis=0)
    median = float(np.median(step_ms))
    return Throughput(
        samples_per_s=rate,
        global_batch=global_batch,
        per_rank_batch=int(np.median(samples.max(axis=0))),
        step_ms_median=median,
        step_ms_p95=float(np.percentile(step_ms, 95)),
        cross_check_ratio=rate / (global_batch / (median / 1000)) if global_batch else None,
        step_ms_mean=float(step_ms.mean()),
        slowest_rank_ms_median=float(np.median(durations.max(axis=0))),
        slowest_rank_ms_p95=float(np.percentile(durations.max(axis=0), 95)),
        samples_per_s_interval=ratio_interval(samples.sum(axis=0), _spans(steady, runs) / NS_PER_S, runs),
        step_ms_interval=ratio_interval(step_ms, np.ones(len(step_ms)), runs),
    )


def counted(steady: Steady) -> bool:
    """Returns True if every rank's records say how many samples it consumed."""
    return not any((steps.column("samples") == ABSENT).any() for steps in steady.by_rank.values())


def _spans(steady: Steady, runs: Sequence[tuple[int, int]]) -> NDArray[np.float64]:
    """Returns ns from each step's start to the next one's, or to its end for the last: means over ranks."""
    starts, ends = (
        np.array([steps.column(name) for steps in steady.by_rank.values()])
        for name in ("mono_start_ns", "mono_end_ns")
    )
    until = ends.copy()
    for a, b in runs:
        until[:, a : b - 1] = starts[:, a + 1 : b]
    return np.asarray((until - starts).mean(axis=0), dtype=np.float64)


def _window_ns(steps: StepColumns, runs: Sequence[tuple[int, int]]) -> int:
    """Returns the time from the start of the first step of each run to the end of the last one, summed."""
    starts, ends = steps.column("mono_start_ns"), steps.column("mono_end_ns")
    return sum(int(ends[b - 1]) - int(starts[a]) for a, b in runs)
