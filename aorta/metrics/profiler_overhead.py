"""Cost of a profiler: steps inside its capture against steps of the same run outside of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from aorta.artefacts.step_columns import StepColumns
from aorta.artefacts.steps import DecodedStep
from aorta.artefacts.traced import ProfilerOverhead
from aorta.averages import fmean, median
from aorta.units import NS_PER_MS, plural

MIN_STEPS = 3
"""Fewest profiled and other steps from which a median is usable."""


def profiler_overhead(
    by_rank: Mapping[int, Sequence[DecodedStep]], captured: Callable[[int], bool]
) -> ProfilerOverhead:
    """The ratio of median step times, each step the mean over its ranks.

    Args:
        by_rank: the records of each rank.
        captured: whether a profiler recorded the step of this global number.

    Outside are steady steps only. Inside, so are steps whose phase is `profiler`, but not warm-up, validation
    and checkpoint steps, which are slower for other reasons. A step counts where every rank has it. Timing a
    step part by part costs time, too: like is compared with like, steps timed as a whole where there are
    enough of them.
    """
    sides = [_times(by_rank, captured, detailed=detailed) for detailed in (False, True)]
    enough = [pair for pair in sides if min(len(times) for times in pair) >= MIN_STEPS]
    # Where neither kind suffices, the one of which more steps were captured says what is missing.
    within, without = enough[0] if enough else max(reversed(sides), key=lambda pair: len(pair[0]))
    kind = " of their kind" if any(map(len, sides[0])) and any(map(len, sides[1])) else ""
    reason = None
    if len(within) < MIN_STEPS:
        reason = (
            f"inside the capture: {plural(len(within), 'step')} after the warm-up, but {MIN_STEPS} are needed"
        )
    elif len(without) < MIN_STEPS:
        steps = plural(len(without), "steady step")
        reason = f"outside of the capture: {steps}{kind}, but {MIN_STEPS} are needed"
    return ProfilerOverhead(
        ratio=None if reason else median(within) / median(without),
        inside_steps=len(within),
        outside_steps=len(without),
        inside_ms=median(within) if within else None,
        outside_ms=median(without) if without else None,
        reason=reason,
    )


def before_ms(by_rank: Mapping[int, StepColumns], first: int) -> float | None:
    """Median ms of the steady steps before the first captured one; None where they are too few.

    A profiler leaves costs behind in its process, so steps after a capture are no reference. Steps timed as a
    whole count where there are enough of them.
    """
    for details in ((False,), (False, True)):
        each: defaultdict[int, list[int]] = defaultdict(list)
        for steps in by_rank.values():
            chosen = steps.where(steps.phase_is("steady") & np.isin(steps.detailed, details))
            numbers = chosen.column("global_step").tolist()
            for number, duration in zip(numbers, chosen.duration_ns.tolist(), strict=True):
                if number < first:
                    each[number].append(duration)
        times = [fmean(found) / NS_PER_MS for found in each.values() if len(found) == len(by_rank)]
        if len(times) >= MIN_STEPS:
            return median(times)
    return None


def _times(
    by_rank: Mapping[int, Sequence[DecodedStep]], captured: Callable[[int], bool], *, detailed: bool
) -> tuple[list[float], list[float]]:
    """The ms of the steps inside and outside that every rank timed part by part, or as a whole."""
    inside: defaultdict[int, list[int]] = defaultdict(list)
    outside: defaultdict[int, list[int]] = defaultdict(list)
    for records in by_rank.values():
        steps = StepColumns.of(records)
        steps = steps.where(steps.detailed == detailed)
        numbers = steps.column("global_step").tolist()
        columns = (steps.duration_ns.tolist(), steps.phase_is("steady"), steps.phase_is("profiler"))
        for number, duration, steady, profiled in zip(numbers, *columns, strict=True):
            if (steady or profiled) and captured(number):
                inside[number].append(duration)
            elif steady:
                outside[number].append(duration)
    return (
        [fmean(times) / NS_PER_MS for times in inside.values() if len(times) == len(by_rank)],
        [fmean(times) / NS_PER_MS for times in outside.values() if len(times) == len(by_rank)],
    )
