"""One step of several ranks side by side, from the ranges of its step records: the longest or a typical one.

Where not all steps were timed part by part, it is one of those that were.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from msgspec import structs

from aorta.artefacts.page import Doing, Excerpt, ExcerptLane, ExcerptSegment, StepTimeSeries
from aorta.artefacts.range_columns import ABSENT
from aorta.artefacts.step_columns import StepColumns
from aorta.artefacts.step_names import COMMUNICATION_STREAMS
from aorta.artefacts.steps import DecodedStep, StepRange
from aorta.intervals import Intervals, as_intervals, clip, intersection, subtract, union
from aorta.metrics.collectives import MatchedCollectives, match_collectives
from aorta.report.selection import choose
from aorta.units import NS_PER_MS, ms_to_ns

MAX_LANES = 12
"""Most lanes of a picture."""
MAX_TIMELINE = 512
"""Ranks of a timeline that can be zoomed; of more ranks, `FEW_OF_MANY` are chosen."""
FEW_OF_MANY = 64
_FINEST = {32: 1500, MAX_TIMELINE: 300}
"""Number of parts of the step, by the most lanes: pieces shorter than one such part are not told apart."""

What = tuple[Doing, int | None]
"""Activity of a rank, and the rank that it waited for."""
Piece = tuple[int, int, What]
"""From and to, ns."""
Waits = Mapping[int, Intervals]
"""Waits by the rank that came last."""


class ChosenStep(NamedTuple):
    """A step that is shown."""

    number: int
    ms: float
    """Time of its slowest rank."""
    median_ms: float
    """The same of the median step."""
    typical: bool
    """The step is the one nearest to the median; else the longest one."""


def chosen_steps(lengths: Mapping[int, float]) -> list[ChosenStep]:
    """The longest step, and the one nearest to the median if that is shorter; the first of equal ones.

    Args:
        lengths: ms by the number of the step.
    """
    if not lengths:
        return []
    median = float(np.median(list(lengths.values())))
    longest = max(lengths, key=lambda step: (lengths[step], -step))
    typical = min(lengths, key=lambda step: (abs(lengths[step] - median), lengths[step], step))
    found = [ChosenStep(longest, lengths[longest], median, typical=False)]
    if lengths[typical] < lengths[longest]:
        found.append(ChosenStep(typical, lengths[typical], median, typical=True))
    return found


def timed_steps(times: StepTimeSeries | None) -> dict[int, float]:
    """The ms of each steady step that every rank timed part by part, by the number of the step."""
    if times is None:
        return {}
    points = zip(times.global_step, times.ms, times.steady, times.detailed, strict=True)
    return {number: ms for number, ms, steady, detailed in points if steady and detailed}


def excerpt(
    by_rank: Mapping[int, StepColumns],
    clocks: Mapping[int, str],
    chosen: ChosenStep | None,
    named: Collection[int],
) -> tuple[Excerpt | None, str]:
    """The chosen step of at most `MAX_TIMELINE` ranks on one clock; or None, and why it cannot be shown.

    Args:
        by_rank: step records of each rank.
        clocks: rank to the name of the clock that its records are of.
        chosen: one of `chosen_steps`. None if there is no such step.
        named: ranks of the verdict, shown first of all.
    """
    all_detailed = all(steps.detailed[steps.phase_is("steady")].all() for steps in by_rank.values())
    if chosen is None:
        return None, "not measured: no steady step" + ("" if all_detailed else " was timed part by part")
    number = chosen.number
    those = {
        rank: own
        for rank, records in by_rank.items()
        if len(own := records.where((records.column("global_step") == number) & records.profiled))
    }
    if not those:
        return None, f"not measured: the records of step {number} contain no ranges"
    limit = FEW_OF_MANY if len(those) > MAX_TIMELINE else MAX_TIMELINE
    ranks, note = choose({rank: _own_ns(own) for rank, own in those.items()}, named, limit)
    steps = {rank: those[rank][-1] for rank in ranks}
    notes = [note] if note else []
    placed = match_collectives({rank: [steps[rank]] for rank in ranks}, clocks)
    if isinstance(placed, str):
        # Nothing in common aligns the ranks of several clocks; on one clock nothing has to.
        several = len({clocks[rank] for rank in ranks}) > 1
        shifts = {rank: -steps[rank].mono_start_ns if several else 0 for rank in ranks}
        notes += [f"each rank from its own start: {placed}"] if several else []
        waits: Mapping[int, Waits] = {}
    else:
        shifts = {rank: placed.timelines[rank].starts[number] - steps[rank].mono_start_ns for rank in ranks}
        waits = waits_of(placed, shifts)
    origin = min(steps[rank].mono_start_ns + shifts[rank] for rank in ranks)
    pieces = finest(len(ranks))
    lanes = [_lane(steps[rank], origin - shifts[rank], waits.get(rank), pieces) for rank in ranks]
    found = Excerpt(
        global_step=number,
        step_ms=chosen.ms,
        median_ms=chosen.median_ms,
        lanes=lanes,
        note="; ".join(notes),
        all_detailed=all_detailed,
        typical=chosen.typical,
    )
    return found, ""


def _own_ns(steps: StepColumns) -> float:
    exposed = int(steps.column("exposed_comm_ns")[-1])
    return int(steps.duration_ns[-1]) - (0 if exposed == ABSENT else exposed)


def cut(found: Excerpt, named: Collection[int], limit: int = MAX_LANES) -> Excerpt:
    """The same of at most `limit` ranks, chosen by their own time."""
    own = {
        lane.rank: sum(
            item.end_ms - item.start_ms
            for item in lane.segments
            if item.doing not in ("wait", "transfer", "hidden")
        )
        for lane in found.lanes
    }
    kept, note = choose(own, named, limit)
    if not note:
        return found
    lanes = [lane for lane in found.lanes if lane.rank in set(kept)]
    return structs.replace(found, lanes=lanes, note="; ".join(part for part in (note, found.note) if part))


def finest(lanes: int) -> int:
    """Returns how many pieces of the step are told apart on each of so many lanes."""
    return next((pieces for most, pieces in _FINEST.items() if lanes <= most), min(_FINEST.values()))


def waits_of(placed: MatchedCollectives, shifts: Mapping[int, int]) -> dict[int, Waits]:
    """Returns when each rank was in a collective whose last member had not come, on the rank's own clock.

    Args:
        placed: the ranks on one clock.
        shifts: ns by which that is ahead of each rank's own.
    """
    pairs: dict[int, dict[int, list[tuple[int, int]]]] = {rank: {} for rank in shifts}
    for item in placed.matched:
        last, culprit = int(item.entry.max()), item.ranks[int(item.entry.argmax())]
        for rank, entry, end in zip(item.ranks, item.entry.tolist(), item.end.tolist(), strict=True):
            if rank != culprit:
                mine = pairs[rank].setdefault(culprit, [])
                mine.append((entry - shifts[rank], min(last, end) - shifts[rank]))
    return {
        rank: {culprit: union(as_intervals(found)) for culprit, found in waits.items()}
        for rank, waits in pairs.items()
    }


def _lane(step: DecodedStep, zero: int, waits: Waits | None, pieces: int) -> ExcerptLane:
    """One rank's segments, from its record, which has ranges; as `segments`."""
    assert step.profile is not None
    did = Did(
        span=(step.mono_start_ns, step.mono_end_ns),
        compute=_of(step, lambda item: item.stream == "compute"),
        communication=_of(step, lambda item: item.stream in COMMUNICATION_STREAMS),
        data=_of(step, lambda item: item.stream == "host" and item.tag == "data"),
        waits=waits,
    )
    return ExcerptLane(rank=step.rank, host=step.host, segments=segments(did, zero, pieces))


