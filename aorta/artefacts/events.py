"""The event model of a trace: one `Trace` a rank, columns of integers instead of objects.

Times are integer ns on the trace's own clock; `epoch_ns` moves them to the wall clock. Names are codes into
`Trace.names`. A number that the trace does not give is `ABSENT` (-1), never 0; no column that uses it can be
negative otherwise.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from aorta.artefacts.analysis import Problem
from aorta.intervals import Intervals

ABSENT = -1
"""Not in the trace (int columns only)."""
OWN = "own"
"""Stands for the trace's own rank in the group `GROUP SOURCE>TARGET` of a send and its receive."""

Column = NDArray[np.int64]


class Kind(enum.IntEnum):
    """Says what a GPU was doing in an event."""

    COMPUTE = 0
    COMMUNICATION = 1
    COPY = 2
    MEMSET = 3
    UNCLASSIFIED = 4
    """Ran on the GPU, but nothing in the trace says what it was."""
    GRAPH = 5
    """A CUDA graph recorded as a whole: the GPU was busy, and the kernels inside are not known."""


class RangeRole(enum.IntEnum):
    """Says what a range on the host was."""

    OTHER = 0
    STEP = 1
    DATA = 2
    """The program's own name for getting its batch."""
    LOADER = 3
    """The data loader's `__next__`."""
    FORWARD = 4
    BACKWARD = 5
    OPTIMIZER = 6
    COLLECTIVE = 7
    """The call of a collective, which returns before the GPU has done it."""
    LAUNCH = 8
    """A driver call that puts work on the GPU's queue."""
    SYNC = 9
    """A driver call that waits for the GPU."""
    API = 10
    """Another driver call."""
    OPERATOR = 11
    """An operator of the framework; they nest."""
    FRAME = 12
    """A Python function, where the capture recorded stacks; they nest."""


def among(column: Column, values: Sequence[int]) -> NDArray[np.bool_]:
    """Returns which rows have one of a few values; `np.isin` takes several times as long for a few."""
    found = np.zeros(len(column), dtype=np.bool_)
    for value in values:
        found |= column == int(value)
    return found


class ColumnTable(Struct, frozen=True, eq=False):
    """Columns of one length."""

    def __post_init__(self) -> None:
        lengths = {len(getattr(self, name)) for name in self.__struct_fields__}
        if len(lengths) > 1:
            raise ValueError(f"{type(self).__name__}: columns of different lengths {sorted(lengths)}")

    def __len__(self) -> int:
        return len(getattr(self, self.__struct_fields__[0]))


class GpuEvents(ColumnTable, frozen=True, eq=False):
    """Says what ran on a GPU, sorted by start."""

    start_ns: Column
    end_ns: Column
    kind: Column
    device: Column
    stream: Column
    name: Column
    correlation: Column
    """Joins an event to the driver call that launched it."""
    shape: Column
    """Equal for equal launch dimensions; otherwise without meaning."""
    bytes: Column
    """Bytes of a copy or memset."""

    def intervals(self, *kinds: Kind) -> Intervals:
        """The (n, 2) intervals of the events of these kinds."""
        chosen = among(self.kind, kinds)
        return np.stack((self.start_ns[chosen], self.end_ns[chosen]), axis=1)


class TracedCollectives(ColumnTable, frozen=True, eq=False):
    """Says what is known about the communication events beyond their time, sorted by `event`."""

    event: Column
    """Row in `GpuEvents`."""
    op: Column
    """Code of the operation's name: `all_reduce`, `all_gather`, ...; ABSENT: not told apart."""
    group: Column
    """Code of the process group's name."""
    sequence: Column
    bytes_in: Column
    bytes_out: Column
    group_size: Column
    item_bytes: Column
    """Bytes of one element."""
    sent: Column
    """Code of the bytes that an all-to-all sends to each member of its group, such as `1024 0 512`."""


class TraceRanges(ColumnTable, frozen=True, eq=False):
    """Ranges on host threads (`lane` is the thread) or annotations on GPU streams (`lane` is the stream).

    Sorted by start.
    """

    start_ns: Column
    end_ns: Column
    role: Column
    lane: Column
    name: Column
    correlation: Column
    flops: Column
    """Floating-point operations of an operator; ABSENT: not known."""
    item_bytes: Column
    """Bytes of each number that such an operator computes with."""

    def intervals(self, *roles: RangeRole) -> Intervals:
        """The (n, 2) intervals of the ranges of these roles."""
        chosen = among(self.role, roles)
        return np.stack((self.start_ns[chosen], self.end_ns[chosen]), axis=1)


AnyTable = TypeVar("AnyTable", bound=ColumnTable)


