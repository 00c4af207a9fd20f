"""Reads Nsight Systems exports (SQLite, plain or gzip, 2022.4 and later) and, where nsys is installed, its
reports.

One export may hold several ranks: each process that used a GPU is one. Tables exist only where they have
rows, and newer versions add columns; what is missing stays absent.
"""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from msgspec.structs import replace

from aorta.artefacts.analysis import Problem
from aorta.artefacts.events import (
    ABSENT,
    Column,
    GpuEvents,
    Kind,
    RangeRole,
    Trace,
    TraceRanges,
    build,
    concatenate,
    empty_trace,
    take,
)
from aorta.errors import ArtefactError
from aorta.readers.kernels import api_role, kinds_of, roles_of
from aorta.readers.nsys_ranks import rank_numbers
from aorta.readers.trace_build import file_rank, finish, is_sorted
from aorta.readers.trace_sqlite import Database, open_database

FORMAT = "nsys"

_KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
_COPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
_SET = "CUPTI_ACTIVITY_KIND_MEMSET"
_GRAPH = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_NVTX_TABLE = "NVTX_EVENTS"
_RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
_TABLES = (_KERNEL, _COPY, _SET, _GRAPH, _RUNTIME, _NVTX_TABLE)
_SHARED = ("globalPid", "start", "end", "deviceId", "streamId", "correlationId")
_SIZES = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
_ON_GPU = {
    _KERNEL: (*_SHARED, "demangledName", "shortName", *_SIZES),
    _COPY: (*_SHARED, "bytes", "copyKind", "srcKind", "dstKind"),
    _SET: (*_SHARED, "bytes"),
    _GRAPH: (*_SHARED, "graphId"),
}
_CALL = ("globalTid", "start", "end", "nameId", "correlationId")
_NVTX = ("eventType", "start", "end", "globalTid", "textId")
_RANGE_TYPES = (59, 60)  # push/pop and start/end ranges
_COPY_NAMES = {1: "Memcpy HtoD", 2: "Memcpy DtoH", 8: "Memcpy DtoD", 10: "Memcpy PtoP"}
_MEMORY = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed"}
"""Kinds of memory as Kineto names them; older exports do not hold them."""
_KINDS = 16
_RANK_MARK = re.compile(r"(?:aorta\.)?rank[ =:#_]*(\d+)", re.IGNORECASE)
_EXPORT_S = 1800
_NAMED_TABLES = 6
_DENSE_SPAN = 1 << 22
"""Values that a table by value may cover: string ids count from 0, process numbers have 22 bits."""
_THREAD_BITS = 24
"""A globalTid is its globalPid with the thread in the low 24 bits."""


AnyEvents = TypeVar("AnyEvents", GpuEvents, TraceRanges)
_role = functools.cache(api_role)


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
        texts, inverse = self.texts(ids)
        codes = [ABSENT if text is None else self.code(text) for text in texts]
        return np.array(codes, dtype=np.int64)[inverse]

    def texts(self, ids: Column) -> tuple[list[str | None], Column]:
        """The texts of string ids, each id's once, and which of them each row has."""
        values, inverse = _distinct(ids)
        return [self._by_id.get(value) for value in values.tolist()], inverse


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
        if not any(database.has(database.newest(table)) for table in _TABLES):
            others = ", ".join(sorted(database.tables)[:_NAMED_TABLES]) or "none"
            raise ArtefactError(
                f"{path}: no CUDA activity and no NVTX ranges in it; its tables are {others}",
                hint="check that the program called cudaProfilerStart, and that -t included cuda,nvtx",
            )
        return _ranks(database)


