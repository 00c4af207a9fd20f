"""One step of several ranks side by side: the longest steady one, from the ranges of its step records.

Where not all steps were timed part by part, it is the longest of those that were.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from aorta.artefacts.page import Doing, Excerpt, Lane, Segment, StepTimes
from aorta.artefacts.step_columns import ABSENT, StepColumns
from aorta.artefacts.step_record import COMMUNICATION_STREAMS
from aorta.artefacts.steps import Step, StepRange
from aorta.intervals import Intervals, as_intervals, clip, intersection, subtract, union
from aorta.metrics.collectives import Collectives, match_collectives
from aorta.report.selection import choose
from aorta.units import NS_PER_MS, ms_to_ns

MAX_LANES = 12
_FINEST = 1500
"""Pieces shorter than one of this many parts of the step are not told apart: thinner than a pixel."""

Piece = tuple[int, int, Doing]
"""From and to, ns."""


def worst_step(times: StepTimes | None) -> tuple[int, float, float] | None:
    """The longest steady step, its ms, and the median ms of the steady steps; None without one.

    Only steps that every rank timed part by part are asked.
    """
    if times is None:
        return None
    points = zip(times.global_step, times.ms, times.steady, times.detailed, strict=True)
    kept = [(ms, number) for number, ms, steady, detailed in points if steady and detailed]
    if not kept:
        return None
    ms, number = max(kept, key=lambda item: (item[0], -item[1]))
    return number, ms, float(np.median([ms for ms, _ in kept]))


def excerpt(
    by_rank: Mapping[int, StepColumns],
    clocks: Mapping[int, str],
    worst: tuple[int, float, float] | None,
    named: Collection[int],
) -> tuple[Excerpt | None, str]:
    """The worst step of at most `MAX_LANES` ranks on one clock; or None, and why it cannot be shown.

    Args:
        by_rank: step records of each rank.
        clocks: rank to the name of the clock that its records are of.
        worst: as `worst_step` gives it.
        named: ranks of the verdict, shown first of all.
    """
    all_detailed = all(steps.detailed[steps.phase_is("steady")].all() for steps in by_rank.values())
    if worst is None:
        return None, "not measured: no steady step" + ("" if all_detailed else " was timed part by part")
    number, step_ms, median_ms = worst
    those = {
        rank: own
        for rank, records in by_rank.items()
        if len(own := records.where((records.column("global_step") == number) & records.profiled))
    }
    if not those:
        return None, f"not measured: the records of step {number} hold no ranges"
    ranks, note = choose({rank: _own_ns(own) for rank, own in those.items()}, named, MAX_LANES)
    steps = {rank: those[rank][-1] for rank in ranks}
    notes = [note] if note else []
    placed = match_collectives({rank: [steps[rank]] for rank in ranks}, clocks)
    if isinstance(placed, str):
        # Nothing in common aligns the ranks of several clocks; on one clock nothing has to.
        several = len({clocks[rank] for rank in ranks}) > 1
        shifts = {rank: -steps[rank].mono_start_ns if several else 0 for rank in ranks}
        notes += [f"each rank from its own start: {placed}"] if several else []
        waits: Mapping[int, Intervals] = {}
    else:
        shifts = {rank: placed.timelines[rank].starts[number] - steps[rank].mono_start_ns for rank in ranks}
        waits = waits_of(placed, shifts)
    origin = min(steps[rank].mono_start_ns + shifts[rank] for rank in ranks)
    lanes = [_lane(steps[rank], origin - shifts[rank], waits.get(rank)) for rank in ranks]
    found = Excerpt(
        global_step=number,
        step_ms=step_ms,
        median_ms=median_ms,
        lanes=lanes,
        note="; ".join(notes),
        all_detailed=all_detailed,
    )
    return found, ""


def _own_ns(steps: StepColumns) -> float:
    exposed = int(steps.column("exposed_comm_ns")[-1])
    return int(steps.duration_ns[-1]) - (0 if exposed == ABSENT else exposed)


def waits_of(placed: Collectives, shifts: Mapping[int, int]) -> dict[int, Intervals]:
    """When each rank was in a collective whose last member had not come to it, on the rank's own clock.

    Args:
        placed: the ranks on one clock.
        shifts: ns by which that is ahead of each rank's own.
    """
    pairs: dict[int, list[tuple[int, int]]] = {rank: [] for rank in shifts}
    for item in placed.matched:
        last = int(item.entry.max())
        for rank, entry, end in zip(item.ranks, item.entry.tolist(), item.end.tolist(), strict=True):
            pairs[rank].append((entry - shifts[rank], min(last, end) - shifts[rank]))
    return {rank: union(as_intervals(found)) for rank, found in pairs.items()}


def _lane(step: Step, zero: int, waits: Intervals | None) -> Lane:
    """One rank's segments, from its record, which has ranges; as `segments`."""
    assert step.profile is not None
    did = Did(
        span=(step.mono_start_ns, step.mono_end_ns),
        compute=_of(step, lambda item: item.stream == "compute"),
        communication=_of(step, lambda item: item.stream in COMMUNICATION_STREAMS),
        data=_of(step, lambda item: item.stream == "host" and item.tag == "data"),
        waits=waits,
    )
    return Lane(rank=step.rank, host=step.host, segments=segments(did, zero))


