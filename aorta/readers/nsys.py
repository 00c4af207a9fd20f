"""Reads Nsight Systems exports (SQLite, plain or gzip, 2022.4 and later) and, where nsys is installed, its
reports.

One export may hold several ranks: each process that used a GPU is one. Tables exist only where they have
rows, and newer versions add columns; what is missing stays absent.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from aorta.artefacts.analysis import Problem
from aorta.artefacts.events import (
    ABSENT,
    Column,
    GpuEvents,
    Kind,
    Ranges,
    Role,
    Trace,
    build,
    concatenate,
    empty_trace,
    take,
)
from aorta.errors import ArtefactError
from aorta.readers.kernels import roles_of
from aorta.readers.trace_build import file_rank, finish
from aorta.readers.trace_sqlite import Database, open_database

FORMAT = "nsys"

_KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
_COPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
_SET = "CUPTI_ACTIVITY_KIND_MEMSET"
_RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
_TABLES = (_KERNEL, _COPY, _SET, _RUNTIME, "NVTX_EVENTS")
_RANGE_EVENTS = "eventType IN (59, 60)"  # push/pop and start/end ranges
_COPY_NAMES = {1: "Memcpy HtoD", 2: "Memcpy DtoH", 8: "Memcpy DtoD", 10: "Memcpy PtoP"}
_RANK_MARK = re.compile(r"(?:aorta\.)?rank[ =:#_]*(\d+)", re.IGNORECASE)
_EXPORT_S = 1800
_DENSE_SPAN = 1 << 22
"""Values that a table by value may cover: string ids count from 0, process numbers have 22 bits."""
_THREAD_BITS = 24
"""A globalTid is its globalPid with the thread in the low 24 bits."""
_PID_MASK = 0xFFFFFF
"""Of what is above these bits, the process number; the rest is the machine."""


class _Names:
    """Codes for names, and for the export's own string ids."""

    def __init__(self, database: Database) -> None:
        self.codes: dict[str, int] = {}
        self._by_id: dict[int, str] = {}
        if database.has("StringIds", "id", "value"):
            query = "SELECT id, value FROM StringIds WHERE typeof(id) = 'integer' AND typeof(value) = 'text'"
            self._by_id = dict(database.connection.execute(query).fetchall())

    def code(self, name: str) -> int:
        return self.codes.setdefault(name, len(self.codes))

    def of_ids(self, ids: Column) -> Column:
        """Codes of string ids; an id without a string is ABSENT."""
        values, inverse = _distinct(ids)
        texts = [self._by_id.get(value) for value in values.tolist()]
        return np.array([ABSENT if text is None else self.code(text) for text in texts], dtype=np.int64)[
            inverse
        ]


def _distinct(column: Column) -> tuple[Column, Column]:
    """The values of a column, ascending, and which of them each row has; small numbers need no sorting."""
    low = int(column.min(initial=0))
    span = int(column.max(initial=0)) - low
    if span > _DENSE_SPAN:
        values, inverse = np.unique(column, return_inverse=True)
        return values, inverse
    shifted = column - low
    used = np.zeros(span + 1, dtype=np.bool_)
    used[shifted] = True
    return np.flatnonzero(used) + low, (np.cumsum(used) - 1)[shifted]


def read(path: Path) -> list[Trace]:
    """A trace for each rank in an export (`.sqlite`, `.sqlite.gz`) or report (`.nsys-rep`, needs nsys).

    Raises:
        ArtefactError: not such a file, damaged, or without any activity.
    """
    if path.suffix == ".nsys-rep":
        return _read_report(path)
    with open_database(path) as database:
        if not any(database.has(table) for table in _TABLES):
            raise ArtefactError(
                f"{path}: no CUDA activity and no NVTX ranges in it",
                hint="was the capture range reached? cudaProfilerStart must have run, and -t have cuda,nvtx",
            )
        return _ranks(database)


