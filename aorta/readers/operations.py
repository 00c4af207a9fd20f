"""Timelines of operations: CSV, Parquet, and the public jobs' `timeline-*.json.gz` with `meta-*.yaml`."""

from __future__ import annotations

import csv
import gzip
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from aorta.artefacts.files import is_file, open_regular
from aorta.artefacts.operations import UNKNOWN, MeshSizes, Operations, role_of
from aorta.errors import ArtefactError
from aorta.units import plural

_LOOK = 1 << 16
_EVENT = re.compile(rb'"args"\s*:\s*\{[^{}]*"(?:mb_id|microbatch)"')
_LANE = re.compile(r"PP rank (\d+)(?:, TP rank (\d+))?")
_BOTH = re.compile(r"(\w+[-_ ](?:send|recv|receive))[-_ ](\w+[-_ ](?:send|recv|receive))")
"""A kind such as `forward-send-backward-recv`."""
_PARQUET = b"PAR1"
_MOST_NS = 2**62
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "rank": ("rank", "worker", "global_rank"),
    "step": ("step", "iteration"),
    "kind": ("kind", "optype", "op", "name", "operation"),
    "replica": ("replica", "dp_rank", "dp"),
    "stage": ("stage", "pp_rank", "pp"),
    "chunk": ("chunk", "model_chunk", "mc"),
    "microbatch": ("microbatch", "mb_id", "mb"),
}
"""What a column may be called; `start` and `duration` (or `end`) carry their unit."""
_UNITS = {"_ns": 1, "_us": 1_000, "_ms": 1_000_000, "_s": 1_000_000_000, "_ts": 1_000_000_000, "": 10**9}
"""ns of each suffix; without one, and with `_ts`, times are seconds."""
_SIZES = {"data": "dp_size", "pipeline": "pp_size", "tensor": "tp_size", "sequence": "dsp_size"}


def is_operations(path: Path) -> bool:
    """Tells whether a file holds operations of a mesh, by its content.

    Raises:
        ArtefactError: the file cannot be read.
    """
    try:
        with open_regular(path) as stream:
            head = stream.read(_LOOK)
        if head.startswith(_PARQUET):
            return True
        if head.startswith(b"\x1f\x8b"):
            with open_regular(path) as stream, gzip.open(stream) as unpacked:
                head = unpacked.read(_LOOK)
    except (OSError, EOFError, gzip.BadGzipFile):
        return False
    if head.lstrip().startswith(b"["):
        return _EVENT.search(head) is not None
    names = head.split(b"\n", 1)[0].decode("utf-8", errors="replace").strip().split(",")
    return _columns_of([name.strip() for name in names]) is not None


def find_operations(paths: Sequence[Path]) -> list[Path]:
    """Returns the files of operations among files and the direct contents of folders."""
    files: list[Path] = []
    for path in paths:
        files += sorted(path.iterdir()) if path.is_dir() else [path]
    return [path for path in files if is_file(path) and is_operations(path)]


def read_operations(path: Path) -> Operations:
    """Returns the operations of a file.

    Raises:
        ArtefactError: a column is missing, a value is none, or the file is damaged.
    """
    with open_regular(path) as stream:
        data = stream.read()
    if data.startswith(_PARQUET):
        return _of_table(path, _parquet(path, data), _sizes_beside(path))
    if data.startswith(b"\x1f\x8b"):
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError) as error:
            raise ArtefactError(f"{path}: the archive is damaged: {error}", "copy the file again") from error
    if data.lstrip().startswith(b"["):
        return _of_timeline(path, data)
    text = data.decode("utf-8-sig", errors="replace")
    rows = list(csv.reader(io.StringIO(text)))
    if len(rows) < 2:
        raise ArtefactError(f"{path}: no operation below the header", "write one row per operation")
    table = {
        name.strip(): [row[at] if at < len(row) else "" for row in rows[1:] if row]
        for at, name in enumerate(rows[0])
    }
    return _of_table(path, table, _sizes_beside(path))


def _parquet(path: Path, data: bytes) -> dict[str, list[Any]]:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise ArtefactError(
            f"{path}: Parquet needs the package pyarrow",
            "pip install pyarrow (the extra `parquet`), or write CSV",
        ) from error
    try:
        found: dict[str, list[Any]] = parquet.read_table(io.BytesIO(data)).to_pydict()
    except (OSError, ValueError) as error:
        raise ArtefactError(f"{path}: no Parquet: {error}", "copy the file again") from error
    return found


