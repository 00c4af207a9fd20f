"""Describes what is said of a traced rank beside its breakdown.

Shared by a rank's summary and by the analysis.
"""

from __future__ import annotations

from msgspec import field

from aorta.artefacts.records import Record


class KernelTotal(Record, frozen=True, kw_only=True):
    """All GPU events of one name and kind; times are sums over events, which may overlap each other."""

    name: str
    kind: str
    """compute | communication | copy | memset | unclassified"""
    count: int
    total_ns: int
    median_ns: float
    min_ns: int
    max_ns: int
    share: float
    """Share of the sum over all events of the device."""


class CollectiveTotal(Record, frozen=True, kw_only=True):
    """All collectives of one operation, group and size."""

    op: str | None
    """None: the trace does not tell which."""
    group: str | None
    bytes: int | None
    """The size in the sense of nccl-tests: the larger of input and output of one rank."""
    count: int
    total_ns: int
    median_ns: float
    exposed_ns: int
    """Part of the total in which no compute kernel ran."""
    bus_gb_per_s: float | None
    """At the median time; a lower bound of the link's, as a collective's time contains waiting for others."""


class QueueDepth(Record, frozen=True, kw_only=True):
    """Work that was launched and had not started, at each launch."""

    launches: int
    median: float
    p10: float
    empty_share: float
    """Share of the launches that found the GPU with nothing queued: the host is late."""


class Contention(Record, frozen=True, kw_only=True):
    """Tells how much longer compute kernels take while communication runs beside them."""

    ns_per_step: float
    """Sum over kernels of time beside communication − median time of the same name and shape alone."""
    kernels: int
    """Kernels that ran beside communication and have a usual time."""
    unknown: int
    """Kernels that ran beside communication, without one."""
    slowdown: float
    """Time of those kernels over their usual time."""


class RankTrace(Record, frozen=True, kw_only=True):
    """One rank in the analysis: mean idle time of its GPU per step by what the host did, and what stood out.

    The four idle parts sum to the data wait and the host's part of the breakdown.
    """

    rank: int
    source: str
    """The file."""
    steps: int
    idle_loader_ms: float
    idle_sync_ms: float
    """The host waited for a GPU that had nothing to do."""
    idle_launch_ms: float
    """The host was in driver calls."""
    idle_elsewhere_ms: float
    queue_depth: QueueDepth | None
    """None: the trace joins no launch to its kernel."""
    contention: Contention | None
    """None: no kernel of a known usual time ran beside communication."""
    kernels: list[KernelTotal] = field(default_factory=list)
    collectives: list[CollectiveTotal] = field(default_factory=list)


class TraceTable(Record, frozen=True, kw_only=True):
    """Says what the traces of one capture say."""

    format: str
    per_rank: list[RankTrace]
    from_summaries: bool = False
    """Read from the summaries that the nodes wrote in the job, not from the traces."""
    stands: bool = False
    """They cover all ranks of a run, and its breakdown is of them."""


class ProfilerOverhead(Record, frozen=True, kw_only=True):
    """Steps inside a profiler's capture against steps of the same run outside of it."""

    ratio: float | None
    """Median step inside over median step outside; None: `reason` says why."""
    inside_steps: int
    outside_steps: int
    inside_ms: float | None = None
    outside_ms: float | None = None
    reason: str | None = None
