"""Makes columns of Kineto's events; `kineto_times` has the exactness of their times."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from msgspec import Struct, field

from aorta.artefacts.events import (
    ABSENT,
    OWN,
    Column,
    GpuEvents,
    RangeRole,
    TracedCollectives,
    TraceRanges,
    build,
)
from aorta.readers.fast.kineto_spans import CategoryEvents, Learned
from aorta.readers.kernels import operation
from aorta.readers.kineto_events import (
    ANNOTATIONS,
    CALLS,
    EXACT_EVENTS,
    EXCHANGED,
    FRAMES,
    GPU_ANNOTATIONS,
    GPU_KINDS,
    GROUPS,
    INNER,
    KEPT_OPERATORS,
    ON_GPU,
    OPERATORS,
    Arguments,
    Event,
    Number,
    Numbering,
)
from aorta.readers.kineto_flops import flops
from aorta.readers.kineto_groups import named_group
from aorta.readers.kineto_peers import sent_words
from aorta.readers.kineto_times import (
    AnyEvent,
    AnyEventT,
    EventColumns,
    InexactError,
    TimedEvents,
    possible,
    timed_events,
)
from aorta.readers.trace_build import SENT, Call

_BATCH = 1 << 11
"""Events that columns are made of at a time."""
_POSITIVE = (1 << 63) - 1
_ITEM_BYTES = {
    "byte": 1, "char": 1, "bool": 1, "float8_e4m3fn": 1, "float8_e5m2": 1, "half": 2, "bfloat16": 2,
    "short": 2, "int": 4, "float": 4, "long": 8, "double": 8, "complexfloat": 8, "complexdouble": 16,
}  # fmt: skip
_ITEM_BYTES |= {
    "signed char": 1, "unsigned char": 1, "short int": 2, "long int": 8, "c10::half": 2, "c10::bfloat16": 2,
    "c10::float8_e4m3fn": 1, "c10::float8_e5m2": 1, "c10::complex<float>": 8, "c10::complex<double>": 16,
}  # fmt: skip
"""Types by torch's names in the arguments of kernels, and by those of C++ in an annotation's."""


Groups: TypeAlias = tuple[EventColumns[AnyEventT], ...]
"""On the GPU, driver calls, annotations, annotations on the GPU, operators and Python functions."""


def _no_events() -> Groups[AnyEventT]:
    return EventColumns(), EventColumns(), EventColumns(), EventColumns(), EventColumns()


class Columns(Struct):
    """Says what has been decoded of a file or of a range of it.

    Tables hold events as they were read; `at` says where they stand in the file.
    """

    learned: Learned = field(default_factory=lambda: Learned(Numbering()))
    gpu: list[GpuEvents] = field(default_factory=list)
    collectives: list[TracedCollectives] = field(default_factory=list)
    host: list[TraceRanges] = field(default_factory=list)
    """Annotations; their roles are not set."""
    api: list[TraceRanges] = field(default_factory=list)
    """Driver calls; their roles are not set."""
    gpu_ranges: list[TraceRanges] = field(default_factory=list)
    operators: list[TraceRanges] = field(default_factory=list)
    """Operators and Python functions, with their roles."""
    at: tuple[list[Column], ...] = field(default_factory=lambda: ([], [], [], [], []))
    """For each group, a column for each table: greater for an event that comes later in the file."""
    sizes: dict[Call, int] = field(default_factory=dict)
    """Bytes of what collectives were given, where their annotations say so (torch 1.10 to 2.0)."""
    faults: Counter[str] = field(default_factory=Counter)
    """Reason to number of events that could not be used as they are."""
    events: int = 0
    """Events of the file, used or not."""
    length: int = 0
    """Length of the text so far."""
    gpu_count: int = 0
    pending: Groups[Event] = field(default_factory=_no_events)
    """Events that are decoded and not yet in columns."""
    texts: list[tuple[bytes, list[int]]] = field(default_factory=list)
    """The texts that they came from, and where each event of a text stands."""

    @property
    def names(self) -> Numbering:
        """The names of the events by number."""
        return self.learned.numbering


def hold(columns: Columns, text: bytes, events: list[Event], at: list[int]) -> None:
    """Keep events, the text of which is `text`, until there are enough of them to make columns."""
    columns.texts.append((text, at))
    for pending, found in zip(columns.pending, _in_groups(events, at), strict=True):
        pending.events.extend(found.events)
        pending.at.extend(found.at)
    if sum(len(pending.events) for pending in columns.pending) >= _BATCH:
        flush(columns)


def _in_groups(events: Sequence[AnyEventT], at: Sequence[int]) -> Groups[AnyEventT]:
    """The events that are used, by group."""
    found: Groups[AnyEventT] = _no_events()
    for event, place in zip(events, at, strict=True):
        group = GROUPS.get(event.cat)
        if group is not None:
            if event.cat in OPERATORS:
                group = _of_operator(event)
            found[group].events.append(event)
            found[group].at.append(place)
    return found


def _of_operator(event: AnyEvent) -> int:
    """Returns the group of an operator. One that sends or receives becomes an annotation of its pair."""
    if event.name == EXCHANGED:
        if _pair(event.args) is None:
            return INNER
        event.name = SENT + _calling(event.args)
    return ANNOTATIONS if event.name.startswith((*KEPT_OPERATORS, SENT)) else INNER


def flush(columns: Columns) -> None:
    """Make columns of the events that were decoded as JSON since the last time."""
    faults: Counter[str] = Counter()
    timed: list[TimedEvents]
    try:
        timed = [timed_events(pending, faults) for pending in columns.pending]
    except InexactError:
        faults.clear()
        events = [e for text, _ in columns.texts for e in EXACT_EVENTS.decode(b"[" + text + b"]")]
        groups = _in_groups(events, [place for _, at in columns.texts for place in at])
        timed = [timed_events(possible(found, faults), faults) for found in groups]
    columns.faults.update(faults)
    columns.pending, columns.texts = _no_events(), []
    if timed[ON_GPU].events:
        _add_gpu(columns, timed[ON_GPU])
    for group, into in (
        (CALLS, columns.api),
        (ANNOTATIONS, columns.host),
        (GPU_ANNOTATIONS, columns.gpu_ranges),
        (INNER, columns.operators),
    ):
        if timed[group].events:
            _add_ranges(columns, group, into, timed[group])


def _add_ranges(columns: Columns, group: int, into: list[TraceRanges], timed: TimedEvents) -> None:
    events = timed.events
    lane = integers([e.tid for e in events])
    for row, event in enumerate(events):
        if event.args.dims and group == ANNOTATIONS:
            size = _given(event.args.dims, event.args.types)
            if size is not None:
                columns.sizes[int(lane[row]), int(timed.start_ns[row])] = size
        if group == ANNOTATIONS and event.name.startswith(SENT):
            item = _ITEM_BYTES.get((event.args.dtype or "").lower())
            size = int(_sizes([event.args.elements_in], [item])[0])
            columns.sizes[int(lane[row]), int(timed.start_ns[row])] = size
    columns.at[group].append(timed.at)
    into.append(
        build(
            TraceRanges,
            len(events),
            start_ns=timed.start_ns,
            end_ns=timed.end_ns,
            role=[_inner_role(e.cat) for e in events] if group == INNER else ABSENT,
            lane=lane,
            name=_codes(columns, events),
            correlation=integers([e.args.correlation for e in events]) if group == CALLS else ABSENT,
            **_work(events if group == INNER else ()),
        )
    )


def _work(events: Sequence[AnyEvent]) -> dict[str, Column]:
    """The columns of what operators compute; none where no shapes are known."""
    if not any(event.args.dims for event in events):
        return {}
    found = np.array([flops(e.name, e.args.dims, e.args.types) for e in events], dtype=np.int64)
    return {"flops": found[:, 0], "item_bytes": found[:, 1]}


def _inner_role(category: str) -> int:
    return int(RangeRole.FRAME if category == FRAMES else RangeRole.OPERATOR)


def _given(dims: object, types: object) -> int | None:
    """Bytes of tensors of these dimensions and types; None where one of them is no plain tensor."""
    if not isinstance(dims, list) or not isinstance(types, list) or len(dims) != len(types):
        return None
    total = 0
    for shape, kind in zip(dims, types, strict=True):
        item = _ITEM_BYTES.get(str(kind).lower())
        plain = isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape)
        if item is None or not plain:
            return None
        total += item * math.prod(shape)
    return total if total < _POSITIVE else None


def add_rows(columns: Columns, rows: CategoryEvents, base: int) -> None:
    """Add driver calls or work on the GPU; `base` is where the text's first event stands."""
    if len(rows.event) == 0:
        return
    if rows.category in OPERATORS:
        columns.at[INNER].append(rows.event + base)
        columns.operators.append(
            build(
                TraceRanges,
                len(rows.event),
                start_ns=rows.start_ns,
                end_ns=rows.end_ns,
                role=int(RangeRole.OPERATOR),
                lane=rows.lane,
                name=rows.name,
            )
        )
    else:
        add = _add_call_rows if GROUPS[rows.category] == CALLS else _add_gpu_rows
        add(columns, rows, base)


