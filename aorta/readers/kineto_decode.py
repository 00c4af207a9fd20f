"""Decodes chunks of Kineto events: Kineto's own layout for all events at once, the rest as JSON."""

from __future__ import annotations

import msgspec
import numpy as np

from aorta.readers.fast.kineto_layout import find
from aorta.readers.kineto_columns import Columns, add_rows, hold
from aorta.readers.kineto_events import EVENT, EVENTS, Event, loose_event
from aorta.readers.kineto_salvage import MALFORMED, plain_json, salvage
from aorta.readers.kineto_stream import AHEAD, smaller


def add_chunk(columns: Columns, text: bytes, end: int, *, last: bool = False) -> str | None:
    """Decode the events in `text` before `end`; what follows the array, if it ends there.

    `flush` makes columns of what was decoded as JSON: of many events at a time.
    """
    base = columns.length
    columns.length += end
    found = None if len(text) - end < AHEAD else find(text, end, columns.learned)
    if found is None:
        return _add_json(columns, text[:end], base, last=last)
    others, which = found.others()
    pieces = len(which)
    try:
        events = EVENTS.decode(b"[" + others + b"]")
        if len(events) != pieces:
            # What is not laid out as the rest may be taken for a part of the event before it.
            counts = [len(EVENTS.decode(b"[" + found.event(number) + b"]")) for number in which.tolist()]
            which = np.repeat(which, counts)
    except (msgspec.DecodeError, UnicodeDecodeError):
        columns.events += int(found.unused.sum())
        return _add_json(columns, found.used(), base, last=last)
    columns.events += len(found.unused) - pieces + len(events)
    hold(columns, others, events, (which + base).tolist())
    for rows in found.read:
        add_rows(columns, rows, base)
    return None


def _add_json(columns: Columns, text: bytes, base: int, *, last: bool) -> str | None:
    """Decode the events of a text as JSON, or what can be read of it; what follows the array."""
    tail: str | None = None
    behind: list[str] = []
    for piece, at_end in smaller(text):
        if tail is not None:
            behind.append(piece.decode("utf-8", errors="replace"))
            continue
        kept, decoded = _decoded(piece)
        if decoded is None:
            pieces, faults, tail = salvage(piece, last=last and at_end)
            columns.faults.update(faults)
            kept, decoded = _readable(columns, pieces)
        events = decoded
        columns.events += len(events)
        hold(columns, kept, events, list(range(base, base + len(events))))
        base += len(events)
    return tail if tail is None else ",".join([tail, *behind])


def _decoded(piece: bytes) -> tuple[bytes, list[Event] | None]:
    """The text as JSON and its events; None for the events where it is not quite JSON."""
    try:
        return piece, EVENTS.decode(b"[" + piece + b"]")
    except (msgspec.DecodeError, UnicodeDecodeError):
        plain = plain_json(piece)
    try:
        return plain, EVENTS.decode(b"[" + plain + b"]")
    except (msgspec.DecodeError, UnicodeDecodeError):
        return piece, None


def _readable(columns: Columns, pieces: list[bytes]) -> tuple[bytes, list[Event]]:
    """The salvaged events that decode, if need be without the values of a wrong type, and their text."""
    good: list[bytes] = []
    events: list[Event] = []
    for piece in pieces:
        try:
            text = piece
            try:
                event = EVENT.decode(text)
            except (msgspec.DecodeError, UnicodeDecodeError):
                text = loose_event(plain_json(piece))
                event = EVENT.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            columns.faults[MALFORMED] += 1
        else:
            good.append(text)
            events.append(event)
    return b",".join(good), events
