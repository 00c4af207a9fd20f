"""Finds the flight recorders that show an earlier moment than those of the other ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from aorta.artefacts.flight import FlightCall, Recording

_LATER_NS = 2_000_000_000
"""Nanoseconds after a dump in which calls of other ranks may still be the same moment."""
_ONE_SIDED = (
    "broadcast",
    "_broadcast_oop",
    "reduce",
    "_reduce_oop",
    "scatter",
    "gather",
    "coalesced",
    "split",
    "new_window",
)
"""Calls that can end on a rank though another member has not made them."""


def outdated(known: Mapping[int, Recording]) -> set[int]:
    """The ranks whose dump shows an earlier moment than the dump of another rank.

    Such a dump does not tell which calls its rank has missed. A collective that needs all members and has
    ended on one of them was made by each of them. A rank that made it only after its dump has an old dump.

    Args:
        known: recordings by rank.
    """
    ended: dict[str, int] = {}
    for recording in known.values():
        for call in recording.calls:
            if call.finished and not call.p2p and call.operation not in _ONE_SIDED:
                ended[call.group] = max(ended.get(call.group, 0), call.number)
    newest = {rank: max(_times(recording), default=0) for rank, recording in known.items()}
    return {
        rank
        for rank, recording in known.items()
        if any(ended.get(group, 0) > made for group, made in recording.enqueued.items())
        or _written_before(recording, max((newest[other] for other in newest if other != rank), default=0))
    }


def _times(recording: Recording) -> Iterator[int]:
    call: FlightCall
    for call in recording.calls:
        yield from (time for time in (call.created_ns, call.finished_ns) if time is not None)


def _written_before(recording: Recording, newest_ns: int) -> bool:
    return recording.taken_ns is not None and newest_ns - recording.taken_ns > _LATER_NS