def _add_call_rows(columns: Columns, rows: CategoryEvents, base: int) -> None:
    columns.at[CALLS].append(rows.event + base)
    columns.api.append(
        build(
            TraceRanges,
            len(rows.event),
            start_ns=rows.start_ns,
            end_ns=rows.end_ns,
            lane=rows.lane,
            name=rows.name,
            correlation=rows.correlation,
        )
    )


def _codes(columns: Columns, events: Sequence[AnyEvent]) -> Column:
    names = columns.names
    return np.fromiter([names[e.name] for e in events], dtype=np.int64, count=len(events))


def _add_gpu(columns: Columns, timed: TimedEvents) -> None:
    events = timed.events
    arguments = [e.args for e in events]
    stream = integers([a.stream for a in arguments])
    columns.at[ON_GPU].append(timed.at)
    columns.gpu.append(
        build(
            GpuEvents,
            len(events),
            start_ns=timed.start_ns,
            end_ns=timed.end_ns,
            kind=[GPU_KINDS[e.cat] for e in events],
            device=integers([a.device for a in arguments]),
            stream=np.where(stream == ABSENT, integers([e.tid for e in events]), stream),
            name=_codes(columns, events),
            correlation=integers([a.correlation for a in arguments]),
            shape=_shapes(arguments),
            bytes=integers([a.bytes for a in arguments]),
        )
    )
    _add_collectives(columns, [(row, a) for row, a in enumerate(arguments) if a.collective is not None])
    columns.gpu_count += len(events)


