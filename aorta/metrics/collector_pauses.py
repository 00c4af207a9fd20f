"""Finds how long Python's garbage collector pauses each rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from aorta.artefacts.range_columns import RangeColumns
from aorta.artefacts.step_columns import StepColumns, ranges_of
from aorta.intervals import Intervals, length, subtract
from aorta.units import NS_PER_MS


@dataclass(frozen=True, slots=True)
class Pauses:
    """Mean ms per step that the collector took on one rank."""

    ms: float
    outside_ms: float
    """The part outside of forward, backward and optimizer."""


def collector_pauses(by_rank: Mapping[int, StepColumns]) -> dict[int, Pauses]:
    """Returns the collector's pauses by rank, which records hold as ranges of the host with the tag `gc`.

    A rank without pauses is left out. Its records may come from a program that did not watch the collector,
    so 0 would be a guess.
    """
    found = {}
    for rank, steps in by_rank.items():
        profiled = steps.where(steps.profiled)
        ranges = ranges_of([profiled])
        pauses = _of(ranges, [kind.stream == "host" and kind.tag == "gc" for kind in ranges.kinds])
        total = length(pauses)
        if total:
            compute = _of(ranges, [kind.stream == "compute" for kind in ranges.kinds])
            outside, per_ms = length(subtract(pauses, compute)), len(profiled) * NS_PER_MS
            found[rank] = Pauses(total / per_ms, outside / per_ms)
    return found


def _of(ranges: RangeColumns, wanted: list[bool]) -> Intervals:
    """Returns the ranges of some kinds, each step on a stretch of its own."""
    rows = np.flatnonzero(np.array(wanted, dtype=np.bool_)[ranges.kind]) if wanted else np.empty(0, np.int64)
    base = ranges.row * (int(ranges.end_ns.max(initial=0)) + 1)
    start = np.maximum(ranges.start_ns, 0)
    return np.stack((base + start, base + np.maximum(ranges.end_ns, start)), axis=1)[rows]
