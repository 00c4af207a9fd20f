"""Timelines of operations: CSV, Parquet, and the public jobs' `timeline-*.json.gz` with `meta-*.yaml`."""

from __future__ import annotations

import csv
import gzip
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from aorta.artefacts.files import is_file, open_regular, read_regular
from aorta.artefacts.operations import MeshSizes, OperationRole, Operations, backwards, role_of
from aorta.errors import ArtefactError
from aorta.readers.operation_columns import TableColumns, delimiter
from aorta.readers.operation_files import PARQUET
from aorta.units import plural

_META_BYTES = 1 << 20
_LANE = re.compile(r"PP rank (\d+)(?:, TP rank (\d+))?")
_BOTH = re.compile(r"(\w+[-_ ](?:send|recv|receive))[-_ ](\w+[-_ ](?:send|recv|receive))")
"""A kind such as `forward-send-backward-recv`."""
_SIZES = {"data": "dp_size", "pipeline": "pp_size", "tensor": "tp_size", "sequence": "dsp_size"}


def read_operations(path: Path) -> Operations:
    """Returns the operations of a file.

    Raises:
        ArtefactError: a column is missing, a value is none, or the file is damaged.
    """
    with open_regular(path) as stream:
        data = stream.read()
    if data.startswith(PARQUET):
        return _of_table(TableColumns(path, _parquet(path, data)), _sizes_beside(path))
    if data.startswith(b"\x1f\x8b"):
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError) as error:
            raise ArtefactError(f"{path}: the archive is damaged: {error}", "copy the file again") from error
    if data.lstrip().startswith(b"["):
        return _of_timeline(path, data)
    text = data.decode("utf-8-sig", errors="replace")
    reader = csv.reader(io.StringIO(text), delimiter=delimiter(text.split("\n", 1)[0]))
    header, *rows = [(reader.line_num, row) for row in reader if row] or [(0, [])]
    if not rows:
        raise ArtefactError(f"{path}: no operation below the header", "write one row per operation")
    values = {
        name.strip(): [row[at].strip() if at < len(row) else "" for _, row in rows]
        for at, name in enumerate(header[1])
    }
    return _of_table(TableColumns(path, values, [line for line, _ in rows]), _sizes_beside(path))


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
    return _of_table(TableColumns(path, columns), sizes)


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
        meta = yaml.safe_load(read_regular(chosen[0], _META_BYTES))
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


def _of_table(table: TableColumns, sizes: MeshSizes) -> Operations:
    table.one_job()
    table = _one_way(table)
    kinds, kind = np.unique([str(value) for value in table.values("kind")], return_inverse=True)
    start, end = table.times()
    early = np.flatnonzero(end < start)
    said = (
        [f"{plural(len(early), 'operation')} ended before the start and counts as 0 ns"] if len(early) else []
    )
    end = np.maximum(end, start)
    if not (end > start).any():
        raise ArtefactError(
            f"{table.path}: all operations have a duration of 0", "check the durations and their unit"
        )
    needed = {name: table.whole(name, needed=True) for name in ("rank", "step")}
    column = needed | {name: table.whole(name) for name in ("replica", "stage", "chunk", "microbatch")}
    lane = table.whole("tensor")
    if sizes.tensor is None and (lane >= 0).all():
        sizes = replace(sizes, tensor=len(np.unique(lane)))
    if (column["replica"] < 0).any():
        column["replica"] = _replicas(column["rank"], np.maximum(column["stage"], 0), sizes.tensor or 1)
    job = Operations(
        sizes=sizes,
        kinds=tuple(str(name) for name in kinds),
        roles=tuple(role_of(str(name)) for name in kinds),
        kind=kind.reshape(-1).astype(np.int64),
        start=start - start.min(),
        end=end - start.min(),
        **column,
        said=tuple(said),
    )
    return _from_stage_0(job)


def _from_stage_0(job: Operations) -> Operations:
    """Returns the job with stages counted from 0: from 1 on, the first stage is the one that receives nothing
    from an earlier one.
    """
    known = job.stage[job.stage >= 0]
    lowest = int(known.min()) if len(known) else 0
    if lowest != 1:
        return replace(job, stage=np.maximum(job.stage, 0))
    back = np.array([backwards(name) for name in job.kinds])[job.kind]
    first = job.stage == lowest
    if (first & (job.role == int(OperationRole.RECEIVE)) & ~back).any():
        return job
    return replace(
        job, stage=job.stage - 1, said=(*job.said, "its stages are counted from 1; aorta counts them from 0")
    )


def _one_way(table: TableColumns) -> TableColumns:
    """Returns the table with a send that is one call with a receive as two operations."""
    kinds = [str(value) for value in table.values("kind")]
    parts = [_BOTH.fullmatch(value.lower()) for value in kinds]
    if not any(parts):
        return table
    rows = [row for row, part in enumerate(parts) for _ in range(2 if part else 1)]
    names = [
        name
        for value, part in zip(kinds, parts, strict=True)
        for name in (part.groups() if part else (value,))
    ]
    return table.chosen(rows, names)


def _replicas(rank: NDArray[np.int64], stage: NDArray[np.int64], tensor: int) -> NDArray[np.int64]:
    """Returns the data-parallel rank of each row: ranks of a stage in order, `tensor` in each replica."""
    found = np.zeros(len(rank), dtype=np.int64)
    for one in np.unique(stage):
        there = stage == one
        _, place = np.unique(rank[there], return_inverse=True)
        found[there] = place.reshape(-1) // tensor
    return found
