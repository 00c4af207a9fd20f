"""Reads the entries of a flight recorder: the calls that a rank made, and if they have ended.

An entry's own state is not enough. gloo leaves every entry `scheduled` and retires it instead. The sends of a
batch stay `scheduled` for good: the entry `coalesced` that follows them tells when the batch has ended.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from aorta.artefacts.flight import FlightCall, FlightGroup

_PAIR = re.compile(r"\b(send|recv)\w*\s+(\d{1,9})\s*(?:->|<-)\s*(\d{1,9})\b")
_LARGEST = 1 << 63
_MOST_DIMENSIONS = 64
"""Most dimensions of a tensor in torch."""
_GLOO = "gloo:"
_BATCH_END = "coalesced"
_Entry = Mapping[str, Any]


def calls_of(
    entries: Sequence[_Entry], groups: Mapping[str, FlightGroup], status: object = None
) -> tuple[FlightCall, ...]:
    """The calls in the entries of one rank, oldest first.

    Args:
        entries: of the dump.
        groups: by name.
        status: `pg_status` of the dump.
    """
    ordered = sorted(entries, key=lambda entry: whole(entry.get("record_id")) or 0)
    told = _status(status, entries, groups)
    calls = [call for entry in ordered if (call := _call(entry, groups, told)) is not None]
    return _in_order(_batches(calls))


def progress(
    status: object,
    entries: Sequence[_Entry],
    groups: Mapping[str, FlightGroup],
    calls: Sequence[FlightCall],
    *,
    complete: bool,
) -> tuple[dict[str, int], dict[str, int]]:
    """Returns by group the number of the last collective that was enqueued, and of the last that ended.

    Args:
        status: `pg_status` of the dump.
        entries: of the dump.
        groups: by name.
        calls: in the entries.
        complete: the entries are all calls since the start.
    """
    last: dict[str, int] = {}
    ended: dict[str, int] = {}
    for call in calls:
        if not call.p2p:
            last[call.group] = max(last.get(call.group, 0), call.number)
            if call.finished:
                ended[call.group] = max(ended.get(call.group, 0), call.number)
    enqueued = (dict.fromkeys(groups, 0) if complete else {}) | last
    # The status of a group with sends counts sends and collectives together.
    mixed = {call.group for call in calls if call.p2p} | groups_with_sends(entries)
    for name, (made, done) in _status(status, entries, groups).items():
        if name not in mixed:
            enqueued[name] = max(made, last.get(name, 0))
            ended[name] = max(done, ended.get(name, 0))
    return enqueued, ended


def taken(entries: Iterable[_Entry]) -> int | None:
    """Returns when the dump was made, as its entries tell. None if they do not.

    NCCL's watchdog retires a call soon after its end. The dump itself finds the end of a call that is not
    retired. Such a call has ended just before the dump, unless the watchdog does not run.
    """
    found = [_time(entry.get("time_discovered_completed_ns")) for entry in entries if _is_new(entry)]
    return max((time for time in found if time is not None), default=None)


def _is_new(entry: _Entry) -> bool:
    return entry.get("retired") is False and entry.get("state") == "completed"


def whole(value: object) -> int | None:
    """A whole number of 64 bits, also one that JSON has as text. None if it is none."""
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value):
        return int(value)
    fits = isinstance(value, int) and not isinstance(value, bool) and -_LARGEST <= value < _LARGEST
    return value if isinstance(value, int) and fits else None


def _call(
    entry: _Entry, groups: Mapping[str, FlightGroup], told: Mapping[str, tuple[int, int]]
) -> FlightCall | None:
    group = _group_of(entry)
    text = str(entry.get("profiling_name", ""))
    p2p = bool(entry.get("is_p2p", False)) or _PAIR.search(text) is not None
    number = whole(entry.get("p2p_seq_id" if p2p else "collective_seq_id"))
    if number is None:
        number = whole(entry.get("seq_id"))  # before version 2.2
    if group is None or number is None:
        return None
    operation = text.rsplit(":", 1)[-1].strip()
    ended = _time(entry.get("time_discovered_completed_ns"))
    return FlightCall(
        group=group,
        number=number,
        operation=operation.split(" ", 1)[0] or "unknown",
        p2p=p2p,
        peer=_peer(text, groups.get(group)) if p2p else None,
        sizes=_shapes(entry.get("input_sizes")),
        types=tuple(map(str, _listed(entry.get("input_dtypes")))),
        created_ns=_time(entry.get("time_created_ns")),
        started=_started(entry),
        finished=entry.get("state") == "completed"
        or ended is not None
        or entry.get("retired") is True
        or _behind(entry, text, number, p2p=p2p, done=told.get(group, (-1, -1))[1]),
        finished_ns=ended,
        where=_frames(entry.get("frames")),
    )


def _behind(entry: _Entry, text: str, number: int, *, p2p: bool, done: int) -> bool:
    """True if the status of the group says that this call has ended. gloo counts its sends, too."""
    if text.startswith(_GLOO):
        number = whole(entry.get("op_id")) or number
    return not p2p and number <= done


def _started(entry: _Entry) -> bool | None:
    """Only with TORCH_NCCL_ENABLE_TIMING does NCCL's watchdog look at starts; without it, none is known."""
    if entry.get("state") in ("started", "completed"):
        return True
    return True if _time(entry.get("time_discovered_started_ns")) is not None else None