def _add_gpu_rows(columns: Columns, rows: CategoryEvents, base: int) -> None:
    used, kind = np.unique(rows.ending, return_inverse=True)
    arguments = [rows.arguments[number] for number in used.tolist()]
    columns.at[ON_GPU].append(rows.event + base)
    columns.gpu.append(
        GpuEvents(
            start_ns=rows.start_ns,
            end_ns=rows.end_ns,
            kind=np.full(len(rows.event), int(GPU_KINDS[rows.category])),
            device=rows.device,
            stream=np.where(rows.stream == ABSENT, rows.lane, rows.stream),
            name=rows.name,
            correlation=rows.correlation,
            shape=_shapes(arguments)[kind],
            bytes=integers([a.bytes for a in arguments])[kind],
        )
    )
    known = np.array([a.collective is not None for a in arguments], dtype=np.bool_)
    _add_collectives(columns, [(row, arguments[kind[row]]) for row in np.flatnonzero(known[kind]).tolist()])
    columns.gpu_count += len(rows.event)


def _shapes(arguments: Sequence[Arguments]) -> Column:
    """A number for each launch shape."""
    shapes = [ABSENT if a.grid is None else hash((a.grid, a.block)) & _POSITIVE for a in arguments]
    return np.array(shapes, dtype=np.int64)


def _add_collectives(columns: Columns, known: Sequence[tuple[int, Arguments]]) -> None:
    """Add what is known of the collectives in the next table of work on the GPU, by row."""
    if not known:
        return
    code = columns.names.__getitem__
    items = [_ITEM_BYTES.get((a.dtype or "").lower()) for _, a in known]
    given = integers([a.elements_in for _, a in known]).tolist()
    members = integers([a.group_size for _, a in known]).tolist()
    sent = [
        sent_words(a, elements, item, size)
        for (_, a), elements, item, size in zip(known, given, items, members, strict=True)
    ]
    columns.collectives.append(
        build(
            TracedCollectives,
            len(known),
            event=np.array([row for row, _ in known]) + columns.gpu_count,
            op=[code(operation(a.collective or "") or a.collective or "") for _, a in known],
            group=[ABSENT if a.group is None else code(_calling(a)) for _, a in known],
            # A group counts its sends and receives on each rank for itself.
            sequence=integers([ABSENT if _pair(a) else a.sequence for _, a in known]),
            bytes_in=_sizes(given, items),
            bytes_out=_sizes([a.elements_out for _, a in known], items),
            group_size=members,
            item_bytes=[ABSENT if size is None else size for size in items],
            sent=[ABSENT if words is None else code(words) for words in sent],
        )
    )


def _calling(arguments: Arguments) -> str:
    """Returns who calls together: the group, of a send and its receive the two ranks as well."""
    pair, name = _pair(arguments), named_group(arguments.description, arguments.group)
    return f"{name} {pair}" if pair else name


def _pair(arguments: Arguments) -> str | None:
    """The two ranks of a send or receive, of which the own one may be left open."""
    if operation(arguments.collective or "") != "send_recv":
        return None
    ends = [OWN if rank is None else str(rank) for rank in (arguments.source, arguments.target)]
    return None if ends == [OWN, OWN] else ">".join(ends)


def _sizes(elements: Sequence[Number], items: Sequence[int | None]) -> Column:
    item = np.array([ABSENT if size is None else size for size in items], dtype=np.int64)
    count = integers(elements)
    size: Column = np.where((item == ABSENT) | (count == ABSENT), ABSENT, item * count)
    return size


def integers(values: Sequence[Number]) -> Column:
    """Whole numbers as a column; ABSENT for none, negative or not a number; longer than int64 is cut."""
    try:
        array = np.array(values)
        if array.dtype.kind == "i":
            return np.maximum(array.astype(np.int64), ABSENT)
    except (ValueError, OverflowError):
        pass
    return np.array([_integer(value) for value in values], dtype=np.int64)


def _integer(value: Number) -> int:
    try:
        number = ABSENT if value is None else int(value)
    except (ValueError, OverflowError):
        return ABSENT
    return number & _POSITIVE if number >= 0 else ABSENT
