"""Reads Kineto (torch profiler) traces: `.json` or `.json.gz`, streamed, over the cores there are.

A large plain file is cut into byte ranges that processes decode at the same time; a compressed one is one
unit. What a trace does not say stays absent: the rank comes from its `distributedInfo`, else from the
file's name, else it is None.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import math
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from aorta.artefacts.analysis import Problem
from aorta.artefacts.events import (
    ABSENT,
    AnyTable,
    Column,
    GpuEvents,
    Trace,
    TracedCollectives,
    TraceRanges,
    concatenate,
    empty_trace,
    take,
)
from aorta.artefacts.files import open_regular, size_of
from aorta.errors import ArtefactError
from aorta.readers.kernels import roles_of
from aorta.readers.kineto_columns import Columns, flush
from aorta.readers.kineto_decode import add_chunk
from aorta.readers.kineto_events import ANNOTATIONS, CALLS, GPU_ANNOTATIONS, INNER, ON_GPU
from aorta.readers.kineto_groups import described
from aorta.readers.kineto_header import distributed, epoch_of, gpu_name, rank_of, world_size
from aorta.readers.kineto_stream import (
    EventText,
    GzipText,
    PlainText,
    Source,
    UnpackedText,
    is_gzip,
    open_array,
    ranges,
)
from aorta.readers.memory import keep_what_is_freed
from aorta.readers.parallel import shared_out, usable_cores, worth_processes
from aorta.readers.trace_build import finish

FORMAT = "kineto"

_RANGE_BYTES = 32 << 20
"""The most text that a process decodes at a time: all processes end at about the same time."""
_GZIP_RATIO = 12
_NO_TEXTS: Mapping[Path, bytes] = {}


class Unit(Struct, frozen=True):
    """A part of a file that one process decodes."""

    path: Path
    start: int = 0
    length: int | None = None
    """None: to the end of the file, its tail included."""


class KinetoUnit(Struct):
    """Says what a unit holds."""

    columns: Columns
    header: dict[str, Any] = field(default_factory=dict)
    fault: str | None = None


def read(path: Path) -> Trace:
    """The trace in one file.

    Raises:
        ArtefactError: the file cannot be read or holds no `traceEvents`.
    """
    trace = read_many([path])[0]
    if isinstance(trace, ArtefactError):
        raise trace
    return trace


def read_text(path: Path, text: bytes) -> Trace:
    """The trace in a text that is, or is a part of, the file `path`.

    Raises:
        ArtefactError: it holds no `traceEvents`.
    """
    trace = _assemble(path, [_read(Unit(path), PlainText(io.BytesIO(text)))])
    if isinstance(trace, ArtefactError):
        raise trace
    return trace


def read_many(
    paths: Sequence[Path],
    *,
    workers: int | None = None,
    meanwhile: Callable[[], object] | None = None,
    texts: Mapping[Path, bytes] = _NO_TEXTS,
) -> list[Trace | ArtefactError]:
    """The trace in each file or why there is none, by at most `workers` processes (default: usable cores).

    `texts` holds what some of the files are, unpacked.
    """
    workers = workers or usable_cores()
    plans = [_plan(path, workers) for path in paths]
    units = [unit for plan in plans for unit in plan]
    parts = _in_turn(units, texts)
    if workers > 1 and len(units) > 1 and sum(_text_bytes(path) for path in paths) > worth_processes():
        # Parts are let go as they are joined: memory is shared in time.
        parts = _consumed(deque(shared_out(read_unit, units, min(workers, len(units)), meanwhile)))
    return [
        _assemble(path, list(itertools.islice(parts, len(plan))))
        for path, plan in zip(paths, plans, strict=True)
    ]


def _consumed(parts: deque[KinetoUnit | ArtefactError]) -> Iterator[KinetoUnit | ArtefactError]:
    while parts:
        yield parts.popleft()


def _text_bytes(path: Path) -> int:
    """About how much JSON a file holds; 0 if it cannot be read (which its own reading will say)."""
    try:
        return size_of(path) * (_GZIP_RATIO if is_gzip(path) else 1)
    except OSError:
        return 0


def _plan(path: Path, workers: int) -> list[Unit]:
    """The units of one file."""
    try:
        size = size_of(path)
        if workers > 1 and size > worth_processes() and not is_gzip(path):
            cuts = ranges(path, workers * math.ceil(size / (workers * _RANGE_BYTES)))
            if cuts is not None:
                return [Unit(path, start, length) for start, length in cuts]
    except OSError:
        pass
    return [Unit(path)]


def read_unit(unit: Unit) -> KinetoUnit | ArtefactError:
    """Decode a unit; an error is returned, so that one file does not stop the others."""
    return next(_in_turn([unit]))


def _in_turn(
    units: Sequence[Unit], texts: Mapping[Path, bytes] = _NO_TEXTS
) -> Iterator[KinetoUnit | ArtefactError]:
    """Returns what each unit holds. While one is decoded the next one is open, and its text is unpacked."""
    keep_what_is_freed()
    with contextlib.ExitStack() as ahead:
        sources = deque(_source(unit, ahead, texts) for unit in units[:1])
        for unit, following in itertools.zip_longest(units, units[1:]):
            with ahead.pop_all():
                if following is not None:
                    sources.append(_source(following, ahead, texts))
                source = sources.popleft()
                yield source if isinstance(source, ArtefactError) else _read(unit, source)


def _source(unit: Unit, stack: contextlib.ExitStack, texts: Mapping[Path, bytes]) -> Source | ArtefactError:
    """The text of a unit until the stack is closed, or why there is none."""
    if unit.path in texts:
        return UnpackedText(texts[unit.path])
    try:
        compressed = is_gzip(unit.path)
        stream = stack.enter_context(open_regular(unit.path, buffering=0))
        if compressed:
            return stack.enter_context(contextlib.closing(GzipText(stream)))
        stream.seek(unit.start)
        return PlainText(stream, unit.length)
    except OSError as error:
        return ArtefactError(f"{unit.path}: {error.strerror}")


def _read(unit: Unit, source: Source) -> KinetoUnit | ArtefactError:
    try:
        part = KinetoUnit(Columns())
        buffer = b""
        if unit.start == 0:
            head, buffer = open_array(unit.path, source)
            part.header = _keys(head + b'"":0}')
        _decode(part, EventText(source, buffer), ends_here=unit.length is None)
        flush(part.columns)
        join(part.columns)
        return part
    except ArtefactError as error:
        return error
    except OSError as error:
        return ArtefactError(f"{unit.path}: {error.strerror}")


def join(columns: Columns) -> None:
    """Make one table of each kind of the many, by start; what starts together stays in the file's order."""
    for group, ranges_of in (
        (CALLS, columns.api),
        (ANNOTATIONS, columns.host),
        (GPU_ANNOTATIONS, columns.gpu_ranges),
        (INNER, columns.operators),
    ):
        table = concatenate(TraceRanges, ranges_of)
        ranges_of[:] = [take(table, _order(columns.at[group], table.start_ns))]
    gpu, collectives = (
        concatenate(GpuEvents, columns.gpu),
        concatenate(TracedCollectives, columns.collectives),
    )
    order = _order(columns.at[ON_GPU], gpu.start_ns)
    row = np.empty(len(order), dtype=np.int64)
    row[order] = np.arange(len(order))
    collectives = replace(collectives, event=row[collectives.event])
    columns.gpu[:] = [take(gpu, order)]
    columns.collectives[:] = [take(collectives, np.argsort(collectives.event))]


