"""`nodes/node<i>/traces/rank_<r>.json`: one rank's trace, reduced on the node that wrote it.

It holds what the analysis needs of a trace, exactly, at a small part of its size.
"""

from __future__ import annotations

import zlib

import numpy as np
from msgspec import field

from aorta.artefacts.analysis import Problem
from aorta.artefacts.events import Column
from aorta.artefacts.records import SCHEMA_VERSION, Record
from aorta.artefacts.traced import CollectiveTotal, Contention, KernelTotal, QueueDepth
from aorta.errors import ArtefactError
from aorta.intervals import Intervals

_MAX_NUMBERS = 1 << 28
"""A packed column that claims more is no column."""


class Packed(Record, frozen=True, kw_only=True):
    """A column of int64: differences of neighbours, little endian, deflated; base64 in JSON."""

    count: int
    data: bytes


class TraceStep(Record, frozen=True, kw_only=True):
    """One step on the GPU, integer ns on the trace's clock.

    The parts `compute` to `host` and `unseen` sum to `end_ns - start_ns`; the `idle_*` to
    `data_wait_ns + host_ns`.
    """

    number: int
    start_ns: int
    end_ns: int
    compute_ns: int
    exposed_comm_ns: int
    exposed_copy_ns: int
    unclassified_ns: int
    data_wait_ns: int
    host_ns: int
    comm_ns: int
    hidden_comm_ns: int
    idle_loader_ns: int
    idle_sync_ns: int
    idle_launch_ns: int
    idle_elsewhere_ns: int
    short_gaps_ns: int
    """Idle outside of the loader, in gaps no longer than launching a few kernels takes."""
    long_gaps_ns: int
    launches: int
    unseen_ns: int = 0
    """In which the trace does not show what the GPU did."""
    unseen_by: list[int] = field(default_factory=list)
    """`unseen_ns` by reason, in the order of the summary's `unseen`."""
    host_work_ns: int | None = None
    """In which the host waited neither for its GPU nor for the loader; None: the trace holds no launches."""


class TracedCalls(Record, frozen=True, kw_only=True):
    """The collectives of the steps in order of launch, a column each; `group` and `op` are codes of names."""

    names: list[str]
    step: Packed
    group: Packed
    order: Packed
    """Within step and group."""
    sequence: Packed
    """-1: the trace has none."""
    op: Packed
    entry_ns: Packed
    end_ns: Packed
    seen: list[str]
    """The groups that occur in the trace, in its steps or not."""
    numbered: list[str]
    """Those of them whose every collective has a sequence number of its own."""


class TracedTimeline(Record, frozen=True, kw_only=True):
    """What waits are charged by: when the GPU computed, communicated, idled for the loader (pairs of ns)."""

    compute: Packed
    communication: Packed
    data: Packed
    calls: TracedCalls


class Unseen(Record, frozen=True, kw_only=True):
    """Why a trace does not show some of the time, and what would make it visible."""

    reason: str
    remedy: str


class TraceSummary(Record, frozen=True, kw_only=True):
    """One rank's trace, reduced."""

    schema_version: int = SCHEMA_VERSION
    rank: int
    rank_basis: str | None
    format: str
    """kineto | nsys | rocprofv3"""
    source: str
    """The trace's file."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Bytes of the files of this rank, by name: it is of them wherever they were copied to since."""
    host: str | None
    world_size: int | None
    """As the trace records it, or the size of its largest group; None: it records neither."""
    epoch_ns: int | None
    """Wall-clock ns of the trace's zero; None: its clock is not tied to the wall clock."""
    gpu_events: int
    communication_events: int
    steps: list[TraceStep]
    steps_basis: str
    whole: bool
    """The steps are whole and numbered, so that ranks can be compared; otherwise they are ranges of the host
    or the whole capture as one.
    """
    unknown: str | None
    """Why the communication part is not known; None: it is."""
    loader_marked: bool
    """Whether the trace names a loader or data range: without one, its time is the host's."""
    edge_calls: int
    """Communication kernels of no whole step."""
    kernels: list[KernelTotal]
    collectives: list[CollectiveTotal]
    queue_depth: QueueDepth | None
    contention: Contention | None
    timeline: TracedTimeline | None
    """None: the steps are not whole."""
    unseen: list[Unseen] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class Reduction(Record, frozen=True, kw_only=True):
    """`nodes/node<i>/traces/reduction.json`: what one node's reduction did."""

    schema_version: int = SCHEMA_VERSION
    node_index: int | None
    ranks: list[int]
    """Those with a summary."""
    problems: list[Problem]
    """Of files that gave no summary."""


def pack(column: Column) -> Packed:
    """A column, or intervals of shape (n, 2) row by row."""
    flat = np.ascontiguousarray(column, dtype="<i8").reshape(-1)
    steps = np.diff(flat, prepend=np.zeros(1, dtype="<i8"))
    return Packed(count=len(flat), data=zlib.compress(steps.tobytes(), 6))


def unpack(packed: Packed) -> Column:
    """The column of `pack`.

    Raises:
        ArtefactError: it does not hold what it says.
    """
    size = packed.count * 8
    if not 0 <= packed.count <= _MAX_NUMBERS:
        raise ArtefactError(f"a packed column claims {packed.count} numbers")
    inflate = zlib.decompressobj()
    try:
        text = inflate.decompress(packed.data, size + 1)
    except zlib.error as error:
        raise ArtefactError(f"a packed column is damaged ({error})") from error
    if len(text) != size:
        raise ArtefactError(f"a packed column of {packed.count} numbers holds {len(text)} bytes")
    return np.cumsum(np.frombuffer(text, dtype="<i8"), dtype=np.int64)


def unpack_intervals(packed: Packed) -> Intervals:
    """Intervals of shape (n, 2).

    Raises:
        ArtefactError: as `unpack`, or an odd number of ends.
    """
    flat = unpack(packed)
    if len(flat) % 2:
        raise ArtefactError(f"packed intervals have {len(flat)} ends")
    return flat.reshape(-1, 2)
