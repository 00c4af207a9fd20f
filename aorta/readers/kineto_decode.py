"""Decodes chunks of Kineto events into columns.

Times are exact. `ts` and `dur` are µs with three decimals. As a double, a value below 2**43 µs is off by
less than half a nanosecond, so rounding its fraction gives the nanosecond that was written; larger ones
with a fraction are decoded again as decimals. (Kineto's own `baseTimeNanoseconds` keeps `ts` below 2**43.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TypeAlias, TypeVar

import msgspec
import numpy as np
from msgspec import Raw, Struct
from numpy.typing import NDArray

from aorta.artefacts.events import ABSENT, Collectives, Column, GpuEvents, Kind, Ranges, build
from aorta.readers.kernels import operation
from aorta.readers.kineto_salvage import MALFORMED, salvage
from aorta.readers.kineto_thin import KEPT_OPERATORS, thinned

_EXACT_BELOW = float(1 << 43)
_POSSIBLE_US = 9 * 10**15
"""The year 2255; ns of it still fit int64."""
_BATCH = 1 << 11
"""Events that columns are made of at a time."""
_POSITIVE = (1 << 63) - 1
_GPU = {"kernel": Kind.COMPUTE, "gpu_memcpy": Kind.COPY, "gpu_memset": Kind.MEMSET}
_GPU |= {"Kernel": Kind.COMPUTE, "Memcpy": Kind.COPY, "Memset": Kind.MEMSET}
_API = frozenset(("cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "Runtime"))
_ANNOTATION = "user_annotation"
_GPU_ANNOTATION = "gpu_user_annotation"
_OPERATOR = frozenset(("cpu_op", "Operator"))
_GROUP = {**dict.fromkeys(_GPU, 0), **dict.fromkeys(_API, 1), **dict.fromkeys(_OPERATOR, 2)}
_GROUP |= {_ANNOTATION: 2, _GPU_ANNOTATION: 3}
Number: TypeAlias = int | float | str | None


class Arguments(Struct, gc=False, frozen=True):
    """The arguments of an event that are used, whatever its kind."""

    device: Number = ABSENT
    stream: Number = ABSENT
    correlation: Number = ABSENT
    bytes: Number = ABSENT
    grid: tuple[int, ...] | None = None
    block: tuple[int, ...] | None = None
    collective: str | None = msgspec.field(name="Collective name", default=None)
    elements_in: Number = msgspec.field(name="In msg nelems", default=ABSENT)
    elements_out: Number = msgspec.field(name="Out msg nelems", default=ABSENT)
    group_size: Number = msgspec.field(name="Group size", default=ABSENT)
    dtype: str | None = None
    group: Number = msgspec.field(name="Process Group Name", default=None)
    sequence: Number = msgspec.field(name="Seq", default=ABSENT)


_NO_ARGUMENTS = Arguments()


class Event(Struct, gc=False):
    """The fields of an event that are used; the rest is skipped."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: int | float | None = None
    dur: int | float | None = None
    tid: Number = None
    args: Arguments = _NO_ARGUMENTS


class ExactEvent(Struct, gc=False):
    """`Event` with times as they are written."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: Decimal | None = None
    dur: Decimal | None = None
    tid: Number = None
    args: Arguments = _NO_ARGUMENTS


class _Bare(Struct, omit_defaults=True):
    """The text of an event's fields, without its arguments."""

    ph: Raw = Raw(b'""')
    cat: Raw = Raw(b'""')
    name: Raw = Raw(b'""')
    ts: Raw = Raw(b"null")
    dur: Raw = Raw(b"null")
    tid: Raw = Raw(b"null")


_EVENTS = msgspec.json.Decoder(list[Event])
_EXACT_EVENTS = msgspec.json.Decoder(list[ExactEvent])
_EVENT = msgspec.json.Decoder(Event)
_BARE = msgspec.json.Decoder(_Bare)

_ITEM_BYTES = {
    "byte": 1, "char": 1, "bool": 1, "float8_e4m3fn": 1, "float8_e5m2": 1, "half": 2, "bfloat16": 2,
    "short": 2, "int": 4, "float": 4, "long": 8, "double": 8, "complexfloat": 8, "complexdouble": 16,
}  # fmt: skip


class _InexactError(Exception):
    """A time does not fit a double to the nanosecond."""


class Numbering(dict[str, int]):
    """Names by number: looking one up that is new gives it the next."""

    def __missing__(self, name: str) -> int:
        number = self[name] = len(self)
        return number