def _read_report(path: Path) -> list[Trace]:
    """Export a report with the installed nsys and read that."""
    program = shutil.which("nsys")
    if program is None:
        raise ArtefactError(
            f"{path}: an Nsight Systems report needs nsys to be read, and none is installed here",
            hint=f"where nsys is: nsys export --type sqlite {path.name}; then analyse the .sqlite file",
        )
    with tempfile.TemporaryDirectory(prefix="aorta-") as folder:
        export = Path(folder) / "export.sqlite"
        options = ["--type", "sqlite", "--force-overwrite", "true", "--output", str(export)]
        try:
            command = [program, "export", *options, str(path)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=_EXPORT_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise ArtefactError(f"{path}: nsys export took more than {_EXPORT_S} s") from error
        if done.returncode or not export.exists():
            said = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no message"]
            raise ArtefactError(f"{path}: nsys export failed ({done.returncode}): {said[0]}")
        return [_renamed(trace, path) for trace in read(export)]


def _renamed(trace: Trace, path: Path) -> Trace:
    rank = file_rank(path) if trace.rank is None else trace.rank
    basis = trace.rank_basis or (None if rank is None else "file name")
    problems = tuple(Problem(file=str(path), reason=problem.reason) for problem in trace.problems)
    return replace(trace, source=str(path), rank=rank, rank_basis=basis, problems=problems)


def _ranks(database: Database) -> list[Trace]:
    """The traces of the processes that used a GPU or, without any, of those with NVTX ranges."""
    names = _Names(database)
    gpu, gpu_process = _gpu_events(database, names)
    host, host_process, unended = _host_ranges(database, names)
    processes = _distinct(gpu_process if len(gpu) else host_process)[0].tolist()
    parts = {process: take(gpu, np.flatnonzero(gpu_process == process)) for process in processes}
    problems: tuple[Problem, ...] = ()
    if unended:
        problems = (Problem(file=str(database.path), reason=f"{unended} NVTX ranges have no end"),)
    common = replace(
        empty_trace(str(database.path), FORMAT),
        names=tuple(names.codes),
        epoch_ns=_epoch(database),
        host_name=_host(database),
        problems=problems,
    )
    traces = []
    for process, (rank, basis) in zip(processes, _rank_numbers(database, parts), strict=True):
        rows = np.flatnonzero(host_process == process)
        rows = rows[np.argsort(host.start_ns[rows], kind="stable")]
        notes = (f"rank {rank} by {basis}",) if basis == "the order of devices" else ()
        own = replace(common, rank=rank, rank_basis=basis, notes=notes, gpu=parts[process])
        traces.append(finish(replace(own, host=take(host, rows))))
    return traces


def _gpu_events(database: Database, names: _Names) -> tuple[GpuEvents, Column]:
    """All GPU activity, and the process of each event."""
    tables: list[GpuEvents] = []
    processes: list[Column] = []
    shared = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
    if database.has(_KERNEL, "start", "end"):
        *core, demangled, short, gx, gy, gz, bx, by, bz = database.columns(
            _KERNEL,
            *shared,
            "demangledName",
            "shortName",
            "gridX",
            "gridY",
            "gridZ",
            "blockX",
            "blockY",
            "blockZ",
        )
        shape: Column = gx.copy()
        for size in (gy, gz, bx, by, bz):
            shape[:] = shape * 1_000_003 + size
        name = names.of_ids(np.where(demangled == ABSENT, short, demangled))
        tables.append(_table(core, kind=Kind.COMPUTE, name=name, shape=shape & ((1 << 63) - 1)))
        processes.append(core[-1])
    if database.has(_COPY, "start", "end"):
        *core, size, copy = database.columns(_COPY, *shared, "bytes", "copyKind")
        kinds, inverse = _distinct(copy)
        texts = [_COPY_NAMES.get(kind, "Memcpy") for kind in kinds.tolist()]
        codes = np.array([names.code(text) for text in texts], dtype=np.int64)
        tables.append(_table(core, kind=Kind.COPY, name=codes[inverse], bytes=size))
        processes.append(core[-1])
    if database.has(_SET, "start", "end"):
        *core, size = database.columns(_SET, *shared, "bytes")
        tables.append(_table(core, kind=Kind.MEMSET, name=names.code("Memset"), bytes=size))
        processes.append(core[-1])
    process = np.concatenate([np.empty(0, dtype=np.int64), *processes])
    return concatenate(GpuEvents, tables), process >> _THREAD_BITS


def _table(core: list[Column], **columns: object) -> GpuEvents:
    start, end, device, stream, correlation, _ = core
    return build(
        GpuEvents,
        len(start),
        start_ns=start,
        end_ns=np.maximum(end, start),
        device=device,
        stream=stream,
        correlation=correlation,
        **columns,
    )


def _host_ranges(database: Database, names: _Names) -> tuple[Ranges, Column, int]:
    """NVTX ranges and driver calls, the process of each, and the number of ranges without an end."""
    parts: list[Ranges] = []
    unended = 0
    if database.has("NVTX_EVENTS", "start", "end", "eventType", "globalTid"):
        start, end, thread, text_id = database.columns(
            "NVTX_EVENTS", "start", "end", "globalTid", "textId", where=_RANGE_EVENTS
        )
        name = np.where(text_id == ABSENT, _texts(database, names), names.of_ids(text_id))
        ended = end >= start
        unended = int((~ended).sum())
        parts.append(_ranges(start[ended], end[ended], thread[ended], name[ended], names, api=False))
    if database.has(_RUNTIME, "start", "end", "globalTid", "nameId"):
        start, end, thread, name_id, correlation = database.columns(
            _RUNTIME, "start", "end", "globalTid", "nameId", "correlationId"
        )
        calls = _ranges(start, end, thread, names.of_ids(name_id), names, api=True)
        calls = replace(calls, correlation=correlation)
        ended = end >= start
        parts.append(calls if ended.all() else take(calls, ended))
    both = concatenate(Ranges, parts)
    return both, both.lane >> _THREAD_BITS, unended


def _texts(database: Database, names: _Names) -> Column:
    """The codes of the texts of NVTX ranges that are stored beside them."""
    # A blob of each row's, as many rows have the same: each text is decoded once.
    term = "CAST(text AS BLOB)" if database.has("NVTX_EVENTS", "text") else "NULL"
    query = f"SELECT {term} FROM NVTX_EVENTS WHERE {_RANGE_EVENTS} ORDER BY rowid"  # noqa: S608 (constants only)
    texts = [text for (text,) in database.connection.execute(query)]
    codes = {
        text: ABSENT if text is None else names.code(text.decode("utf-8", errors="replace"))
        for text in dict.fromkeys(texts)
    }
    return np.fromiter(map(codes.__getitem__, texts), dtype=np.int64, count=len(texts))


def _ranges(start: Column, end: Column, lane: Column, name: Column, names: _Names, *, api: bool) -> Ranges:
    role = roles_of(tuple(names.codes), name, api=api)
    return build(
        Ranges,
        len(start),
        start_ns=start,
        end_ns=end,
        lane=lane,
        name=name,
        role=np.maximum(role, Role.OTHER),
    )


def _rank_numbers(database: Database, gpu: Mapping[int, GpuEvents]) -> list[tuple[int | None, str | None]]:
    """The rank of each process and its basis: an NVTX mark, the file's name, or the order of devices."""
    marked = _marks(database)
    if gpu and all(process in marked for process in gpu):
        return [(marked[process], "an NVTX mark") for process in gpu]
    if len(gpu) == 1:
        named = file_rank(database.path)
        return [(named, None if named is None else "the file's name")]
    devices = [_devices(database, process, events) for process, events in gpu.items()]
    # One process on each of several GPUs is how launchers number ranks on a node; anything else is not told.
    own = [next(iter(used)) for used in devices if len(used) == 1]
    if len(own) == len(gpu) == len(set(own)):
        order = sorted(own)
        return [(order.index(device), "the order of devices") for device in own]
    return [(None, None)] * len(gpu)


def _marks(database: Database) -> dict[int, int]:
    if not database.has("NVTX_EVENTS", "text", "globalTid"):
        return {}
    found = {}
    query = "SELECT text, CAST(globalTid AS INTEGER) FROM NVTX_EVENTS WHERE text LIKE '%rank%'"
    for text, thread in database.connection.execute(query):
        match = _RANK_MARK.fullmatch(str(text))
        if match and thread is not None:
            found[thread >> _THREAD_BITS] = int(match[1])
    return found


def _devices(database: Database, process: int, gpu: GpuEvents) -> set[int]:
    """The GPUs that a process ran kernels on, by the machine's numbering where the export has it."""
    used = set(_distinct(gpu.device[gpu.kind == Kind.COMPUTE])[0].tolist()) - {ABSENT}
    if database.has("TARGET_INFO_CUDA_DEVICE", "gpuId", "cudaId", "pid"):
        query = "SELECT cudaId, CAST(gpuId AS INTEGER) FROM TARGET_INFO_CUDA_DEVICE WHERE pid = ?"
        rows = database.connection.execute(query, (process & _PID_MASK,)).fetchall()
        machine: dict[int, int] = dict(rows)
        return {machine.get(device, device) for device in used}
    return used


def _epoch(database: Database) -> int | None:
    if not database.has("TARGET_INFO_SESSION_START_TIME", "utcEpochNs"):
        return None
    row = database.connection.execute("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME").fetchone()
    return row[0] if row and isinstance(row[0], int) else None


def _host(database: Database) -> str | None:
    if not database.has("TARGET_INFO_SYSTEM_ENV", "name", "value"):
        return None
    query = "SELECT value FROM TARGET_INFO_SYSTEM_ENV WHERE name = 'Hostname'"
    row = database.connection.execute(query).fetchone()
    return str(row[0]) if row and row[0] else None