def _order(at: list[Column], start_ns: Column) -> NDArray[np.intp]:
    """The order by start and, for the same start, by place in the file, which `at` says; `at` is emptied."""
    place = np.concatenate(at) if at else np.zeros(0, dtype=np.int64)
    at.clear()
    order: NDArray[np.intp] = np.lexsort((place, start_ns))
    return order


def _decode(part: KinetoUnit, text: EventText, *, ends_here: bool) -> None:
    """Decode the chunks of a unit, and the keys behind the array if the file ends in it."""
    tail: list[str] | None = None
    for chunk, end in text:
        if tail is not None:
            tail.append(chunk[:end].decode("utf-8", errors="replace"))
            continue
        behind = add_chunk(part.columns, chunk, end)
        tail = None if behind is None else [behind]
    part.fault = text.fault
    if tail is None:
        rest = text.rest if ends_here else text.rest.rstrip().removesuffix(b",")
        behind = add_chunk(part.columns, rest, len(rest), last=ends_here)
        tail = None if behind is None else [behind]
    else:
        tail.append(text.rest.decode("utf-8", errors="replace"))
    if tail is not None:
        part.header |= _keys(b'{"":0' + ",".join(tail).encode())
    elif ends_here and part.fault is None:
        part.fault = "the file ends inside traceEvents"


