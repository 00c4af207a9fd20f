"""Finds who holds a job up that stands still, from the calls that each rank has enqueued and ended.

A rank that has not ended a call waits for each member that never enqueued it. Who is waited for and waits for
nobody is the cause. Where no such rank is, all calls are there: the GPUs or the network do not end them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from aorta.artefacts.flight import FlightCall, FlightGroup, Recording

Kind = Literal[
    "gpu_stuck", "host_stuck", "dead_peer", "other_collective", "other_size", "deadlock", "transfer_stuck"
]

_CONTEXT = 3
"""Calls before the one in question that have to be the same."""
_SAME_SIZES = (
    "all_reduce",
    "allreduce",
    "broadcast",
    "_all_gather_base",
    "_reduce_scatter_base",
    "allgather_base",
)


@dataclass(frozen=True, slots=True)
class Guilty:
    """One rank that holds the others up, and how that is known."""

    rank: int
    kind: Kind
    call: FlightCall
    """The call that shows it: the one the rank misses, does not end, or made differently."""


@dataclass(frozen=True, slots=True)
class Standstill:
    """Who holds up whom."""

    kind: Kind
    guilty: tuple[Guilty, ...]
    """The guilty ranks, in order; empty: all ranks called the same, and nothing says which one is stuck."""
    waiting: Mapping[int, tuple[int, ...]]
    """Ranks that each waiting rank waits for, as far as they are known."""
    call: FlightCall
    """The oldest call that has not ended and waits for a guilty rank."""
    group: FlightGroup | None


def standstill(recordings: Sequence[Recording]) -> Standstill | None:
    """Who holds the job up; None where every call that was made has ended.

    Args:
        recordings: one per rank, with its rank known.
    """
    known = {recording.rank: recording for recording in recordings if recording.rank is not None}
    pending = {rank: recording.pending() for rank, recording in known.items()}
    if not any(pending.values()):
        return None
    odd = _mismatches(known)
    edges = _edges(known, pending)
    stuck = _stuck_gpus(known, pending)
    guilty: dict[int, Guilty] = {}
    for rank, call in stuck.items():
        guilty[rank] = Guilty(rank, "gpu_stuck", call)
    for item in odd:
        guilty.setdefault(item.rank, item)
    if not guilty or not odd:
        for rank, call in _ends(edges, known, stuck).items():
            kind: Kind = "host_stuck" if rank in known else "dead_peer"
            guilty.setdefault(rank, Guilty(rank, kind, call))
    waiting = {
        rank: tuple(sorted({other for other, _ in waits}))
        for rank, waits in edges.items()
        if rank not in guilty
    }
    for rank, calls in pending.items():
        if calls and rank not in guilty:
            waiting.setdefault(rank, ())
    if not guilty and edges:
        # Everybody waits for somebody who waits: a circle.
        guilty = {
            rank: Guilty(rank, "deadlock", waits[0][1])
            for rank, waits in edges.items()
            if _in_circle(rank, edges)
        }
        waiting = {rank: others for rank, others in waiting.items() if rank not in guilty}
    order = sorted(guilty.values(), key=lambda item: item.rank)
    call = _first(order, edges, pending)
    kinds = Counter(item.kind for item in order)
    return Standstill(
        kind=kinds.most_common(1)[0][0] if kinds else "transfer_stuck",
        guilty=tuple(order),
        waiting=dict(sorted(waiting.items())),
        call=call,
        group=_group(call, known),
    )


def _edges(
    known: Mapping[int, Recording], pending: Mapping[int, Sequence[FlightCall]]
) -> dict[int, list[tuple[int, FlightCall]]]:
    """Ranks that each rank waits for because they never made the call, with the call."""
    edges: defaultdict[int, list[tuple[int, FlightCall]]] = defaultdict(list)
    for rank, calls in pending.items():
        for call in calls:
            missing = _missing_peer(rank, call, known) if call.p2p else _missing_members(rank, call, known)
            edges[rank] += [(other, call) for other in missing]
    return {rank: waits for rank, waits in edges.items() if waits}


def _missing_members(rank: int, call: FlightCall, known: Mapping[int, Recording]) -> list[int]:
    group = known[rank].groups.get(call.group)
    members = group.ranks if group is not None else ()
    if not members:
        # Without the groups' description, the ranks that use a group are its members.
        members = tuple(other for other, recording in known.items() if call.group in recording.enqueued)
    return [other for other in members if other != rank and not _has_called(other, call, known)]


def _has_called(rank: int, call: FlightCall, known: Mapping[int, Recording]) -> bool:
    """False: the rank has no recording, or its recording ends before this collective."""
    recording = known.get(rank)
    if recording is None:
        return False
    last = recording.enqueued.get(call.group)
    if last is not None:
        return last >= call.number
    return call.group not in recording.groups or bool(recording.calls)


def _missing_peer(rank: int, call: FlightCall, known: Mapping[int, Recording]) -> list[int]:
    """The peer of a send or receive, where it has no call open that answers this one."""
    if call.peer is None or call.peer == rank:
        return []
    if call.peer not in known:
        return [call.peer]
    answers = [
        other
        for other in known[call.peer].calls
        if other.p2p
        and other.group == call.group
        and other.peer == rank
        and other.operation != call.operation
    ]
    group = known[rank].groups.get(call.group)
    if group is not None and len(group.ranks) == 2 and answers:
        # Both count the same sends and receives.
        return [] if max(other.number for other in answers) >= call.number else [call.peer]
    return [] if any(not other.finished for other in answers) else [call.peer]


def _stuck_gpus(
    known: Mapping[int, Recording], pending: Mapping[int, Sequence[FlightCall]]
) -> dict[int, FlightCall]:
    """Ranks with a collective open that has ended on another member: their own GPU does not go on."""
    found: dict[int, FlightCall] = {}
    for rank, calls in pending.items():
        for call in calls:
            group = known[rank].groups.get(call.group)
            if call.p2p or group is None:
                continue
            ended = [known[other].completed.get(call.group, -1) for other in group.ranks if other in known]
            if ended and max(ended) >= call.number:
                found[rank] = call
                break
    return found


def _mismatches(known: Mapping[int, Recording]) -> list[Guilty]:
    """Ranks whose call differs from that of most members at the same place of a group."""
    places: defaultdict[tuple[str, int], dict[int, FlightCall]] = defaultdict(dict)
    for rank, recording in known.items():
        for call in recording.calls:
            if not call.p2p and not call.finished:
                places[(_shared_name(call, recording), call.number)][rank] = call
    for _, calls in sorted(places.items(), key=lambda item: item[0][1]):
        for kind, said in (
            ("other_collective", {rank: (call.operation,) for rank, call in calls.items()}),
            (
                "other_size",
                {rank: call.sizes for rank, call in calls.items() if call.operation in _SAME_SIZES},
            ),
        ):
            odd = _minority(said)
            if len(odd) == len(said) and (usual := _usual(calls, known)) is not None:
                odd = sorted(rank for rank, call in calls.items() if _form(call) != usual)
            if odd:
                return [Guilty(rank, kind, calls[rank]) for rank in odd]  # type: ignore[arg-type]
    return []


def _form(call: FlightCall) -> tuple[str, tuple[tuple[int, ...], ...]]:
    return call.operation, call.sizes


def _usual(calls: Mapping[int, FlightCall], known: Mapping[int, Recording]) -> object | None:
    """The form of the call that followed the same calls earlier; None where that does not tell.

    Training repeats itself, so that the calls before this one say what comes next.
    """
    followers: Counter[object] = Counter()
    for rank, call in calls.items():
        past = [
            _form(other)
            for other in known[rank].calls
            if not other.p2p and other.group == call.group and other.number < call.number
        ]
        context = past[-_CONTEXT:]
        for end in range(len(context), len(past)):
            if past[end - len(context) : end] == context:
                followers[past[end]] += 1
    if not followers:
        return None
    usual = followers.most_common(1)[0][0]
    said = {_form(call) for call in calls.values()}
    return usual if usual in said and len(said) > 1 else None


def _shared_name(call: FlightCall, recording: Recording) -> str:
    """A group's name and members: two groups of the same name are told apart."""
    group = recording.groups.get(call.group)
    return f"{call.group} {group.ranks if group is not None else ''}"