def build(table: type[AnyTable], size: int, **columns: object) -> AnyTable:
    """A table of `size` rows: a scalar fills its column, a column that is not given is ABSENT."""
    made = {name: _column(columns.pop(name, ABSENT), size) for name in table.__struct_fields__}
    if columns:
        raise ValueError(f"{table.__name__} has no columns {sorted(columns)}")
    return table(**made)


def _column(value: object, size: int) -> Column:
    column = np.asarray(value, dtype=np.int64)
    if column.ndim == 0:
        return np.full(size, column)
    if column.shape != (size,):
        raise ValueError(f"a column of shape {column.shape} for {size} rows")
    return np.ascontiguousarray(column)


def used_codes(codes: Column, count: int) -> list[int]:
    """Returns which of `count` codes occur, ABSENT aside; without sorting the column."""
    used = np.zeros(count + 1, dtype=np.bool_)
    used[codes] = True
    found: list[int] = np.flatnonzero(used[:count]).tolist()
    return found


def coded(names: Sequence[str], codes: Column, test: Callable[[str], object]) -> NDArray[np.bool_]:
    """Returns which rows have a name that passes a test; each name is tested once."""
    table = np.zeros(len(names) + 1, dtype=np.bool_)
    for code in used_codes(codes, len(names)):
        table[code] = bool(test(names[code]))
    return table[codes]


def take(table: AnyTable, rows: NDArray[np.bool_] | NDArray[np.intp]) -> AnyTable:
    """The rows that a mask or an index array chooses."""
    return type(table)(**{name: getattr(table, name)[rows] for name in table.__struct_fields__})


def concatenate(
    table: type[AnyTable], parts: list[AnyTable], order: NDArray[np.intp] | None = None
) -> AnyTable:
    """Parts one after the other, or their rows in an order; an empty table for none."""
    if not parts:
        return build(table, 0)
    columns = {}
    buffer = None if order is None else np.empty(len(order), dtype=np.int64)
    for name in table.__struct_fields__:
        column = np.concatenate([getattr(part, name) for part in parts], out=buffer)
        columns[name] = column if order is None else column[order]
    return table(**columns)


class UnseenIntervals(Struct, frozen=True, eq=False):
    """Time in which the trace does not show what the GPU did."""

    reason: str
    remedy: str
    """A way to record the trace so that the time is seen."""
    spans: Intervals


class Trace(Struct, frozen=True, eq=False):
    """Says what one rank's capture holds."""

    source: str
    """The file it came from."""
    format: str
    rank: int | None
    """None: the trace does not say."""
    rank_basis: str | None
    """Source of the rank."""
    gpu: GpuEvents
    collectives: TracedCollectives
    host: TraceRanges
    gpu_ranges: TraceRanges
    """Annotations projected on GPU streams."""
    names: tuple[str, ...]
    operators: TraceRanges = field(default_factory=lambda: build(TraceRanges, 0))
    """Operators and Python functions on host threads; only Kineto records them."""
    world_size: int | None = None
    host_name: str | None = None
    gpu_name: str | None = None
    """The driver's name of the first GPU that the trace lists."""
    epoch_ns: int | None = None
    """Wall-clock ns of the trace's zero. None if its clock is not tied to the wall clock."""
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()
    """Notes for the reader that are no faults of the file."""
    unseen: tuple[UnseenIntervals, ...] = ()


def empty_trace(source: str, format: str) -> Trace:
    """A trace with nothing in it, to be filled with `msgspec.structs.replace`."""
    return Trace(
        source=source,
        format=format,
        rank=None,
        rank_basis=None,
        gpu=build(GpuEvents, 0),
        collectives=build(TracedCollectives, 0),
        host=build(TraceRanges, 0),
        gpu_ranges=build(TraceRanges, 0),
        names=(),
    )


def of_launch(trace: Trace, values: Column) -> Column:
    """Returns for each GPU event the value of the call that launched it.

    Several kernels of one launch, such as a graph's, share it. ABSENT where the trace joins no launch.

    Args:
        trace: of one rank.
        values: one per range of the host, (len(trace.host),).
    """
    found = np.full(len(trace.gpu), ABSENT, dtype=np.int64)
    calls = (trace.host.role == RangeRole.LAUNCH) & (trace.host.correlation != ABSENT)
    correlation, first = np.unique(trace.host.correlation[calls], return_index=True)
    if len(correlation):
        of_call = values[calls][first]
        place = np.minimum(np.searchsorted(correlation, trace.gpu.correlation), len(correlation) - 1)
        known = correlation[place] == trace.gpu.correlation
        found[known] = of_call[place[known]]
    return found


def launched_at(trace: Trace) -> Column:
    """Returns when each GPU event was launched; ABSENT where the trace joins no launch to it."""
    return of_launch(trace, trace.host.start_ns)