def _batches(calls: Sequence[FlightCall]) -> list[FlightCall]:
    """The calls; the ones of a batch have the state of the entry that ends it."""
    ends = {(call.group, call.p2p, call.number): call for call in calls if call.operation == _BATCH_END}
    return [
        replace(call, finished=call.finished or end.finished, started=call.started or end.started)
        if (end := ends.get((call.group, call.p2p, call.number))) is not None
        else call
        for call in calls
    ]


def _in_order(calls: Sequence[FlightCall]) -> tuple[FlightCall, ...]:
    """The calls; one that another of its communicator has followed and ended has ended, too."""
    last: defaultdict[object, int] = defaultdict(lambda: -1)
    for call in calls:
        if call.finished:
            last[_lane(call)] = max(last[_lane(call)], call.number)
    return tuple(
        replace(call, finished=True) if not call.finished and call.number < last[_lane(call)] else call
        for call in calls
    )


def _lane(call: FlightCall) -> object:
    return (call.group, call.p2p, call.peer, call.operation if call.p2p else None)


def groups_with_sends(entries: Iterable[_Entry]) -> set[str]:
    """Groups in which gloo counted a send or receive that has no entry."""
    return {
        name
        for entry in entries
        if str(entry.get("profiling_name", "")).startswith(_GLOO)
        and whole(entry.get("op_id")) != whole(entry.get("collective_seq_id"))
        and (name := _group_of(entry)) is not None
    }


def _group_of(entry: _Entry) -> str | None:
    named = entry.get("process_group", entry.get("pg_name"))
    if isinstance(named, (list, tuple)):
        named = named[0] if named else None
    return str(named) if named is not None else None


def _peer(text: str, group: FlightGroup | None) -> int | None:
    """The global rank at the other end; torch names ranks within the group."""
    match = _PAIR.search(text)
    if match is None:
        return None
    other = int(match[3])
    if group is None or not group.ranks:
        return other
    return group.ranks[other] if other < len(group.ranks) else None


def _status(
    status: object, entries: Sequence[_Entry], groups: Mapping[str, FlightGroup]
) -> dict[str, tuple[int, int]]:
    """Returns the last enqueued and last completed number by group; 0 where there was none.

    The status names groups by another number than the configuration does. Entries hold both; groups without
    an entry are matched by order, if that agrees with all entries.
    """
    if not isinstance(status, dict):
        return {}
    names = {
        str(entry["pg_id"]): name for entry in entries if "pg_id" in entry and (name := _group_of(entry))
    }
    ids, known = _sorted(map(str, status)), _sorted(groups)
    if len(ids) == len(known):
        by_order = dict(zip(ids, known, strict=True))
        if all(by_order.get(number) == name for number, name in names.items()):
            names = by_order
    found: dict[str, tuple[int, int]] = {}
    for number, entry in status.items():
        name = names.get(str(number))
        if name is None or not isinstance(entry, dict):
            continue
        enqueued = whole(entry.get("last_enqueued_collective"))
        completed = whole(entry.get("last_completed_collective"))
        if enqueued is not None and completed is not None:
            found[name] = (max(enqueued, 0), max(completed, 0))
    return found


def _sorted(names: Iterable[str]) -> list[str]:
    return sorted(names, key=lambda name: (not name.isdigit(), int(name[:18]) if name.isdigit() else 0, name))


def _frames(frames: object) -> tuple[tuple[str, str, int], ...]:
    return tuple(
        (str(frame.get("name", "")), str(frame.get("filename", "")), whole(frame.get("line")) or 0)
        for frame in _listed(frames)
        if isinstance(frame, dict)
    )


def _shapes(value: object) -> tuple[tuple[int, ...], ...]:
    return tuple(
        tuple(item for item in shape[:_MOST_DIMENSIONS] if whole(item) is not None)
        for shape in _listed(value)
        if isinstance(shape, (list, tuple))
    )


def _listed(value: object) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else []


def _time(value: object) -> int | None:
    """A time in ns; torch writes 0 into JSON where there is none."""
    return whole(value) or None
