"""`nodes/node<i>/traces/rank_<r>.json`: one rank's trace, reduced on the node that wrote it.

It holds what the analysis needs of a trace, exactly, at a small part of its size.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from msgspec import field

from aorta.artefacts.analysis import Problem
from aorta.artefacts.events import Trace
from aorta.artefacts.hostline import HostLine
from aorta.artefacts.packed import Packed
from aorta.artefacts.records import SCHEMA_VERSION, Record
from aorta.artefacts.traced import CollectiveTotal, Contention, KernelTotal, QueueDepth


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
    """In which the host waited neither for its GPU nor for the loader. None if the trace holds no launches.
    """
    between_ns: dict[str, int] | None = None
    """Idle time that belongs to no step, by what the host did; a part of the `idle_*`. None if not recorded.
    """


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
    size: Packed | None = None
    """Bytes; -1: the trace has none. None in a summary of an older version, which did not keep it."""
    sent: Packed | None = None
    """Code of the bytes that an all-to-all sends to each member; as `size` where there are none."""
    seen: list[str]
    """The groups that occur in the trace, in its steps or not."""
    numbered: list[str]
    """Groups among them whose every collective has a sequence number of its own."""


class TracedPasses(Record, frozen=True, kw_only=True):
    """Forward and backward passes of a pipeline's microbatches, a column each."""

    step: Packed
    code: Packed
    """0: forward; 1: backward; 2: backward of the weights."""
    stage: Packed
    microbatch: Packed
    start_ns: Packed
    end_ns: Packed
    busy_ns: Packed


class TracedTimeline(Record, frozen=True, kw_only=True):
    """Says what waits are charged by.

    When the GPU computed, communicated, idled for the loader (pairs of ns).
    """

    compute: Packed
    communication: Packed
    data: Packed
    calls: TracedCalls
    passes: TracedPasses | None = None
    """None: nothing is sent or received."""


class UnseenReason(Record, frozen=True, kw_only=True):
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
    """Number of ranks as the trace records it, or the size of its largest group; None: it records neither."""
    epoch_ns: int | None
    """Wall-clock ns of the trace's zero. None if its clock is not tied to the wall clock."""
    gpu_events: int
    communication_events: int
    steps: list[TraceStep]
    steps_basis: str
    whole: bool
    """The steps are whole and numbered, so that ranks can be compared; otherwise they are ranges of the host
    or the whole capture as one.
    """
    unknown: str | None
    """Why the communication part is not known. None if it is."""
    loader_marked: bool
    """True if the trace names a loader or data range: without one, its time is the host's."""
    edge_calls: int
    """Communication kernels of no whole step."""
    kernels: list[KernelTotal]
    collectives: list[CollectiveTotal]
    queue_depth: QueueDepth | None
    contention: Contention | None
    timeline: TracedTimeline | None
    """None: the steps are not whole."""
    unseen: list[UnseenReason] = field(default_factory=list)
    line: HostLine | None = None
    """None: the trace joins no launch to its kernel."""
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class Reduction(Record, frozen=True, kw_only=True):
    """`nodes/node<i>/traces/reduction.json`: what one node's reduction did."""

    schema_version: int = SCHEMA_VERSION
    node_index: int | None
    ranks: list[int]
    """Ranks with a summary."""
    problems: list[Problem]
    """Problems of the files that gave no summary."""


class Reducer(NamedTuple):
    """The arithmetic on traces that readers need and may not import."""

    summarise: Callable[[Trace], TraceSummary]
    latest: Callable[[TraceSummary, Collection[int]], TraceSummary]
    """The summary of some of its steps."""
    check: Callable[[TraceSummary], object]
    """Raises an `ArtefactError` for a summary that contradicts itself."""
    parts: tuple[Callable[[Trace], Any], ...]
    """Parts of `summarise` that take about as long; none needs another."""
    joined: Callable[[Sequence[Any]], TraceSummary]
    """The summary, of what each of `parts` made of a trace."""
