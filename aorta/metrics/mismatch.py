"""Finds the ranks that made another call than the other members at the same place of a group."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from aorta.artefacts.flight import FlightCall, Recording

MismatchKind = Literal["other_collective", "other_size", "other_dtype"]
_Place = tuple[str, tuple[int, ...], int]
"""Name and members of a group, and the number of a collective."""
_Form = Callable[[FlightCall], object | None]

_CONTEXT = 3
"""Number of calls before the one in question that have to be the same."""
_ALIKE = 16
"""Earlier calls that ranks must have in common to be expected to go on alike."""
_FEWEST = 3
"""Fewest ranks of which most can say that one differs."""
_SAME_SIZES = (
    "all_reduce",
    "allreduce",
    "allreduce_coalesced",
    "broadcast",
    "_broadcast_oop",
    "reduce",
    "_reduce_oop",
    "_all_gather_base",
    "all_gather_single",
    "_reduce_scatter_base",
    "reduce_scatter_single",
    "allgather_base",
)
"""Collectives to which every rank gives as many elements."""
_ANY_TYPES = ("barrier", "all_reduce_barrier", "coalesced", "split", "new_window")


def mismatches(known: Mapping[int, Recording]) -> list[tuple[int, MismatchKind, FlightCall]]:
    """The ranks whose call differs from the call of most members, at the first place that has not ended.

    Args:
        known: recordings by rank.
    """
    for _, calls in sorted(_open_places(known).items(), key=lambda item: _made_ns(item[1])):
        for kind, form in _FORMS:
            said = {rank: what for rank, call in calls.items() if (what := form(call)) is not None}
            odd = _minority(said)
            if len(odd) == len(said) and (
                usual := _usual(said, calls, known, form) or _of_siblings(said, calls, known, form)
            ):
                odd = sorted(rank for rank, what in said.items() if what != usual)
            if odd:
                return [(rank, kind, calls[rank]) for rank in odd]
    return []


def _open_places(known: Mapping[int, Recording]) -> dict[_Place, dict[int, FlightCall]]:
    """The collectives that some rank has not ended, by place: the call that each rank made there.

    A call behind an older open one is left out: its rank has not come to it, and may have missed one.
    """
    places: defaultdict[_Place, dict[int, FlightCall]] = defaultdict(dict)
    open_places = set()
    for rank, recording in known.items():
        oldest = next(iter(recording.pending()), None)
        for call in recording.calls:
            if not call.p2p and (call.finished or call is oldest):
                group = recording.groups.get(call.group)
                place = (call.group, group.ranks if group is not None else (), call.number)
                places[place].setdefault(rank, call)
                if not call.finished:
                    open_places.add(place)
    return {place: places[place] for place in open_places if len(places[place]) > 1}


def _made_ns(calls: Mapping[int, FlightCall]) -> tuple[int, int]:
    return min(call.created_ns or 0 for call in calls.values()), min(call.number for call in calls.values())


def _operation(call: FlightCall) -> object:
    return call.operation


def _size(call: FlightCall) -> object | None:
    return (call.operation, call.elements) if call.operation in _SAME_SIZES and call.sizes else None


def _type(call: FlightCall) -> object | None:
    return tuple(call.types) if call.types and call.operation not in _ANY_TYPES else None


_FORMS: tuple[tuple[MismatchKind, _Form], ...] = (
    ("other_collective", _operation),
    ("other_size", _size),
    ("other_dtype", _type),
)


def _minority(said: Mapping[int, object]) -> list[int]:
    """The ranks that say something else than most do; all of them where there is no majority."""
    counts = Counter(said.values())
    if len(counts) < 2:
        return []
    (usual, most), (_, second) = counts.most_common(2)
    if most == second:
        return sorted(said)
    return sorted(rank for rank, what in said.items() if what != usual)


def _usual(
    said: Mapping[int, object],
    calls: Mapping[int, FlightCall],
    known: Mapping[int, Recording],
    form: _Form,
) -> object | None:
    """The form of the call that followed the same calls earlier; None where that does not tell.

    Training repeats itself, so that the calls before this one say what comes next.
    """
    for length in range(_CONTEXT, 0, -1):
        followers: Counter[object] = Counter()
        for rank, call in calls.items():
            followers += _followers(_past(known[rank].calls, call), form, length)
        if followers:
            usual, _ = followers.most_common(1)[0]
            return usual if usual in said.values() else None
    return None


def _of_siblings(
    said: Mapping[int, object],
    calls: Mapping[int, FlightCall],
    known: Mapping[int, Recording],
    form: _Form,
) -> object | None:
    """The one form among `said` that groups of the same description have at the same place. None if not one.

    Groups of one description, such as the data-parallel groups of all tensor ranks, make the same calls.
    """
    rank, call = next(iter(calls.items()))
    group = known[rank].groups.get(call.group)
    if group is None or not group.about:
        return None
    seen = {
        form(item)
        for other, recording in known.items()
        if other not in calls
        for item in recording.calls
        if not item.p2p and item.number == call.number
        if (own := recording.groups.get(item.group)) is not None and own.about == group.about
    }
    found = seen & set(said.values())
    return found.pop() if len(found) == 1 else None


def departures(known: Mapping[int, Recording]) -> set[int]:
    """The ranks that made the same calls as most of their like, and now made another one.

    Ranks are alike if they made the same calls before the last collective that has ended on all ranks. The
    ranks of one pipeline stage are an example. The calls after it are compared one by one.

    Args:
        known: recordings by rank.
    """
    anchor = _last_common(known)
    if anchor is None and not all(recording.whole for recording in known.values()):
        return set()
    alike: defaultdict[tuple[object, ...], dict[int, list[object]]] = defaultdict(dict)
    for rank, recording in known.items():
        forms = [_in_job(call, recording, known) for call in recording.calls]
        after = [_ended(call) for call in recording.calls].index(anchor) + 1 if anchor is not None else 0
        common = forms[max(after - _ALIKE, 0) : after] or forms[:_CONTEXT]
        alike[tuple(common)][rank] = forms[after:]
    return {rank for tails in alike.values() for rank in _first_to_differ(tails)}


def _ended(call: FlightCall) -> tuple[str, int, str] | None:
    """Group, number and operation of a collective that has ended; None: a send, or an open call."""
    return None if call.p2p or not call.finished else (call.group, call.number, call.operation)


def _last_common(known: Mapping[int, Recording]) -> tuple[str, int, str] | None:
    """The newest collective that has ended on every rank. None if the recordings have no such one."""
    common: dict[tuple[str, int, str], None] | None = None
    for recording in known.values():
        own = {place: None for call in recording.calls if (place := _ended(call)) is not None}
        common = own if common is None else {place: None for place in common if place in own}
    return next(reversed(common), None) if common else None


def _first_to_differ(tails: Mapping[int, Sequence[object]]) -> list[int]:
    """The ranks that differ from most at the first place where any differs."""
    if len(tails) < _FEWEST:
        return []
    for place in range(max(map(len, tails.values()))):
        forms = {rank: tail[place] for rank, tail in tails.items() if len(tail) > place}
        usual, most = Counter(forms.values()).most_common(1)[0]
        odd = sorted(rank for rank, form in forms.items() if form != usual)
        if odd:
            return odd if 2 * most > len(tails) else []
    return []


def _in_job(call: FlightCall, recording: Recording, known: Mapping[int, Recording]) -> object:
    """A call apart from which of several like groups it was made in."""
    group = recording.groups.get(call.group)
    members = len(group.ranks) if group is not None else 0
    members = members or sum(bool(other.enqueued.get(call.group)) for other in known.values())
    return call.operation, call.elements if call.operation in _SAME_SIZES else None, members


def _past(calls: Sequence[FlightCall], call: FlightCall) -> list[FlightCall]:
    return [item for item in calls if not item.p2p and item.group == call.group and item.number < call.number]


def _followers(past: Sequence[FlightCall], form: _Form, length: int) -> Counter[object]:
    """The forms of the calls that followed the last `length` calls earlier."""
    whole = [(call.operation, call.elements, call.types) for call in past]
    context = whole[-length:]
    return Counter(
        form(past[end])
        for end in range(length, len(past))
        if len(context) == length and whole[end - length : end] == context
    )


def is_unusual(calls: Sequence[FlightCall], call: FlightCall) -> bool:
    """True if the calls before a collective came before, and always with another call behind them.

    Args:
        calls: of one rank, oldest first.
        call: one of them.
    """
    if call.p2p:
        return False
    forms = [(item.group, item.operation) for item in calls if not item.p2p]
    place = next(number for number, item in enumerate(item for item in calls if not item.p2p) if item is call)
    for length in range(_CONTEXT, 0, -1):
        context = forms[max(place - length, 0) : place]
        behind = {forms[end] for end in range(length, place) if forms[end - length : end] == context}
        if len(context) == length and behind:
            return forms[place] not in behind
    return False
