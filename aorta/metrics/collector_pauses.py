"""How long Python's garbage collector pauses each rank."""

from __future__ import annotations

from collections.abc import Mapping

from aorta.artefacts.step_columns import StepColumns, ranges_of
from aorta.units import NS_PER_MS


def collector_pauses(by_rank: Mapping[int, StepColumns]) -> dict[int, float]:
    """Returns the mean ms per step that the collector took, by rank.

    A rank whose steps hold no pause is left out: its records may be of a program that did not watch the
    collector, so that 0 would be a guess. `ranges_of` gives the pauses as ranges with the tag `gc`.
    """
    found = {}
    for rank, steps in by_rank.items():
        profiled = steps.where(steps.profiled)
        ranges = ranges_of([profiled])
        pauses = [code for code, kind in enumerate(ranges.kinds) if (kind.stream, kind.tag) == ("host", "gc")]
        mine = [ranges.kind == code for code in pauses]
        total = sum(int((ranges.end_ns[rows] - ranges.start_ns[rows]).sum()) for rows in mine)
        if total:
            found[rank] = total / len(profiled) / NS_PER_MS
    return found
