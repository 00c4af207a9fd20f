"""Finds who holds a job up that stands still, from the calls that each rank has enqueued and ended.

A rank waits in its oldest open call. It waits for the members that never enqueued this call, and for the
members that have an older open call. The cause is the rank that others wait for and that waits for no rank
itself. It is a host without an open call, or a GPU that does not start or end a call that other GPUs have.
Where no such rank is, all members are in one call, and nothing says which of them does not end it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from aorta.artefacts.flight import FlightCall, FlightGroup, Recording
from aorta.metrics.flight_moments import outdated
from aorta.metrics.mismatch import MismatchKind, departures, is_unusual, mismatches
from aorta.units import rank_words

Kind = Literal["gpu_stuck", "host_stuck", "dead_peer", "deadlock", "transfer_stuck"] | MismatchKind

SHORTEST_NS = 2_000_000_000
"""A dump shows a standstill only if a call has been open for at least this many nanoseconds."""
_USUAL_TIMES = 3
"""Number of separate waits of one length after which such a wait is usual for the job."""
_DEFAULT_GROUP = "0"
_Edges = Mapping[int, Sequence[tuple[int, FlightCall]]]
_Known = Mapping[int, Recording]
_Heads = Mapping[int, Sequence[FlightCall]]
"""Rank to its oldest open call, or the sends and receives of its oldest open batch."""


@dataclass(frozen=True, slots=True)
class Guilty:
    """One rank that holds up the others, and the evidence for it."""

    rank: int
    kind: Kind
    call: FlightCall | None
    """The call that the rank misses, does not end, or made differently. None means no call shows it."""


@dataclass(frozen=True, slots=True)
class Standstill:
    """Tells who holds up whom."""

    kind: Kind
    guilty: tuple[Guilty, ...]
    """The guilty ranks, in order. Empty if all ranks called the same, and nothing says which one is stuck."""
    waiting: Mapping[int, tuple[int, ...]]
    """Ranks that each waiting rank waits for, as far as they are known."""
    call: FlightCall
    """The oldest call that has not ended and waits for a guilty rank."""
    group: FlightGroup | None


def why_none(recordings: Sequence[Recording], unread: Collection[int] = ()) -> str:
    """Why no standstill is seen in these recordings: a sentence for the case that `standstill` gives None.

    Args:
        recordings: one per rank.
        unread: ranks whose dump cannot be used.
    """
    known = {recording.rank: recording for recording in recordings if recording.rank is not None}
    if not any(recording.calls or any(recording.enqueued.values()) for recording in recordings):
        return "These flight recorders contain no calls, so nothing shows what the ranks are doing."
    old = outdated(known)
    if old:
        known = {rank: item for rank, item in known.items() if rank not in old}
    told = (
        f"Not used, because they are older than the other dumps: {rank_words(sorted(old))}. " if old else ""
    )
    if not any(recording.pending() for recording in known.values()):
        return (
            f"{told}No rank is waiting in a recorded call: every recorded call has "
            f"ended.{_unseen(recordings)}"
        )
    if _momentary(known):
        limit = SHORTEST_NS // 1_000_000_000
        return (
            f"{told}No rank stands still: every open call was made less than {limit} s before its dump, "
            "or was open no longer than earlier calls of its kind."
        )
    if unread:
        return (
            f"Some calls are open, and ranks wait for {rank_words(sorted(unread))}, whose dump cannot be "
            "used."
        )
    return (
        told
        or "Some calls are open, but the dumps of most ranks are missing, so nothing shows which rank blocks "
        "them."
    )


def _unseen(recordings: Sequence[Recording]) -> str:
    if any(recording.unseen_sends for recording in recordings):
        return " gloo does not record sends and receives: ranks may be waiting in one."
    return ""


def standstill(recordings: Sequence[Recording], unread: Collection[int] = ()) -> Standstill | None:
    """Returns who holds the job up; None where every call has ended, or was open for a moment only.

    Also None if no rank can be named, because the dumps of most ranks are missing, or because the dump of
    the awaited rank cannot be used.

    Args:
        recordings: one per rank, with its rank known.
        unread: ranks whose dump cannot be used.
    """
    known = {recording.rank: recording for recording in recordings if recording.rank is not None}
    unseen = outdated(known) | set(unread)
    known = {rank: item for rank, item in known.items() if rank not in unseen}
    heads = {rank: calls for rank, recording in known.items() if (calls := _head(recording.pending()))}
    odd = mismatches(known)
    if not heads or (not odd and _momentary(known)):
        return None
    edges = _edges(known, heads)
    guilty = {rank: Guilty(rank, kind, call) for rank, kind, call in odd} or _guilty(known, heads, edges)
    if any(rank in unseen for rank in guilty):
        guilty = {rank: item for rank, item in guilty.items() if item.kind != "dead_peer"}
        if not guilty:
            return None
    if sum(item.kind == "dead_peer" for item in guilty.values()) > len(known):
        return None
    waiting = {rank: edges.get(rank, []) for rank in heads if rank not in guilty}
    order = sorted(guilty.values(), key=lambda item: item.rank)
    call = _first(order, edges, heads)
    kinds = Counter(item.kind for item in order)
    return Standstill(
        kind=kinds.most_common(1)[0][0] if kinds else "transfer_stuck",
        guilty=tuple(order),
        waiting={
            rank: tuple(sorted({other for other, _ in waits})) for rank, waits in sorted(waiting.items())
        },
        call=call,
        group=next((found for item in known.values() if (found := item.groups.get(call.group))), None),
    )


def _head(pending: Sequence[FlightCall]) -> list[FlightCall]:
    return [call for call in pending if _same(call, pending[0])]


def _same(one: FlightCall, other: FlightCall) -> bool:
    return (one.group, one.number, one.p2p) == (other.group, other.number, other.p2p)


def _momentary(known: _Known) -> bool:
    """True if no open call was open for longer than it is in a job that goes on."""
    return all(_is_young(call, item) for item in known.values() for call in item.pending())


def _is_young(call: FlightCall, recording: Recording) -> bool:
    """True if a call was made just before the dump, or if earlier calls like it were open as long."""
    if recording.taken_ns is None or call.created_ns is None:
        return False
    age = recording.taken_ns - call.created_ns
    if 0 <= age < SHORTEST_NS:
        return True
    times = 0
    end = 0
    for made, ended in _ended_alike(call, recording):
        # Calls that waited at the same time, one behind the other, are one wait.
        if ended - made >= age >= 0 and made >= end:
            times, end = times + 1, ended
    return times >= _USUAL_TIMES


def _ended_alike(call: FlightCall, recording: Recording) -> Iterator[tuple[int, int]]:
    """The times when earlier calls of the same kind were made and ended, as far as both are known."""
    for item in recording.calls:
        alike = (item.group, item.operation, item.peer, item.elements)
        if (
            alike == (call.group, call.operation, call.peer, call.elements)
            and item.created_ns is not None
            and item.finished_ns is not None
        ):
            yield item.created_ns, item.finished_ns


def _guilty(known: _Known, heads: _Heads, edges: _Edges) -> dict[int, Guilty]:
    found = {
        rank: Guilty(rank, "gpu_stuck", calls[0])
        for rank, calls in heads.items()
        if rank not in edges and _only_here(rank, calls[0], known, heads)
    }
    for waits in edges.values():
        for other, call in waits:
            if other in heads:
                continue
            before = found.get(other)
            if before is None or before.call is None or _made(call) < _made(before.call):
                found[other] = Guilty(other, "host_stuck" if other in known else "dead_peer", call)
    if any(rank in known for rank in found):
        # A rank without a recording may be one whose file was not given.
        return {rank: item for rank, item in found.items() if rank in known}
    if found:
        return {rank: Guilty(rank, "dead_peer", None) for rank in _without_a_sign(known)} | found
    asked = {other for waits in edges.values() for other, _ in waits if other in heads}
    unusual = sorted(departures(known) & asked)
    unusual = unusual or [rank for rank in sorted(asked) if is_unusual(known[rank].calls, heads[rank][0])]
    if 0 < len(unusual) < len(heads):
        return {rank: Guilty(rank, "other_collective", heads[rank][0]) for rank in unusual}
    # Everybody waits for somebody who waits: a circle.
    return {
        rank: Guilty(rank, "deadlock", waits[0][1])
        for rank, waits in edges.items()
        if _in_circle(rank, edges)
    }


def _without_a_sign(known: _Known) -> set[int]:
    """The members of groups that left no recording."""
    return {rank for item in known.values() for group in item.groups.values() for rank in group.ranks} - set(
        known
    )


def _made(call: FlightCall) -> int:
    return call.created_ns or 0


def _edges(known: _Known, heads: _Heads) -> dict[int, list[tuple[int, FlightCall]]]:
    """Ranks that each rank waits for in its oldest open call, with the call."""
    edges = {}
    for rank, calls in heads.items():
        waits = [
            (other, call)
            for call in calls
            for other in (_peers if call.p2p else _members)(rank, call, known)
            if other != rank and _is_behind(rank, other, call, known, heads)
        ]
        if waits:
            edges[rank] = waits
    return edges


def _is_behind(rank: int, other: int, call: FlightCall, known: _Known, heads: _Heads) -> bool:
    """True if the other rank has not enqueued the call, or is in an older one."""
    if call.p2p:
        answers = _answers(rank, other, call, known)
        if answers is None:
            return False
        return not answers or not any(_same(answers[0], head) for head in heads[other])
    if not _has_called(other, call, known):
        return True
    return (
        other in heads
        and not any(_same(call, head) for head in heads[other])
        and _is_open(other, call, known)
    )


def _is_open(rank: int, call: FlightCall, known: _Known) -> bool:
    return any(_same(item, call) for item in known[rank].pending())


def _members(rank: int, call: FlightCall, known: _Known) -> tuple[int, ...]:
    group = known[rank].groups.get(call.group)
    if group is not None and group.ranks:
        return group.ranks
    if call.group == _DEFAULT_GROUP:
        return tuple(known)
    # Without the groups' description, the ranks that use a group are its members.
    return tuple(other for other, recording in known.items() if recording.enqueued.get(call.group))


def _has_called(rank: int, call: FlightCall, known: _Known) -> bool:
    """False: the rank has no recording, or its recording ends before this collective."""
    recording = known.get(rank)
    if recording is None:
        return False
    last = recording.enqueued.get(call.group)
    if last is not None:
        return last >= call.number
    # Its buffer has wrapped and says nothing of the group; without a buffer it has called nothing.
    return bool(recording.calls) and not recording.whole


def _peers(rank: int, call: FlightCall, known: _Known) -> tuple[int, ...]:
    del rank, known
    return () if call.peer is None else (call.peer,)


def _answers(rank: int, peer: int, call: FlightCall, known: _Known) -> list[FlightCall] | None:
    """The open calls of the peer that answer this send or receive. None if it has made its part already."""
    if peer not in known:
        return []
    own = [item for item in known[rank].calls if _is_part(item, call.operation, peer, call.group)]
    theirs = [
        item
        for item in known[peer].calls
        if item.p2p and item.group == call.group and item.peer == rank and item.operation != call.operation
    ]
    found = [item for item in theirs if not item.finished]
    place = next(number for number, item in enumerate(own) if item is call)
    whole = known[rank].whole and known[peer].whole
    return None if not found and whole and len(theirs) > place else found


def _is_part(call: FlightCall, operation: str, peer: int, group: str) -> bool:
    return call.p2p and (call.operation, call.peer, call.group) == (operation, peer, group)


def _only_here(rank: int, call: FlightCall, known: _Known, heads: _Heads) -> bool:
    """True if another member's GPU has ended the collective, or has started it while this rank's has not."""
    if call.p2p:
        return False
    others = [other for other in _members(rank, call, known) if other != rank and other in known]
    if any(known[other].completed.get(call.group, -1) >= call.number for other in others):
        return True
    started = any(head.started and _same(head, call) for other in others for head in heads.get(other, ()))
    return started and not call.started


def _in_circle(rank: int, edges: _Edges) -> bool:
    seen: set[int] = set()
    ahead = [other for other, _ in edges.get(rank, ())]
    while ahead:
        other = ahead.pop()
        if other == rank:
            return True
        if other not in seen:
            seen.add(other)
            ahead += [third for third, _ in edges.get(other, ())]
    return False


def _first(guilty: Sequence[Guilty], edges: _Edges, heads: _Heads) -> FlightCall:
    """The call of a stuck GPU, else the oldest one that waits for a guilty rank, else the oldest one.

    A rank that made another call holds up the ranks that made the usual one at the same place.
    """
    ranks = {item.rank for item in guilty}
    shown = [item.call for item in guilty if item.call is not None]
    stuck = [item.call for item in guilty if item.kind == "gpu_stuck" and item.call is not None]
    waits = [call for pairs in edges.values() for other, call in pairs if other in ranks]
    beside = [
        call
        for rank, calls in heads.items()
        if rank not in ranks
        for call in calls
        if any(_same(call, other) for other in shown)
    ]
    every = stuck or beside or waits or shown or [call for calls in heads.values() for call in calls]
    return min(every, key=lambda call: (call.created_ns is None, call.created_ns or 0))
