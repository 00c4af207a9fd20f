"""Reads dumps of torch's flight recorder: pickles, of which nothing is executed, or JSON.

torch writes one file per rank, for example where `TORCH_NCCL_DEBUG_INFO_TEMP_FILE` says. Megatron and others
name these files `_dump_<rank>`. Versions 2.0 to 2.10 of the format have the fields that this reader uses, or
leave them out.
"""

from __future__ import annotations

import io
import json
import pickle
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from aorta.artefacts.analysis import Problem
from aorta.artefacts.files import is_file, is_folder, open_regular, read_regular, walk
from aorta.artefacts.flight import FlightCall, FlightGroup, Recording
from aorta.errors import ArtefactError

_LARGEST_BYTES = 256 << 20
_MARKS = (b"pg_config", b"entries")
_KINETO = (b'"traceEvents"', b'"distributedInfo"', b'"deviceProperties"')
"""A Kineto trace has the groups of the job too, in `distributedInfo`."""
_RANK = re.compile(r"(?:rank|dump|trace)[_-]?(\d+)(?:\.\w+)*$|^(\d+)(?:\.\w+)*$")
_PAIR = re.compile(r"\b(send|recv)\w*\s+(\d+)\s*(?:->|<-)\s*(\d+)")
_HINT = "expected a dump of torch's flight recorder: a pickle of plain data, or JSON"
_MOST_CALLS = 200_000
_LOOK = 1 << 16


def is_recording(head: bytes) -> bool:
    """True if a file that begins with `head` may be a dump of the flight recorder."""
    pickled = head[:1] == b"\x80" and head[1:2] <= b"\x05"
    text = head.lstrip()[:1] == b"{" and not any(mark in head for mark in _KINETO)
    return (pickled or text) and any(mark in head for mark in _MARKS)


def find(paths: Iterable[Path]) -> list[Path]:
    """The files that may be dumps by their content, among `paths` and below folders."""
    below: dict[Path, None] = {}
    for path in paths:
        below.update(dict.fromkeys(sorted(walk(path)) if is_folder(path) else [path]))
    return [path for path in below if is_file(path) and is_recording(_head(path))]


def _head(path: Path) -> bytes:
    try:
        with open_regular(path) as stream:
            return stream.read(_LOOK)
    except (OSError, ArtefactError):
        return b""


def read_all(paths: Sequence[Path]) -> tuple[list[Recording], list[Problem]]:
    """One recording per rank, and why the other files are not used.

    Raises:
        ArtefactError: none of them can be used.
    """
    found: dict[int, Recording] = {}
    problems = []
    for path in paths:
        try:
            recording = read(path)
        except ArtefactError as error:
            problems.append(Problem(file=str(path), reason=error.message))
            continue
        if recording.rank is None:
            reason = "neither its name nor its groups say which rank it is"
        elif recording.rank in found:
            reason = f"another dump of rank {recording.rank}: {found[recording.rank].source} is used"
        else:
            found[recording.rank] = recording
            continue
        problems.append(Problem(file=str(path), reason=f"{path}: {reason}"))
    if not found:
        raise ArtefactError("; ".join(problem.reason for problem in problems), _HINT)
    return [found[rank] for rank in sorted(found)], problems


def read(path: Path) -> Recording:
    """The recording of one rank.

    Raises:
        ArtefactError: the file cannot be read, asks to run code, or is no dump.
    """
    try:
        data = read_regular(path, _LARGEST_BYTES)
    except OSError as error:
        raise ArtefactError(f"{path}: {error.strerror}") from error
    return decode(data, str(path), rank_in_name(path.name))


def rank_in_name(name: str) -> int | None:
    """The rank that a file's name ends in: `_dump_3`, `nccl_trace_rank_3`, `3.json`."""
    match = _RANK.search(name)
    return int(match[1] or match[2]) if match else None


def decode(data: bytes, source: str, rank: int | None = None) -> Recording:
    """The recording in `data`.

    Args:
        data: a whole dump.
        source: what errors call it.
        rank: of the process; None: taken from the groups, whose common member it is.

    Raises:
        ArtefactError: `data` asks to run code, or is no dump.
    """
    content = _plain(data, source)
    entries = content.get("entries") if isinstance(content, dict) else None
    if not isinstance(content, dict) or not isinstance(entries, list):
        raise ArtefactError(f"{source}: holds no list of entries", _HINT)
    if len(entries) > _MOST_CALLS:
        raise ArtefactError(f"{source}: more than {_MOST_CALLS} entries", _HINT)
    groups = _groups(content.get("pg_config"))
    numbered = [entry for entry in entries if isinstance(entry, dict)]
    calls = tuple(call for entry in numbered if (call := _call(entry, groups)) is not None)
    status = _status(content.get("pg_status"), numbered, groups)
    mixed = {call.group for call in calls if call.p2p}
    last: dict[str, int] = {}
    for call in calls:
        if not call.p2p:
            last[call.group] = max(last.get(call.group, 0), call.number)
    pure = {name: pair for name, pair in status.items() if name not in mixed}
    return Recording(
        source=source,
        rank=rank if rank is not None else _common_rank(groups),
        groups=groups,
        calls=calls,
        enqueued=last | {name: max(pair[0], last.get(name, pair[0])) for name, pair in pure.items()},
        completed={name: pair[1] for name, pair in pure.items()},
    )