@dataclass(frozen=True, slots=True)
class Did:
    """What one rank did in a step, ns of one clock."""

    span: tuple[int, int]
    """Of the step."""
    compute: Intervals
    communication: Intervals
    data: Intervals
    """The loader's."""
    waits: Intervals | None
    """For the last member of a collective; None where that is not known."""


def segments(did: Did, zero: int) -> list[Segment]:
    """What is drawn of it, in ms after `zero` of its clock."""
    start, end = did.span
    busy, communication = did.compute, did.communication
    exposed = subtract(communication, busy)
    waited = intersection(exposed, did.waits) if did.waits is not None else as_intervals([])
    data = subtract(subtract(did.data, busy), communication)
    whole = as_intervals([(start, end)])
    pieces: list[tuple[Doing, Intervals]] = [
        ("compute", busy),
        ("wait", waited),
        ("transfer", subtract(exposed, waited)),
        ("data_wait", data),
        ("host", subtract(subtract(subtract(whole, busy), communication), data)),
    ]
    kept = [
        (int(first), int(last), doing)
        for doing, found in pieces
        for first, last in clip(found, start, end).tolist()
    ]
    finest = (end - start) // _FINEST
    shown = _drawable(sorted(kept), finest)
    hidden = clip(intersection(communication, busy), start, end).tolist()
    shown += [(first, last, "hidden") for first, last in hidden if last - first > finest]
    return [
        Segment(doing=doing, start_ms=(first - zero) / NS_PER_MS, end_ms=(last - zero) / NS_PER_MS)
        for first, last, doing in shown
    ]


def _drawable(pieces: Sequence[Piece], finest: int) -> list[Piece]:
    """The pieces, of which each begins where the one before it ends, without those too short to be seen:
    several in a row become one of what most of it is, and one alone goes to its neighbour.
    """
    shown: list[Piece] = []
    few: Counter[Doing] = Counter()
    since = pieces[0][0] if pieces else 0

    def show(last: int, doing: Doing) -> None:
        nonlocal since
        if shown and shown[-1][2] == doing:
            shown[-1] = (shown[-1][0], last, doing)
        else:
            shown.append((since, last, doing))
        since = last
        few.clear()

    for first, last, doing in pieces:
        if last - first > finest:
            if shown and first > since:
                show(first, shown[-1][2])
            show(last, doing)
            continue
        few[doing] += last - first
        if last - since > finest:
            show(last, few.most_common(1)[0][0])
    if shown and pieces[-1][1] > since:
        show(pieces[-1][1], shown[-1][2])
    return shown


def _of(step: Step, wanted: Callable[[StepRange], bool]) -> Intervals:
    """The time that the wanted ranges of a step cover, ns on its monotonic clock."""
    assert step.profile is not None
    origin = step.mono_start_ns
    return union(
        as_intervals(
            [
                (origin + ms_to_ns(item.start_ms), origin + ms_to_ns(item.end_ms))
                for item in step.profile.ranges
                if wanted(item)
            ]
        )
    )
