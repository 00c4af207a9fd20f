"""Reads the JSON output of rocprofv3: one trace for each process in the file."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from aorta.artefacts.events import ABSENT, Kind, Trace
from aorta.artefacts.files import open_regular
from aorta.errors import ArtefactError
from aorta.readers.kineto_stream import GzipDamageError, gzip_blocks, is_gzip, plain_blocks
from aorta.readers.rocprof import RocprofRows, host_role
from aorta.readers.trace_build import file_rank

_MOST_BYTES = 512 << 20


class _Handle(Struct):
    handle: int = ABSENT


class _Correlation(Struct):
    internal: int = ABSENT


class _Size(Struct):
    x: int = ABSENT
    y: int = ABSENT
    z: int = ABSENT


class _Dispatch(Struct):
    agent_id: _Handle = field(default_factory=_Handle)
    queue_id: _Handle = field(default_factory=_Handle)
    kernel_id: int = ABSENT
    workgroup_size: _Size = field(default_factory=_Size)
    grid_size: _Size = field(default_factory=_Size)


class _Record(Struct):
    kind: int = ABSENT
    operation: int = ABSENT
    thread_id: int = ABSENT
    start_timestamp: int = ABSENT
    end_timestamp: int = ABSENT
    correlation_id: _Correlation = field(default_factory=_Correlation)
    stream_id: _Handle | None = None
    dispatch_info: _Dispatch | None = None
    src_agent_id: _Handle = field(default_factory=_Handle)
    dst_agent_id: _Handle = field(default_factory=_Handle)
    bytes: int = ABSENT


class _Buffers(Struct):
    kernel_dispatch: list[_Record] = field(default_factory=list)
    memory_copy: list[_Record] = field(default_factory=list)
    hip_api: list[_Record] = field(default_factory=list)
    hsa_api: list[_Record] = field(default_factory=list)
    rccl_api: list[_Record] = field(default_factory=list)
    marker_api: list[_Record] = field(default_factory=list)


class _Operations(Struct):
    kind: str = ""
    operations: list[str] = field(default_factory=list)


class _Marker(Struct):
    key: int = ABSENT
    value: str = ""


class _Strings(Struct):
    buffer_records: list[_Operations] = field(default_factory=list)
    marker_api: list[_Marker] = field(default_factory=list)


class _Symbol(Struct):
    kernel_id: int
    formatted_kernel_name: str = ""


class _Agent(Struct):
    id: _Handle = field(default_factory=_Handle)
    type: int = ABSENT
    gpu_index: int = ABSENT


class _Process(Struct):
    agents: list[_Agent] = field(default_factory=list)
    strings: _Strings = field(default_factory=_Strings)
    kernel_symbols: list[_Symbol] = field(default_factory=list)
    buffer_records: _Buffers = field(default_factory=_Buffers)


_ROOT = "rocprofiler-sdk-tool"
_BUFFERS = _Buffers.__struct_fields__


class _File(Struct):
    processes: list[_Process] = field(name=_ROOT)


def read(path: Path) -> list[Trace]:
    """A trace for each process in the file; its rank is the file name's where it holds one process.

    Raises:
        ArtefactError: the file cannot be read, is cut off or is not such JSON.
    """
    try:
        with open_regular(path) as stream:
            blocks = gzip_blocks(stream) if is_gzip(path) else plain_blocks(stream)
            processes, lost = _processes(_at_most(path, blocks))
    except OSError as error:
        raise ArtefactError(f"{path}: {error.strerror}") from error
    except GzipDamageError as error:
        raise ArtefactError(f"{path}: {error}", hint="copy the file again") from error
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ArtefactError(
            f"{path}: not whole rocprofv3 JSON ({error})",
            hint="rocprofv3 writes the file when the program ends; if the program is killed, the file is "
            "incomplete",
        ) from error
    rank = file_rank(path) if len(processes) == 1 else None
    traces = []
    for process in processes:
        rows = _trace(process)
        if lost:
            rows.faults["records not readable"] += lost
        traces.append(rows.trace(path, rank, None if rank is None else "file name"))
    return traces


def _processes(text: bytes) -> tuple[list[_Process], int]:
    """The processes of a file, and the number of records that are not readable.

    Values that are not needed have no effect: nulls, texts and numbers that are not finite are left out.

    Raises:
        msgspec.DecodeError, ValueError: it is no whole JSON, or no output of rocprofv3.
    """
    try:
        return msgspec.json.decode(text, type=_File).processes, 0
    except msgspec.DecodeError:
        found = json.loads(text)  # takes NaN and Infinity, and refuses what is cut off
    processes, lost = [], 0
    listed = found.get(_ROOT) if isinstance(found, dict) else None
    for process in listed if isinstance(listed, list) else []:
        known = process if isinstance(process, dict) else {}
        buffers = known.get("buffer_records")
        records = {}
        for name, rows in (buffers if isinstance(buffers, dict) else {}).items():
            kept = [record for row in rows if (record := _record(row)) is not None]
            records[name], lost = kept, lost + len(rows) - len(kept)
        rest = {name: value for name, value in known.items() if name != "buffer_records"}
        made: _Process = msgspec.convert(_numeric(rest, texts=True), _Process, strict=False)
        made.buffer_records = _Buffers(**{n: r for n, r in records.items() if n in _BUFFERS})
        processes.append(made)
    if not processes:
        raise ValueError(f"no process in {_ROOT}")
    return processes, lost


def _record(row: Any) -> _Record | None:
    try:
        found: _Record = msgspec.convert(_numeric(row), _Record, strict=False)
    except msgspec.ValidationError:
        return None
    return found


def _numeric(value: Any, *, texts: bool = False) -> Any:
    """The value without nulls and infinite numbers; unless `texts`, without texts that are no numbers too."""
    if isinstance(value, dict):
        cleaned = {key: _numeric(item, texts=texts) for key, item in value.items()}
        return {key: item for key, item in cleaned.items() if item is not None}
    if isinstance(value, list):
        return [item for one in value if (item := _numeric(one, texts=texts)) is not None]
    if isinstance(value, float):
        return int(value) if math.isfinite(value) else None
    if isinstance(value, str) and not texts:
        return int(value) if value.isascii() and value.isdecimal() else None
    return value


def _at_most(path: Path, blocks: Iterable[bytes]) -> bytes:
    """The blocks as one; this JSON can only be decoded whole."""
    found, size = [], 0
    for block in blocks:
        found.append(block)
        size += len(block)
        if size > _MOST_BYTES:
            raise ArtefactError(
                f"{path} contains more than {_MOST_BYTES >> 20} MiB of JSON",
                "have rocprofv3 write rocpd or CSV",
            )
    return b"".join(found)


def _trace(process: _Process) -> RocprofRows:
    rows = RocprofRows()
    names = {symbol.kernel_id: symbol.formatted_kernel_name for symbol in process.kernel_symbols}
    gpus = {agent.id.handle: agent.gpu_index for agent in process.agents if agent.gpu_index >= 0}
    records = process.buffer_records
    for record in records.kernel_dispatch:
        info = record.dispatch_info or _Dispatch()
        grid, block = info.grid_size, info.workgroup_size
        rows.add_gpu(
            record.start_timestamp,
            record.end_timestamp,
            Kind.COMPUTE,
            names.get(info.kernel_id, ""),
            device=gpus.get(info.agent_id.handle, ABSENT),
            stream=(record.stream_id or info.queue_id).handle,
            correlation=record.correlation_id.internal,
            shape=hash((grid.x, grid.y, grid.z, block.x, block.y, block.z)) & ((1 << 63) - 1),
        )
    operation = _operations(process)
    for record in records.memory_copy:
        ends = (record.src_agent_id.handle, record.dst_agent_id.handle)
        rows.add_gpu(
            record.start_timestamp,
            record.end_timestamp,
            Kind.COPY,
            operation(record) or "memory copy",
            device=next((gpus[end] for end in ends if end in gpus), ABSENT),
            stream=(record.stream_id or _Handle()).handle,
            correlation=record.correlation_id.internal,
            size=record.bytes,
        )
    markers = {marker.key: marker.value for marker in process.strings.marker_api}
    for domain in ("hip_api", "hsa_api", "rccl_api", "marker_api"):
        for record in getattr(records, domain):
            name = operation(record)
            if domain == "marker_api":
                name = markers.get(record.correlation_id.internal, name)
            rows.add_host(
                record.start_timestamp,
                record.end_timestamp,
                host_role(domain.upper(), name),
                name,
                thread=record.thread_id,
                correlation=record.correlation_id.internal,
            )
    return rows


def _operations(process: _Process) -> Callable[[_Record], str]:
    """A function that gives the name of a record's operation; empty if the file does not have it."""
    kinds = process.strings.buffer_records

    def name(record: _Record) -> str:
        if not 0 <= record.kind < len(kinds):
            return ""
        operations = kinds[record.kind].operations
        return operations[record.operation] if 0 <= record.operation < len(operations) else ""

    return name