class _Arguments(msgspec.Struct):
    step: int | None = None
    model_chunk: int | None = None
    mb_id: int | None = None
    microbatch: int | None = None
    name: str | None = None


class _Event(msgspec.Struct):
    ph: str = "X"
    name: str = ""
    pid: int = 0
    tid: int = 0
    ts: float = 0.0
    dur: float = 0.0
    args: _Arguments | None = None


def _of_timeline(path: Path, data: bytes) -> Operations:
    try:
        events = msgspec.json.decode(data, type=list[_Event])
    except msgspec.DecodeError as error:
        raise ArtefactError(f"{path}: no timeline: {error}", "one JSON event per operation") from error
    places: dict[tuple[int, int], tuple[int, int]] = {}
    for event in events:
        if event.ph == "M" and event.name == "thread_name" and event.args and event.args.name:
            found = _LANE.search(event.args.name)
            if found:
                places[event.pid, event.tid] = int(found[1]), int(found[2] or 0)
    known = [
        event
        for event in events
        if event.ph == "X" and event.args is not None and event.args.step is not None
    ]
    lost = next((event for event in known if (event.pid, event.tid) not in places), None)
    if not known or lost is not None:
        why = "no operation with a step" if not known else f"thread {lost.tid} of {lost.pid} has no name"  # type: ignore[union-attr]
        raise ArtefactError(f"{path}: {why}", "name each thread 'PP rank <stage>, TP rank <rank>'")
    sizes = _sizes_beside(path)
    lanes = [places[event.pid, event.tid] for event in known]
    data_size = sizes.data or max(event.pid for event in known) + 1
    width = (sizes.tensor or max(lane for _, lane in lanes) + 1) * (sizes.sequence or 1)
    arguments = [event.args for event in known if event.args is not None]
    columns: dict[str, Sequence[Any]] = {
        "rank": [
            (stage * data_size + event.pid) * width + lane
            for event, (stage, lane) in zip(known, lanes, strict=True)
        ],
        "replica": [event.pid for event in known],
        "stage": [stage for stage, _ in lanes],
        "step": [one.step for one in arguments],
        "kind": [event.name for event in known],
        "chunk": [one.model_chunk for one in arguments],
        "microbatch": [one.mb_id if one.mb_id is not None else one.microbatch for one in arguments],
        "start_us": [event.ts for event in known],
        "duration_us": [event.dur for event in known],
    }
    return _of_table(path, columns, sizes)