def _read_report(path: Path) -> list[Trace]:
    """Export a report with the installed nsys and read that."""
    program = shutil.which("nsys")
    if program is None:
        raise ArtefactError(
            f"{path}: reading an Nsight Systems report needs nsys, which is not installed on this machine",
            hint=f"on a machine with nsys, run nsys export --type sqlite {path.name}; then analyse the "
            f".sqlite file",
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
    activity = [_by_process(database, table, wanted) for table, wanted in _ON_GPU.items()]
    marks = _marks(database, names)
    calls = _by_process(database, _RUNTIME, _CALL)
    # Pieces take turns in memory: those of a process are let go when its table is made.
    gpu = {
        process: _by_start(GpuEvents, _gpu_events([of.pop(process, []) for of in activity], names))
        for process in sorted(set().union(*activity))
    }
    problems: tuple[Problem, ...] = ()
    if marks.unended:
        problems = (Problem(file=str(database.path), reason=f"{marks.unended} NVTX ranges have no end"),)
    common = replace(
        empty_trace(str(database.path), FORMAT),
        epoch_ns=_epoch(database),
        host_name=_host(database),
        gpu_name=_gpu_name(database),
        problems=problems,
    )
    gpu = gpu or dict.fromkeys(sorted({*marks.ranges, *calls}), common.gpu)
    numbers, others = rank_numbers(database, gpu, marks.ranks, _training(gpu, marks, names))
    common = replace(common, problems=(*problems, *others))
    traces = []
    for process, (rank, basis) in numbers.items():
        host = [*marks.ranges.pop(process, []), *_calls(calls.pop(process, []), names)]
        if not len(gpu[process]) and not any(map(len, host)):
            continue
        notes = (f"rank {rank} by {basis}",) if basis == "the order of devices" else ()
        own = replace(common, rank=rank, rank_basis=basis, notes=notes, names=tuple(names.codes))
        traces.append(finish(replace(own, gpu=gpu[process], host=_by_start(TraceRanges, host))))
    return traces


def _training(gpu: Mapping[int, GpuEvents], marks: _Marks, names: _Names) -> set[int]:
    """The processes that mark steps or communicate, as ranks of a job do."""
    texts = tuple(names.codes)
    found = {
        process
        for process, ranges in marks.ranges.items()
        if any((r.role == RangeRole.STEP).any() for r in ranges)
    }
    for process, events in gpu.items():
        kernels = events.name[events.kind == Kind.COMPUTE]
        if (kinds_of(texts, kernels) == Kind.COMMUNICATION).any():
            found.add(process)
    return found


def _by_process(database: Database, table: str, wanted: Sequence[str]) -> dict[int, list[Column]]:
    """Columns of a table, (columns, rows), in pieces for each process, in row order; none without the table.

    The first of the columns holds a globalPid or globalTid.
    """

    def divided(block: Column) -> list[tuple[int, Column]]:
        found: list[tuple[int, Column]] = []
        block = _named_and_shaped(block) if table == _KERNEL else block
        process = left = block[0] >> _THREAD_BITS
        while left.size:
            number = int(left[0])
            left = left[left != number]
            whole = not (found or left.size)
            found.append((number, block if whole else block[:, process == number]))
        return found

    pieces: defaultdict[int, list[Column]] = defaultdict(list)
    newest = database.newest(table)
    if database.has(newest, "start", "end"):
        for block in database.blocks(newest, *wanted, each=divided):
            for process, piece in block:
                pieces[process].append(piece)
    return pieces


def _named_and_shaped(block: Column) -> Column:
    """Reduce kernels' two names and six sizes to one each; the block is overwritten."""
    *_, demangled, short, shape, gy, gz, bx, by, bz = block
    for size in (gy, gz, bx, by, bz):
        shape *= 1_000_003
        shape += size
    np.copyto(demangled, short, where=demangled == ABSENT)
    np.bitwise_and(shape, (1 << 63) - 1, out=short)
    return block[: -len(_SIZES)]


def _gpu_events(activity: Sequence[list[Column]], names: _Names) -> list[GpuEvents]:
    """The GPU activity of a process, from the pieces of its kernels, copies, memsets and graphs."""
    kernels, copies, sets, graphs = activity
    tables = []
    for *core, name, shape in kernels:
        tables.append(_table(core, kind=Kind.COMPUTE, name=names.of_ids(name), shape=shape))
    for *core, size, copy, source, target in copies:
        kinds, inverse = _distinct(
            (np.maximum(copy, 0) * _KINDS + source % _KINDS) * _KINDS + target % _KINDS
        )
        codes = np.array([names.code(_copy_name(kind)) for kind in kinds.tolist()], dtype=np.int64)
        tables.append(_table(core, kind=Kind.COPY, name=codes[inverse], bytes=size))
    for *core, size in sets:
        tables.append(_table(core, kind=Kind.MEMSET, name=names.code("Memset"), bytes=size))
    for *core, graph in graphs:
        numbers, inverse = _distinct(graph)
        codes = np.array([names.code(f"CUDA graph {number}") for number in numbers.tolist()], dtype=np.int64)
        tables.append(_table(core, kind=Kind.GRAPH, name=codes[inverse]))
    return tables


def _copy_name(kinds: int) -> str:
    """The name of a copy, by the numbers of its direction and of both kinds of memory."""
    rest, target = divmod(kinds, _KINDS)
    copy, source = divmod(rest, _KINDS)
    name, memory = _COPY_NAMES.get(copy, "Memcpy"), (_MEMORY.get(source), _MEMORY.get(target))
    return f"{name} ({memory[0]} -> {memory[1]})" if all(memory) else name


def _by_start(table: type[AnyEvents], parts: list[AnyEvents]) -> AnyEvents:
    """The parts as one table, sorted by start; what starts together stays in the order of the parts."""
    start = np.concatenate([np.empty(0, dtype=np.int64), *(part.start_ns for part in parts)])
    return concatenate(table, parts, None if is_sorted(start) else np.argsort(start, kind="stable"))


def _table(core: list[Column], **columns: object) -> GpuEvents:
    _, start, end, device, stream, correlation = core
    return build(
        GpuEvents,
        len(start),
        start_ns=start,
        end_ns=end,
        device=device,
        stream=stream,
        correlation=correlation,
        **columns,
    )


@dataclass(frozen=True, slots=True)
class _Marks:
    """Says what NVTX says of each process."""

    ranges: dict[int, list[TraceRanges]]
    unended: int
    """Ranges without an end, of all processes."""
    ranks: dict[int, int]
    """The rank that a process called itself."""


def _marks(database: Database, names: _Names) -> _Marks:
    table = database.newest(_NVTX_TABLE)
    if not database.has(table, *_NVTX[:-1]):
        return _Marks({}, 0, {})
    (kind, *columns), which, texts = database.with_text(table, *_NVTX, text="text")
    process = columns[2] >> _THREAD_BITS
    ranks: dict[int, int] = {}
    said = {
        number: int(found[1]) for number, text in enumerate(texts) if (found := _RANK_MARK.fullmatch(text))
    }
    for row in np.flatnonzero(np.isin(which, list(said)) & (columns[2] != ABSENT)).tolist():
        ranks[int(process[row])] = said[int(which[row])]
    chosen = np.isin(kind, _RANGE_TYPES)
    start, end, thread, text_id, which = (column[chosen] for column in (*columns, which))
    used, inverse = _distinct(which)
    codes = [ABSENT if number == ABSENT else names.code(texts[number]) for number in used.tolist()]
    beside = np.array(codes, dtype=np.int64)[inverse]
    name = np.where(text_id == ABSENT, beside, names.of_ids(text_id))
    ended = end >= start
    role = np.maximum(roles_of(tuple(names.codes), name, api=False), RangeRole.OTHER)
    both = build(TraceRanges, len(start), start_ns=start, end_ns=end, lane=thread, name=name, role=role)
    both = both if ended.all() else take(both, ended)
    process = both.lane >> _THREAD_BITS
    numbers = _distinct(process)[0].tolist()
    ranges = {number: [take(both, process == number)] for number in numbers}
    return _Marks(ranges, int((~ended).sum()), ranks)


def _calls(pieces: Sequence[Column], names: _Names) -> Iterator[TraceRanges]:
    """The driver calls of a process, of their pieces; those without an end are left out."""
    for thread, start, end, name_id, correlation in pieces:
        texts, inverse = names.texts(name_id)
        codes = [ABSENT if text is None else names.code(text) for text in texts]
        roles = [RangeRole.OTHER if text is None else _role(text) for text in texts]
        calls = build(
            TraceRanges,
            len(start),
            start_ns=start,
            end_ns=end,
            lane=thread,
            name=np.array(codes, dtype=np.int64)[inverse],
            role=np.array(roles, dtype=np.int64)[inverse],
            correlation=correlation,
        )
        ended = end >= start
        yield calls if ended.all() else take(calls, ended)


def _epoch(database: Database) -> int | None:
    if not database.has("TARGET_INFO_SESSION_START_TIME", "utcEpochNs"):
        return None
    row = database.connection.execute("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME").fetchone()
    return row[0] if row and isinstance(row[0], int) else None


def _gpu_name(database: Database) -> str | None:
    if not database.has("TARGET_INFO_GPU", "name"):
        return None
    row = database.connection.execute("SELECT name FROM TARGET_INFO_GPU ORDER BY rowid LIMIT 1").fetchone()
    return str(row[0]) if row and row[0] else None


def _host(database: Database) -> str | None:
    if not database.has("TARGET_INFO_SYSTEM_ENV", "name", "value"):
        return None
    query = "SELECT value FROM TARGET_INFO_SYSTEM_ENV WHERE name = 'Hostname'"
    row = database.connection.execute(query).fetchone()
    return str(row[0]) if row and row[0] else None