@dataclass(slots=True)
class Columns:
    """What has been decoded of a file or of a range of it."""

    names: Numbering = field(default_factory=Numbering)
    gpu: list[GpuEvents] = field(default_factory=list)
    collectives: list[Collectives] = field(default_factory=list)
    host: list[Ranges] = field(default_factory=list)
    """Annotations; their roles are not set."""
    api: list[Ranges] = field(default_factory=list)
    """Driver calls; their roles are not set."""
    gpu_ranges: list[Ranges] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    """Reason to number of events that could not be used as they are."""
    events: int = 0
    """Events of the file, used or not."""
    gpu_count: int = 0
    pending: tuple[list[Event], ...] = field(default_factory=lambda: ([], [], [], []))
    """Events that are decoded and not yet in columns, in the groups of `_groups`."""
    texts: list[bytes] = field(default_factory=list)
    """The chunks that they came from."""


AnyEvent: TypeAlias = Event | ExactEvent
AnyEventT = TypeVar("AnyEventT", Event, ExactEvent)


def add_chunk(columns: Columns, text: bytes, *, last: bool = False) -> str | None:
    """Decode the events of `text`; what follows the array, if it ends in this text.

    `flush` makes columns of what was decoded: chunks are small, so that their events stay in the processor's
    cache, and a column is made of many.
    """
    tail = None
    text, skipped = thinned(text)
    columns.events += skipped
    try:
        events = _EVENTS.decode(b"[" + text + b"]")
    except (msgspec.DecodeError, UnicodeDecodeError):
        pieces, faults, tail = salvage(text, last=last)
        columns.faults.update(faults)
        text, events = _readable(columns, pieces)
    columns.events += len(events)
    columns.texts.append(text)
    for pending, found in zip(columns.pending, _groups(events), strict=True):
        pending.extend(found)
    if sum(map(len, columns.pending)) >= _BATCH:
        flush(columns)
    return tail


def _readable(columns: Columns, pieces: list[bytes]) -> tuple[bytes, list[Event]]:
    """The salvaged events that decode, if need be without their arguments, and their text."""
    good: list[bytes] = []
    events: list[Event] = []
    for piece in pieces:
        try:
            text = piece
            try:
                event = _EVENT.decode(text)
            except msgspec.ValidationError:
                text = msgspec.json.encode(_BARE.decode(piece))
                event = _EVENT.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            columns.faults[MALFORMED] += 1
        else:
            good.append(text)
            events.append(event)
    return b",".join(good), events


def _groups(events: list[AnyEventT]) -> tuple[list[AnyEventT], ...]:
    """The events that are used: on the GPU, driver calls, annotations, annotations on the GPU."""
    found: tuple[list[AnyEventT], ...] = ([], [], [], [])
    for event in events:
        place = _GROUP.get(event.cat)
        if place is not None and (event.cat not in _OPERATOR or event.name.startswith(KEPT_OPERATORS)):
            found[place].append(event)
    return found


def flush(columns: Columns) -> None:
    """Make columns of the events that were decoded since the last time."""
    faults: Counter[str] = Counter()
    try:
        timed = [_timed(pending, faults) for pending in columns.pending]
    except _InexactError:
        faults.clear()
        events = [e for text in columns.texts for e in _EXACT_EVENTS.decode(b"[" + text + b"]")]
        timed = [_timed(_possible(found, faults), faults) for found in _groups(events)]
    columns.faults.update(faults)
    columns.pending, columns.texts = ([], [], [], []), []
    on_gpu, calls, notes, projected = timed
    _add_gpu(columns, *on_gpu)
    _add_ranges(columns, columns.api, *calls, correlated=True)
    _add_ranges(columns, columns.host, *notes)
    _add_ranges(columns, columns.gpu_ranges, *projected)


def _timed(events: Sequence[AnyEvent], faults: Counter[str]) -> tuple[Sequence[AnyEvent], Column, Column]:
    """The events that have times, with start and end in ns; the others are counted.

    Raises:
        _InexactError: the events must be decoded again as `ExactEvent`.
    """
    timed = events
    try:
        if {e.ph for e in events} - {"X"}:
            raise TypeError
        start, duration = _whole_ns([e.ts for e in events]), _whole_ns([e.dur for e in events])
    except TypeError:  # times that are absent, exact or out of a double's reach
        timed = [e for e in events if e.ph == "X" and e.ts is not None and e.dur is not None]
        start, duration = nanoseconds([e.ts for e in timed]), nanoseconds([e.dur for e in timed])
    if len(timed) < len(events):
        faults["without a start or a duration"] += len(events) - len(timed)
    negative = duration < 0
    if negative.any():
        faults["with a negative duration"] += int(negative.sum())
        timed = [e for e, bad in zip(timed, negative.tolist(), strict=True) if not bad]
        start, duration = start[~negative], duration[~negative]
    return timed, start, start + duration