@dataclass(frozen=True, slots=True)
class Did:
    """The activity of one rank in a step, ns of one clock."""

    span: tuple[int, int]
    """Start and end of the step."""
    compute: Intervals
    communication: Intervals
    data: Intervals
    """Intervals of the loader."""
    waits: Waits | None
    """Waits for the last member of a collective; None where the last member is not known."""


def segments(did: Did, zero: int, pieces: int = _FINEST[32]) -> list[ExcerptSegment]:
    """The segments of one rank, in ms after `zero` of its clock; the step is told apart in `pieces`."""
    start, end = did.span
    busy, communication = did.compute, did.communication
    exposed = subtract(communication, busy)
    waited: list[tuple[What, Intervals]] = []
    transfer = exposed
    for culprit, intervals in (did.waits or {}).items():
        waited.append((("wait", culprit), intersection(transfer, intervals)))
        transfer = subtract(transfer, intervals)
    data = subtract(subtract(did.data, busy), communication)
    idle = subtract(subtract(subtract(as_intervals([(start, end)]), busy), communication), data)
    found: list[tuple[What, Intervals]] = [
        (("compute", None), busy),
        *waited,
        (("transfer", None), transfer),
        (("data_wait", None), data),
        (("host", None), idle),
    ]
    kept = [
        (int(first), int(last), what)
        for what, intervals in found
        for first, last in clip(intervals, start, end).tolist()
    ]
    least = (end - start) // pieces
    shown = _drawable(sorted(kept, key=lambda piece: piece[:2]), least)
    hidden = clip(intersection(communication, busy), start, end).tolist()
    shown += [(first, last, ("hidden", None)) for first, last in hidden if last - first > least]
    return [
        ExcerptSegment(
            doing=doing,
            start_ms=(first - zero) / NS_PER_MS,
            end_ms=(last - zero) / NS_PER_MS,
            waits_for=rank,
        )
        for first, last, (doing, rank) in shown
    ]


def _drawable(pieces: Sequence[Piece], finest: int) -> list[Piece]:
    """Returns the pieces without those too short to be seen; each piece begins where the one before ends.

    Several short pieces in a row become one piece of their main kind. A single short piece goes to its
    neighbour.
    """
    shown: list[Piece] = []
    few: Counter[What] = Counter()
    since = pieces[0][0] if pieces else 0

    def show(last: int, doing: What) -> None:
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


def _of(step: DecodedStep, wanted: Callable[[StepRange], bool]) -> Intervals:
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
