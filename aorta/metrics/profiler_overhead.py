"""What a profiler costs: steps inside its capture against steps of the same run outside of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median

from aorta.artefacts.step_columns import StepColumns
from aorta.artefacts.steps import Step
from aorta.artefacts.traced import ProfilerOverhead
from aorta.units import NS_PER_MS, plural

MIN_STEPS = 3
"""Fewer on either side are no median."""


def profiler_overhead(
    by_rank: Mapping[int, Sequence[Step]], captured: Callable[[int], bool]
) -> ProfilerOverhead:
    """The ratio of median step times, each step the mean over its ranks.

    Args:
        by_rank: the records of each rank.
        captured: whether a profiler recorded the step of this global number.

    Outside are steady steps only. Inside, so are steps whose phase is `profiler`, but not warm-up, validation
    and checkpoint steps, which are slower for other reasons. A step counts where every rank has it.
    """
    inside: defaultdict[int, list[int]] = defaultdict(list)
    outside: defaultdict[int, list[int]] = defaultdict(list)
    for records in by_rank.values():
        steps = StepColumns.of(records)
        numbers = steps.column("global_step").tolist()
        columns = (steps.duration_ns.tolist(), steps.phase_is("steady"), steps.phase_is("profiler"))
        for number, duration, steady, profiled in zip(numbers, *columns, strict=True):
            if (steady or profiled) and captured(number):
                inside[number].append(duration)
            elif steady:
                outside[number].append(duration)
    within, without = (
        [fmean(times) / NS_PER_MS for times in found.values() if len(times) == len(by_rank)]
        for found in (inside, outside)
    )
    reason = None
    if len(within) < MIN_STEPS:
        reason = (
            f"inside the capture: {plural(len(within), 'step')} after the warm-up, {MIN_STEPS} are needed"
        )
    elif len(without) < MIN_STEPS:
        reason = f"outside of the capture: {plural(len(without), 'steady step')}, {MIN_STEPS} are needed"
    return ProfilerOverhead(
        ratio=None if reason else median(within) / median(without),
        inside_steps=len(within),
        outside_steps=len(without),
        inside_ms=median(within) if within else None,
        outside_ms=median(without) if without else None,
        reason=reason,
    )