def _possible(events: list[ExactEvent], faults: Counter[str]) -> list[ExactEvent]:
    """The events whose times can be held in int64 ns, or that have none; the others are counted."""
    kept = [e for e in events if all(t is None or -_POSSIBLE_US < t < _POSSIBLE_US for t in (e.ts, e.dur))]
    if len(kept) < len(events):
        faults["with an impossible time"] += len(events) - len(kept)
    return kept


def _whole_ns(us: Sequence[int | float | Decimal | None]) -> Column:
    """`nanoseconds` of numbers that a double holds to the nanosecond, without looking at each one's type.

    Raises:
        TypeError: not all of them are such numbers.
    """
    array = np.fromiter(us, dtype=np.float64, count=len(us))
    if len(array) and (isinstance(us[0], Decimal) or not np.abs(array).max() < _EXACT_BELOW):
        raise TypeError
    return _rounded(array)


def nanoseconds(values: Sequence[int | float | Decimal | None]) -> Column:
    """Integer ns of µs that are int, float or (all of them) Decimal.

    Raises:
        _InexactError: a float is too large to hold its nanosecond, or a number is impossible.
    """
    if values and isinstance(values[0], Decimal):
        exact = [int((Decimal(value or 0) * 1000).to_integral_value()) for value in values]
        return np.array(exact, dtype=np.int64)
    array = np.array(values)
    if not len(array):
        return array.astype(np.int64)
    whole_numbers = array.dtype.kind == "i"
    if array.dtype.kind not in "if" or np.abs(array).max() >= (
        _POSSIBLE_US if whole_numbers else _EXACT_BELOW
    ):
        raise _InexactError
    if whole_numbers:
        return array * 1000
    return _rounded(array)


def _rounded(us: NDArray[np.float64]) -> Column:
    whole = np.floor(us)
    exact: Column = whole.astype(np.int64) * 1000 + np.rint((us - whole) * 1000).astype(np.int64)
    return exact


def _add_ranges(
    columns: Columns,
    into: list[Ranges],
    events: Sequence[AnyEvent],
    start: Column,
    end: Column,
    *,
    correlated: bool = False,
) -> None:
    if not events:
        return
    into.append(
        build(
            Ranges,
            len(events),
            start_ns=start,
            end_ns=end,
            lane=integers([e.tid for e in events]),
            name=_codes(columns, events),
            correlation=integers([e.args.correlation for e in events]) if correlated else ABSENT,
        )
    )


def _codes(columns: Columns, events: Sequence[AnyEvent]) -> Column:
    names = columns.names
    return np.fromiter([names[e.name] for e in events], dtype=np.int64, count=len(events))


def _add_gpu(columns: Columns, events: Sequence[AnyEvent], start: Column, end: Column) -> None:
    if not events:
        return
    arguments = [e.args for e in events]
    stream = integers([a.stream for a in arguments])
    columns.gpu.append(
        build(
            GpuEvents,
            len(events),
            start_ns=start,
            end_ns=end,
            kind=[_GPU[e.cat] for e in events],
            device=integers([a.device for a in arguments]),
            stream=np.where(stream == ABSENT, integers([e.tid for e in events]), stream),
            name=_codes(columns, events),
            correlation=integers([a.correlation for a in arguments]),
            shape=[ABSENT if a.grid is None else hash((a.grid, a.block)) & _POSITIVE for a in arguments],
            bytes=integers([a.bytes for a in arguments]),
        )
    )
    known = [(row, a) for row, a in enumerate(arguments) if a.collective is not None]
    if known:
        code = columns.names.__getitem__
        items = [_ITEM_BYTES.get((a.dtype or "").lower()) for _, a in known]
        columns.collectives.append(
            build(
                Collectives,
                len(known),
                event=np.array([row for row, _ in known]) + columns.gpu_count,
                op=[code(operation(a.collective or "") or a.collective or "") for _, a in known],
                group=[ABSENT if a.group is None else code(str(a.group)) for _, a in known],
                sequence=integers([a.sequence for _, a in known]),
                bytes_in=_sizes([a.elements_in for _, a in known], items),
                bytes_out=_sizes([a.elements_out for _, a in known], items),
                group_size=integers([a.group_size for _, a in known]),
            )
        )
    columns.gpu_count += len(events)


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