class _PlainData(pickle.Unpickler):
    """Refuses everything but plain data: no class and no function can be named."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")

    def persistent_load(self, pid: object) -> Any:  # noqa: ARG002 - the name is pickle's
        raise pickle.UnpicklingError("it refers to objects outside of it")


def _plain(data: bytes, source: str) -> object:
    try:
        if data[:1] == b"\x80":
            return _PlainData(io.BytesIO(data)).load()
        return json.loads(data)
    except pickle.UnpicklingError as error:
        raise ArtefactError(f"{source}: is no plain data: {error}", _HINT) from error
    except Exception as error:  # a cut or hostile file ends in any of a dozen errors
        raise ArtefactError(f"{source}: {type(error).__name__} while it was decoded", _HINT) from error


def _groups(config: object) -> dict[str, FlightGroup]:
    """The groups by name; the description is kept, ranks may be a list or its text."""
    found: dict[str, FlightGroup] = {}
    for name, entry in config.items() if isinstance(config, dict) else ():
        if not isinstance(entry, dict):
            continue
        key = str(entry.get("name", name))
        found[key] = FlightGroup(key, str(entry.get("desc", "")), _ranks(entry.get("ranks")))
    return found


def _ranks(value: object) -> tuple[int, ...]:
    if isinstance(value, str):
        return tuple(int(word) for word in re.findall(r"\d+", value))
    if isinstance(value, list):
        return tuple(item for item in value if isinstance(item, int))
    return ()


def _common_rank(groups: Mapping[str, FlightGroup]) -> int | None:
    """The one rank that is a member of every group of a process."""
    members = [set(group.ranks) for group in groups.values() if group.ranks]
    common = set.intersection(*members) if members else set()
    return common.pop() if len(common) == 1 else None


def _call(entry: Mapping[str, Any], groups: Mapping[str, FlightGroup]) -> FlightCall | None:
    group = _group_of(entry)
    collective, p2p = _number(entry.get("collective_seq_id")), _number(entry.get("p2p_seq_id"))
    text = str(entry.get("profiling_name", ""))
    is_p2p = bool(entry.get("is_p2p", False)) or _PAIR.search(text) is not None
    number = p2p if is_p2p else collective
    if number is None:
        number = _number(entry.get("seq_id"))  # before version 2.2
    if group is None or number is None:
        return None
    state = str(entry.get("state", ""))
    ended = _number(entry.get("time_discovered_completed_ns"))
    operation = text.rsplit(":", 1)[-1].strip()
    return FlightCall(
        group=group,
        number=number,
        operation=operation.split(" ", 1)[0] or "unknown",
        p2p=is_p2p,
        peer=_peer(text, groups.get(group)) if is_p2p else None,
        sizes=_shapes(entry.get("input_sizes")),
        types=tuple(map(str, _listed(entry.get("input_dtypes")))),
        created_ns=_number(entry.get("time_created_ns")),
        started=_started(state, entry),
        finished=state == "completed" or ended is not None,
        finished_ns=ended,
        where=_frames(entry.get("frames")),
    )


def _started(state: str, entry: Mapping[str, Any]) -> bool | None:
    """Only with TORCH_NCCL_ENABLE_TIMING does NCCL's watchdog look at starts; without it, none is known."""
    if state in ("started", "completed") or _number(entry.get("time_discovered_started_ns")) is not None:
        return True
    return None


def _group_of(entry: Mapping[str, Any]) -> str | None:
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
    status: object, entries: Sequence[Mapping[str, Any]], groups: Mapping[str, FlightGroup]
) -> dict[str, tuple[int, int]]:
    """By group: last enqueued and last completed number.

    The status names groups by another number than the configuration does. Entries hold both; groups without
    an entry are matched by order, if that agrees with all entries.
    """
    if not isinstance(status, dict):
        return {}
    names = {
        str(entry["pg_id"]): name for entry in entries if "pg_id" in entry and (name := _group_of(entry))
    }
    ids, known = _in_order(map(str, status)), _in_order(groups)
    if len(ids) == len(known):
        by_order = dict(zip(ids, known, strict=True))
        if all(by_order.get(number) == name for number, name in names.items()):
            names = by_order
    found: dict[str, tuple[int, int]] = {}
    for number, entry in status.items():
        name = names.get(str(number))
        if name is None or not isinstance(entry, dict):
            continue
        enqueued = _number(entry.get("last_enqueued_collective"))
        completed = _number(entry.get("last_completed_collective"))
        if enqueued is not None and completed is not None and enqueued >= 0:
            found[name] = (enqueued, completed)
    return found


def _in_order(names: Any) -> list[str]:
    return sorted(names, key=lambda name: (not name.isdigit(), int(name) if name.isdigit() else 0, name))


def _frames(frames: object) -> tuple[tuple[str, str, int], ...]:
    return tuple(
        (str(frame.get("name", "")), str(frame.get("filename", "")), _number(frame.get("line")) or 0)
        for frame in _listed(frames)
        if isinstance(frame, dict)
    )


def _shapes(value: object) -> tuple[tuple[int, ...], ...]:
    return tuple(
        tuple(item for item in shape if isinstance(item, int))
        for shape in _listed(value)
        if isinstance(shape, list)
    )


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
