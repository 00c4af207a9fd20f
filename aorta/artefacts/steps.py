"""Step records as the analysis reads them: the fields that the arithmetic needs, and no others.

A `rank_<rank>_metrics.jsonl` line is a `StepRecord`; these types decode the same line faster and smaller:
what they do not name is skipped. None of them can be part of a cycle, so the collector need not look at them.
"""

from __future__ import annotations

from msgspec import Struct

from aorta.artefacts.records import Breakdown
from aorta.artefacts.step_names import Between, Phase


class CollectiveId(Struct, frozen=True, kw_only=True, gc=False):
    """Says what names a collective across ranks; None where the record does not say."""

    op: str | None = None
    group: str | None = None
    seq: int | None = None
    bytes: int | None = None
    peer: int | None = None
    """Global rank of the other side of a send or receive."""
    stage: int | None = None
    """Stage of a pipeline that a microbatch passed through."""
    microbatch: int | None = None


class StepRange(Struct, frozen=True, kw_only=True, gc=False):
    """`Range` without what is derived; ms since the step's start, six decimals."""

    stream: str
    tag: str
    start_ms: float
    end_ms: float
    metadata: CollectiveId | None = None


class StepRanges(Struct, frozen=True, kw_only=True, gc=False):
    """`StepProfile`, its ranges alone."""

    ranges: list[StepRange]


class StepExecution(Struct, frozen=True, kw_only=True, gc=False):
    """`Execution`, what tells how busy the GPU was."""

    per_stream_ms: dict[str, float]
    kernels: int
    hidden_comm_ms: float | None = None


class DecodedStep(Struct, frozen=True, kw_only=True, gc=False):
    """`StepRecord` without what the analysis does not use."""

    host: str
    attempt: int
    rank: int
    world_size: int
    device: str
    job_id: str
    global_step: int
    phase: Phase
    wall_start_ns: int
    wall_end_ns: int
    mono_start_ns: int
    mono_end_ns: int
    samples: int | None
    timing: str
    breakdown: Breakdown | None
    memory_peak_bytes: int | None = None
    memory_total_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    alloc_retries: int | None = None
    profile: StepRanges | None = None
    epoch: int | None = None
    device_uuid: str | None = None
    execution: StepExecution | None = None
    detailed: bool = True
    untimed_calls: dict[str, int] | None = None
    before_ms: dict[Between, float] | None = None

    @property
    def duration_ns(self) -> int:
        """The step's length on the monotonic clock."""
        return self.mono_end_ns - self.mono_start_ns
