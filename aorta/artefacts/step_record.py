"""A step record: one line of `rank_<rank>_metrics.jsonl`, as it is written.

The standard library alone: it is written beside programs in whose Python nothing of ours is installed. The
analysis reads the same line with `aorta.artefacts.steps`. Absent is None, never 0. Times are integer ns
unless the name says otherwise.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Literal

from aorta.artefacts.step_names import Between, Phase

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """A timed piece of a step on one stream; ms since the step's start with ns precision (six decimals)."""

    stream: str
    """compute | aux | host | one of `COMMUNICATION_STREAMS`"""
    tag: str
    start_ms: float
    end_ms: float
    duration_ms: float
    metadata: dict[str, Any] | None = None
    """Details of the range. A collective has op, group, seq and bytes. A send or receive also has `peer`, the
    global rank of the other side (absent: from any rank). An all-to-all with unequal parts has `peer_bytes`,
    the bytes to each rank of the group. A pass of a microbatch through a stage of a pipeline has op, stage
    and microbatch. Sends to a peer are counted apart, as are receives from it.

    `seq` is the order of the group's collectives within a step. From step to step it goes on counting, but
    only some collectives of the steps that are timed as a whole are counted. So gaps say nothing, and ranks
    that timed different steps part by part are shifted against each other.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Overlap of communication and compute in one step."""

    per_stream_ms: dict[str, float]
    overlap_ms: dict[str, float]
    """compute_allreduce, compute_reducescatter, compute_allgather, compute_comm, idle, and `compute_` with
    the name of each further stream of communication that ran"""
    overlap_ratio: float | None
    """hidden / communication; None without communication."""
    active_segments: list[dict[str, Any]]
    """[{start_ms, end_ms, active_streams}] on the clock of the ranges."""
    utilization: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowExcess:
    """Why the windows of a stream's collectives are longer than their kernels; the parts sum to it."""

    launch_ms: float
    """Data ready, kernel not yet launched by the host."""
    queue_ms: float
    """Launched, and waiting for its turn on the GPU."""
    tail_ms: float
    """Kernel done, end of the window not yet passed."""
    behind_ms: float | None = None
    """Part of `queue_ms` in which another collective of this rank ran: NCCL runs those of one communicator
    one after another, also those of different streams.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """Says what ran on the GPU in one sampled step, by kernel activity.

    Ranges are windows (ready to done); this is execution."""

    per_stream_ms: dict[str, float]
    """Union of the kernels: compute, allreduce, reducescatter, allgather."""
    comm_ms: float
    hidden_comm_ms: float
    overlap_ratio: float | None
    """hidden / communication; None without communication."""
    kernels: int
    window_ms: dict[str, float]
    """Sum of the windows of each stream, for the collectives that have a kernel here."""
    excess_ms: dict[str, WindowExcess]
    unmatched: int
    """Collectives whose windows and kernels could not be paired: the two lists differ in length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProfile:
    """Everything timed inside one step."""

    index: int
    total_ms: float
    ranges: list[Range]
    markers: list[dict[str, Any]]
    overlap: Overlap


@dataclass(frozen=True, slots=True, kw_only=True)
class StepParts:
    """The exclusive parts of one step; they sum to its duration exactly, in ns."""

    compute_ns: int
    exposed_comm_ns: int
    exposed_copy_ns: int | None
    """None: copies were not timed (they are then in the host part)."""
    data_wait_ns: int
    host_ns: int
    comm_ns: int
    """All communication, hidden and exposed: not a part of the sum."""
    hidden_comm_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankIdentity:
    """The run, the job and the place of a rank in them."""

    run_id: str
    job_id: str
    host: str
    attempt: int
    rank: int
    local_rank: int
    world_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankConstants(RankIdentity):
    """The fields of a step record that stay the same during a run."""

    device: str
    device_uuid: str | None
    memory_total_bytes: int | None = None
    timing: Literal["host", "event_window", "kernel"]
    """The kind of ranges: host timers, event windows (ready to done), or kernel activity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord(RankConstants):
    """One optimizer step of one rank: a line of `rank_<rank>_metrics.jsonl`."""

    schema_version: int = SCHEMA_VERSION
    epoch: int | None
    """None: not seen."""
    step: int
    """Number within the epoch; where that is not known, within the run."""
    global_step: int
    phase: Phase
    wall_start_ns: int
    wall_end_ns: int
    mono_start_ns: int
    mono_end_ns: int
    samples: int | None
    """Samples that this rank consumed in this step; None if not counted."""
    data_wait_ms: float
    breakdown: StepParts | None
    """None: communication was not observed, or the step was not timed part by part (`detailed`)."""
    loss: float | None
    grad_norm: float | None
    lr: float | None
    memory_peak_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    """Peak of what the allocator held of the GPU: tensors (their peak is `memory_peak_bytes`), cached blocks
    and split ones.
    """
    alloc_retries: int | None = None
    """Calls of cudaMalloc in this step that failed and were repeated after the allocator had given its cache
    back, for which it waits until the GPU is done.
    """
    alloc_ooms: int | None = None
    """Requests in this step that failed all the same."""
    boot_start_ns: int | None = None
    """The step's start on CLOCK_BOOTTIME, which rocprofv3 counts by (nsys and Kineto: wall clock)."""
    profile: StepProfile | None = None
    execution: Execution | None = None
    """Recorded in sampled steps only (`capture.kernel_interval`)."""
    rocm_smi_output: str | None = None
    """Output of the tool in a sample during this step. None if there was none."""
    detailed: bool = True
    """Timed part by part. False: as a whole, which costs next to nothing; breakdown, ranges, memory counters
    and execution are then absent, all else is there.
    """
    untimed_calls: dict[str, int] | None = None
    """Calls of `torch.distributed` that were seen in this step and could not be timed, by operation: {} means
    that all were timed, None that calls were not counted. Their time is in other parts of the breakdown.
    """
    before_ms: dict[Between, float] | None = None
    """Time between the step before and this one that the program gave a name. None if it named none."""


def encode(record: StepRecord) -> bytes:
    """The record as JSON, without the end of the line."""
    return json.dumps(record, default=_fields, separators=(",", ":"), allow_nan=False).encode()


def _fields(part: Any) -> dict[str, Any]:
    kind: Any = type(part)
    return {name: getattr(part, name) for name in _names(kind)}


@cache
def _names(of: Any) -> tuple[str, ...]:
    return tuple(item.name for item in fields(of))
