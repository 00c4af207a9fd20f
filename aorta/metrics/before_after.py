"""Compare the step of a run after a change with the step before it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import stdev
from typing import NamedTuple

from aorta.artefacts.analysis import Analysis
from aorta.artefacts.before_after import Answer
from aorta.artefacts.measured import Interval
from aorta.metrics.student import t_quantile

MIN_TRACED = 3
"""Fewest traced steps from which an interval is calculated."""
LEAST_PCT = 0.5
"""A smaller change is not reported, however narrow the interval."""


class StepTimeRatio(NamedTuple):
    """The step after over the step before."""

    answer: Answer
    ratio: float | None
    interval: Interval | None
    reason: str


def step_ms(analysis: Analysis) -> float | None:
    """The mean step over steps and ranks: of the step records, otherwise of the breakdown."""
    if analysis.throughput is not None and analysis.throughput.step_ms_mean is not None:
        return analysis.throughput.step_ms_mean
    rows = analysis.breakdown.per_rank
    return sum(row.step_ms for row in rows) / len(rows) if rows else None


def width_of(analysis: Analysis, step_ms: Sequence[float] = ()) -> float | None:
    """Half the 95 % interval of the mean step's logarithm; None without one.

    Args:
        analysis: its interval is of resampled blocks of the steps of the records.
        step_ms: single steps of traces, where there are no records: Student's interval, of 3 or more.
    """
    run = analysis.throughput
    found = run.step_ms_interval if run is not None else None
    if found is not None and found.low > 0:
        return math.log(found.high / found.low) / 2.0
    if len(step_ms) < MIN_TRACED or min(step_ms) <= 0:
        return None
    deviation = stdev(math.log(value) for value in step_ms)
    return t_quantile(len(step_ms) - 1) * deviation / math.sqrt(len(step_ms))


def change(before: Analysis, after: Analysis, widths: tuple[float | None, float | None]) -> StepTimeRatio:
    """Faster or slower where the 95 % interval of the ratio leaves out 1 and the change is not tiny.

    Args:
        before: of the one run.
        after: of the other run.
        widths: of both, as `width_of` gives them; they are combined in quadrature.
    """
    first, second = step_ms(before), step_ms(after)
    if not first or not second:
        side = "before" if not first else "after"
        return StepTimeRatio(
            "not measurable", None, None, f"the step time {side} the change was not measured"
        )
    ratio = second / first
    if None in widths:
        reason = "a run has no interval: it needs records of 10 or more steady steps, or 3 traced steps"
        return StepTimeRatio("cannot be told apart", ratio, None, reason)
    wide = math.hypot(*(width for width in widths if width is not None))
    interval = Interval(low=ratio * math.exp(-wide), high=ratio * math.exp(wide))
    reason = "the interval covers the noise within both runs; two runs of the same program may differ by more"
    tiny = abs(ratio - 1.0) < LEAST_PCT / 100.0
    if tiny or interval.low <= 1.0 <= interval.high:
        return StepTimeRatio("cannot be told apart", ratio, interval, reason)
    return StepTimeRatio("faster" if ratio < 1.0 else "slower", ratio, interval, reason)


def differences(before: Analysis, after: Analysis) -> list[str]:
    """Names everything else that differs before and after; a value that a side does not know is left out."""
    pairs: list[tuple[str, object, object]] = [
        ("the program", before.program, after.program),
        ("the number of ranks", before.world_size, after.world_size),
        ("the number of nodes", before.nodes, after.nodes),
        ("the device", before.device, after.device),
        ("the batch size per rank", _batch(before), _batch(after)),
        ("the source of the step time", _source(before), _source(after)),
    ]
    return [
        f"{name} differs: {one} before, {other} after"
        for name, one, other in pairs
        if one is not None and other is not None and one != other
    ]


def _batch(analysis: Analysis) -> int | None:
    return analysis.throughput.per_rank_batch if analysis.throughput is not None else None


def _source(analysis: Analysis) -> str:
    return "step records" if analysis.throughput is not None else "traces"


def changed_settings(before: Analysis, after: Analysis) -> list[str]:
    """`dataloader.num_workers: 0 → 4` for each setting that both sides know."""
    first, second = before.settings or {}, after.settings or {}
    return [
        f"{key}: {first[key]} → {second[key]}"
        for key in sorted(first.keys() & second.keys())
        if first[key] != second[key]
    ]
