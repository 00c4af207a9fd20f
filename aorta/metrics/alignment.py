"""The wall clocks of ranks on that of the lowest one, by the ends of collectives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from aorta.metrics.calls import RankTimeline
from aorta.metrics.collectives import match_timelines
from aorta.units import plural


@dataclass(frozen=True, slots=True)
class Alignment:
    """Offsets to add to each rank's wall clock."""

    shift_ns: Mapping[int, int]
    basis: str
    """In words."""
    spread_ns: int | None = None
    """After it, the median over collectives of the time between the first and the last member's end; None:
    nothing was aligned.
    """


def align(
    timelines: Mapping[int, RankTimeline], clocks: Mapping[int, str], wall_ns: Mapping[int, int]
) -> Alignment:
    """The shifts that let collectives end at the same time on all ranks; of clocks that drift, in the
    middle of the steps.

    Args:
        timelines: each rank's, on its own clock.
        clocks: rank to the name of its clock; ranks of one clock keep their places.
        wall_ns: rank to the wall-clock ns of its clock's zero.
    """
    zero = dict.fromkeys(timelines, 0)
    if len(timelines) < 2:
        return Alignment(zero, "one rank, with its own wall clock")
    matched = match_timelines(timelines, clocks)
    if isinstance(matched, str):
        return Alignment(zero, f"wall clocks as recorded: {matched}")
    reference = min(timelines)
    shift, middle = {}, {}
    for rank, timeline in timelines.items():
        step = int(timeline.starts.numbers[len(timeline.starts) // 2])
        middle[rank] = matched.timelines[rank].starts[step]
        shift[rank] = middle[rank] - timeline.starts[step] + wall_ns[reference] - wall_ns[rank]
    rates = {rank: line.rate for rank, line in matched.lines.items()}
    spread = []
    for item in matched.matched:
        # One shift a rank leaves what its clock drifted since then.
        ends = [
            end - rates.get(rank, 0.0) * (end - middle[rank])
            for rank, end in zip(item.ranks, item.end.tolist(), strict=True)
        ]
        spread.append(max(ends) - min(ends))
    basis = f"the ends of {plural(len(matched.matched), 'collective')}, on the wall clock of rank {reference}"
    return Alignment(shift, basis, int(np.median(spread)))