def _keys(text: bytes) -> dict[str, Any]:
    """The top-level keys in a piece of the file; none if it cannot be read."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
    return value if isinstance(value, dict) else {}


def _assemble(path: Path, parts: list[KinetoUnit | ArtefactError]) -> Trace | ArtefactError:
    """One trace of the parts of a file."""
    good: list[KinetoUnit] = []
    for part in parts:
        if isinstance(part, ArtefactError):
            return part
        good.append(part)
    header = {key: value for part in good for key, value in part.header.items()}
    problems = tuple(_problems(path, good))
    names: dict[str, int] = {}
    merged = [_renumber(part.columns, names) for part in good]
    text = tuple(names)
    sizes = {call: size for columns in merged for call, size in columns.sizes.items()}
    # Columns take turns in memory: what has been joined is let go before the next is.
    parts.clear()
    good.clear()
    collectives = _collectives(merged)
    gpu = _whole_table(GpuEvents, [columns.gpu for columns in merged])
    host = _whole_table(TraceRanges, [columns.host for columns in merged])
    api = _whole_table(TraceRanges, [columns.api for columns in merged])
    projected = _whole_table(TraceRanges, [columns.gpu_ranges for columns in merged])
    operators = _whole_table(TraceRanges, [columns.operators for columns in merged])
    rank, basis, notes = rank_of(path, header)
    text = described(text, set(collectives.group.tolist()), distributed(header))
    return finish(
        replace(
            empty_trace(str(path), FORMAT),
            rank=rank,
            rank_basis=basis,
            world_size=world_size(header),
            gpu_name=gpu_name(header),
            epoch_ns=epoch_of(header, gpu),
            gpu=gpu,
            collectives=collectives,
            host=concatenate(
                TraceRanges,
                [
                    replace(host, role=roles_of(text, host.name, api=False)),
                    replace(api, role=roles_of(text, api.name, api=True)),
                ],
            ),
            gpu_ranges=replace(projected, role=roles_of(text, projected.name, api=False)),
            names=text,
            operators=operators,
            problems=problems,
            notes=notes,
        ),
        sizes,
    )


def _whole_table(table: type[AnyTable], parts: list[list[AnyTable]]) -> AnyTable:
    """All tables of all parts as one; the parts are emptied."""
    whole = concatenate(table, [one for part in parts for one in part])
    for part in parts:
        part.clear()
    return whole


def _collectives(merged: list[Columns]) -> TracedCollectives:
    """The collectives of all parts; their rows count from the start of each part's GPU events."""
    tables = []
    offset = 0
    for columns in merged:
        tables += [replace(table, event=table.event + offset) for table in columns.collectives]
        offset += columns.gpu_count
    return concatenate(TracedCollectives, tables)


def _renumber(columns: Columns, names: dict[str, int]) -> Columns:
    """The columns with names numbered as in `names`, which grows."""
    code = np.array([*(names.setdefault(name, len(names)) for name in columns.names), ABSENT], dtype=np.int64)
    return replace(
        columns,
        gpu=[replace(table, name=code[table.name]) for table in columns.gpu],
        collectives=[
            replace(table, op=code[table.op], group=code[table.group], sent=code[table.sent])
            for table in columns.collectives
        ],
        host=[replace(table, name=code[table.name]) for table in columns.host],
        api=[replace(table, name=code[table.name]) for table in columns.api],
        gpu_ranges=[replace(table, name=code[table.name]) for table in columns.gpu_ranges],
        operators=[replace(table, name=code[table.name]) for table in columns.operators],
    )


def _problems(path: Path, parts: list[KinetoUnit]) -> Iterator[Problem]:
    faults: Counter[str] = Counter()
    for part in parts:
        faults.update(part.columns.faults)
    events = sum(part.columns.events for part in parts)
    for reason in dict.fromkeys(part.fault for part in parts if part.fault):
        yield Problem(file=str(path), reason=f"{reason}; {events} events before that were read")
    for reason, count in sorted(faults.items()):
        yield Problem(file=str(path), reason=f"{count} of {events} events {reason}")
