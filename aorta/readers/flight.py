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
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from aorta.artefacts.files import read_regular
from aorta.artefacts.flight import FlightGroup, Recording
from aorta.errors import ArtefactError
from aorta.readers.flight_calls import calls_of, groups_with_sends, progress, taken, whole

_LARGEST_BYTES = 256 << 20
_RANK = re.compile(r"(?:rank|dump|trace)[_-]?(\d{1,9})(?:\.\w+)*$|^(\d{1,9})(?:\.\w+)*$")
HINT = "expected a dump of torch's flight recorder: a pickle of plain data, or JSON"
_MOST_CALLS = 200_000


def read(path: Path) -> Recording:
    """The recording of one rank.

    Raises:
        ArtefactError: the file cannot be read, asks to run code, or is no dump.
    """
    recording, written_ns = recording_of(path)
    return recording if recording.taken_ns is not None else replace(recording, taken_ns=written_ns)


def recording_of(path: Path) -> tuple[Recording, int]:
    """The recording as its content tells it, and the time of its file.

    Raises:
        ArtefactError: as `read`.
    """
    try:
        data = read_regular(path, _LARGEST_BYTES)
        written_ns = path.stat().st_mtime_ns
    except OSError as error:
        raise ArtefactError(f"{path}: {error.strerror}") from error
    return decode(data, str(path), rank_in_name(path.name)), written_ns


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
        raise ArtefactError(f"{source}: contains no list of entries", HINT)
    if len(entries) > _MOST_CALLS:
        raise ArtefactError(f"{source}: more than {_MOST_CALLS} entries", HINT)
    groups = _groups(content.get("pg_config"))
    numbered = [entry for entry in entries if isinstance(entry, dict)]
    calls = calls_of(numbered, groups, content.get("pg_status"))
    complete = _complete(numbered, content.get("pg_status"))
    enqueued, completed = progress(content.get("pg_status"), numbered, groups, calls, complete=complete)
    return Recording(
        source=source,
        rank=_rank(content, groups, rank),
        groups=groups,
        calls=calls,
        enqueued=enqueued,
        completed=completed,
        whole=complete,
        unseen_sends=bool(groups_with_sends(numbered)),
        taken_ns=taken(numbered),
    )


def _complete(entries: Sequence[Mapping[str, Any]], status: object) -> bool:
    """True if no entry was overwritten or left out: the records count from 0."""
    if not entries:
        return not status
    numbers = {number for entry in entries if (number := whole(entry.get("record_id"))) is not None}
    return len(numbers) == len(entries) and numbers == set(range(len(numbers)))


def _rank(content: Mapping[str, Any], groups: Mapping[str, FlightGroup], named: int | None) -> int | None:
    """The rank of a dump: what its groups leave possible, else what it says, else what its name says."""
    common = _common_rank(groups)
    if common is not None:
        return common
    members = {rank for group in groups.values() for rank in group.ranks}
    told = (whole(content.get("rank")), named)
    return next((rank for rank in told if rank is not None and (not members or rank in members)), None)


def decode_at(data: bytes, source: str, rank: int | None, taken_ns: int) -> Recording:
    """The recording in `data`, which a process gave at `taken_ns` unless its entries tell a time.

    Raises:
        ArtefactError: as `decode`.
    """
    found = decode(data, source, rank)
    return found if found.taken_ns is not None else replace(found, taken_ns=taken_ns)


class _PlainData(pickle._Unpickler):
    """Refuses everything but plain data: no class and no function can be named.

    The decoder in Python: the one in C takes gigabytes for a few bytes that name a far place of its memory.
    """

    dispatch = {  # noqa: RUF012 - as pickle declares it
        code: how for code, how in pickle._Unpickler.dispatch.items() if code != pickle.BYTEARRAY8[0]
    }
    """Without what takes as much memory as a few bytes ask for."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")

    def persistent_load(self, pid: object) -> Any:  # noqa: ARG002 - the name is pickle's
        raise pickle.UnpicklingError("it refers to objects outside the file")


def _plain(data: bytes, source: str) -> object:
    try:
        if data[:1] == b"\x80":
            return _PlainData(io.BytesIO(data)).load()
        return json.loads(data)
    except pickle.UnpicklingError as error:
        raise ArtefactError(f"{source}: is not plain data: {error}", HINT) from error
    except Exception as error:  # a cut or hostile file ends in any of a dozen errors
        raise ArtefactError(f"{source}: {type(error).__name__} while it was decoded", HINT) from error


def _groups(config: object) -> dict[str, FlightGroup]:
    """The groups by name; the description is kept, ranks may be a list or its text."""
    found: dict[str, FlightGroup] = {}
    for name, entry in config.items() if isinstance(config, dict) else ():
        if not isinstance(entry, dict):
            continue
        key = str(entry.get("name", name))
        if not key:
            continue  # gloo describes no group
        found[key] = FlightGroup(key, str(entry.get("desc", "")), _ranks(entry.get("ranks")))
    return found


def _ranks(value: object) -> tuple[int, ...]:
    if isinstance(value, str):
        return tuple(int(word) for word in re.findall(r"\b\d{1,9}\b", value))
    if isinstance(value, list):
        return tuple(item for item in value if whole(item) is not None)
    return ()


def _common_rank(groups: Mapping[str, FlightGroup]) -> int | None:
    """The one rank that is a member of every group of a process."""
    members = [set(group.ranks) for group in groups.values() if group.ranks]
    common = set.intersection(*members) if members else set()
    return common.pop() if len(common) == 1 else None