def _sizes_beside(path: Path) -> MeshSizes:
    """Returns what the one `meta*.yaml` in the folder that belongs to the file says."""
    stem = re.sub(r"^(?:timeline|trace|operations)-?|\..*$", "", path.name)
    found = [one for one in sorted(path.parent.glob("meta*.y*ml")) if is_file(one)]
    own = [one for one in found if stem and stem in one.stem]
    chosen = own or (found if len(found) == 1 else [])
    if not chosen:
        return MeshSizes()
    import yaml

    try:
        meta = yaml.safe_load(chosen[0].read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise ArtefactError(f"{chosen[0]}: no YAML: {error}", "write one 'name: value' per line") from error
    if not isinstance(meta, dict):
        raise ArtefactError(f"{chosen[0]}: not a mapping", "write one 'name: value' per line")
    values = {field: _size(chosen[0], name, meta.get(name)) for field, name in _SIZES.items()}
    return MeshSizes(**values, virtual=_size(chosen[0], "vpp_size", meta.get("vpp_size")))


def _size(path: Path, name: str, value: object) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or not 0 < value <= 1_000_000:
        raise ArtefactError(f"{path}: {name} is {value!r}", "a whole number from 1 on")
    return value


def _columns_of(names: Sequence[str]) -> dict[str, str] | None:
    """Returns our name of each column to the file's; None: they are no operations."""
    folded = {name.lower(): name for name in names}
    found = {
        ours: folded[theirs[0]]
        for ours, choices in COLUMNS.items()
        if (theirs := [one for one in choices if one in folded])
    }
    for ours, stems in (("start", ("start", "ts")), ("duration", ("duration", "dur")), ("end", ("end",))):
        for stem in stems:
            for unit in _UNITS:
                if stem + unit in folded and ours not in found:
                    found[ours] = folded[stem + unit]
    if not {"rank", "step", "kind", "start"} <= set(found) or not {"duration", "end"} & set(found):
        return None
    return found


def _of_table(path: Path, table: Mapping[str, Sequence[Any]], sizes: MeshSizes) -> Operations:
    names = _columns_of(list(table))
    if names is None:
        raise ArtefactError(
            f"{path}: columns {', '.join(table)}",
            "rank, step, kind, start_us and duration_us are needed (docs/parallelism.md)",
        )
    table = _one_way(table, names["kind"])
    kinds, kind = np.unique([str(value) for value in table[names["kind"]]], return_inverse=True)
    start = _times(path, names["start"], table[names["start"]])
    if "duration" in names:
        end = start + _times(path, names["duration"], table[names["duration"]])
    else:
        end = _times(path, names["end"], table[names["end"]])
    early = np.flatnonzero(end < start)
    said = (
        [f"{plural(len(early), 'operation')} ended before the start and counts as 0 ns"] if len(early) else []
    )
    end = np.maximum(end, start)
    column = {
        ours: _whole(path, names[ours], table[names[ours]])
        if ours in names
        else np.full(len(start), UNKNOWN, dtype=np.int64)
        for ours in ("rank", "step", "replica", "stage", "chunk", "microbatch")
    }
    if (column["rank"] < 0).any() or (column["step"] < 0).any():
        raise ArtefactError(f"{path}: an operation without a rank or a step", "give each row both")
    column["stage"] = np.maximum(column["stage"], 0)
    if (column["replica"] < 0).any():
        column["replica"] = _replicas(column["rank"], column["stage"], sizes.tensor or 1)
    return Operations(
        sizes=sizes,
        kinds=tuple(str(name) for name in kinds),
        roles=tuple(role_of(str(name)) for name in kinds),
        kind=kind.reshape(-1).astype(np.int64),
        start=start - start.min(),
        end=end - start.min(),
        **column,
        said=tuple(said),
    )


def _one_way(table: Mapping[str, Sequence[Any]], kind: str) -> Mapping[str, Sequence[Any]]:
    """Returns the table with a send that is one call with a receive as two operations."""
    parts = [_BOTH.fullmatch(str(value).lower()) for value in table[kind]]
    if not any(parts):
        return table
    rows = [row for row, part in enumerate(parts) for _ in range(2 if part else 1)]
    made: dict[str, Sequence[Any]] = {name: [values[row] for row in rows] for name, values in table.items()}
    made[kind] = [
        name
        for value, part in zip(table[kind], parts, strict=True)
        for name in (part.groups() if part else (value,))
    ]
    return made


def _replicas(rank: NDArray[np.int64], stage: NDArray[np.int64], tensor: int) -> NDArray[np.int64]:
    """Returns the data-parallel rank of each row: ranks of a stage in order, `tensor` in each replica."""
    found = np.zeros(len(rank), dtype=np.int64)
    for one in np.unique(stage):
        there = stage == one
        _, place = np.unique(rank[there], return_inverse=True)
        found[there] = place.reshape(-1) // tensor
    return found


def _times(path: Path, name: str, values: Iterable[Any]) -> NDArray[np.int64]:
    lower = name.lower()
    unit = next((unit for unit in _UNITS if unit and lower.endswith(unit)), "")
    scale = 1_000 if lower in ("ts", "dur") else _UNITS[unit]
    try:
        found = np.array([float(value) for value in values]) * scale
    except (TypeError, ValueError) as error:
        raise ArtefactError(f"{path}: column {name}: {error}", "numbers only") from error
    if not np.isfinite(found).all() or (np.abs(found) >= _MOST_NS).any():
        raise ArtefactError(f"{path}: column {name} holds a time that cannot be", "check its unit")
    return np.asarray(np.rint(found), dtype=np.int64)


def _whole(path: Path, name: str, values: Iterable[Any]) -> NDArray[np.int64]:
    try:
        found = [UNKNOWN if value is None or value == "" else int(float(value)) for value in values]
        return np.array(found, dtype=np.int64)
    except (TypeError, ValueError, OverflowError) as error:
        raise ArtefactError(f"{path}: column {name}: {error}", "whole numbers only") from error