def _minority(said: Mapping[int, object]) -> list[int]:
    """The ranks that say something else than most do; all of them where there is no majority."""
    counts = Counter(said.values())
    if len(counts) < 2:
        return []
    (usual, most), (_, second) = counts.most_common(2)
    if most == second:
        return sorted(said)
    return sorted(rank for rank, what in said.items() if what != usual)


def _ends(
    edges: Mapping[int, Sequence[tuple[int, FlightCall]]],
    known: Mapping[int, Recording],
    stuck: Mapping[int, FlightCall],
) -> dict[int, FlightCall]:
    """Ranks that are waited for and wait for nobody, with the oldest call that they miss."""
    found: dict[int, FlightCall] = {}
    for waits in edges.values():
        for other, call in waits:
            if other in edges or other in stuck:
                continue
            if other not in found or (call.created_ns or 0) < (found[other].created_ns or 0):
                found[other] = call
    if any(rank in known for rank in found):
        # A rank without a recording may be one whose file was not given.
        return {rank: call for rank, call in found.items() if rank in known or not known}
    return found


def _in_circle(rank: int, edges: Mapping[int, Sequence[tuple[int, FlightCall]]]) -> bool:
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


def _first(
    guilty: Sequence[Guilty],
    edges: Mapping[int, Sequence[tuple[int, FlightCall]]],
    pending: Mapping[int, Sequence[FlightCall]],
) -> FlightCall:
    """The call of a stuck GPU, else the oldest one that waits for a guilty rank, else the oldest one.

    A rank that made another call holds up the ranks that made the usual one at the same place.
    """
    ranks = {item.rank for item in guilty}
    stuck = [item.call for item in guilty if item.kind == "gpu_stuck"]
    waits = [call for pairs in edges.values() for other, call in pairs if other in ranks]
    places = {(item.call.group, item.call.number) for item in guilty}
    beside = [
        call
        for rank, calls in pending.items()
        if rank not in ranks
        for call in calls
        if not call.p2p and (call.group, call.number) in places
    ]
    every = (
        stuck
        or waits
        or beside
        or [item.call for item in guilty]
        or [call for calls in pending.values() for call in calls]
    )
    return min(every, key=lambda call: (call.created_ns is None, call.created_ns or 0))


def _group(call: FlightCall, known: Mapping[int, Recording]) -> FlightGroup | None:
    return next((found for item in known.values() if (found := item.groups.get(call.group))), None)
