"""Schemas of what a run writes. Absent is None, never 0.

Times are integer ns unless the name says otherwise. Writers and readers share these types; readers ignore
fields that they do not know.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct, field

SCHEMA_VERSION = 1


class Record(Struct, frozen=True, kw_only=True):
    """Base of every record on disk."""


# --- written at submission ---------------------------------------------------------------------------------


class SubmittedJob(Record, frozen=True, kw_only=True):
    """One line of `jobs.jsonl`, written as the scheduler accepts the job."""

    job_id: str
    scenario: str
    nodes: int
    run_dir: str
    submitted_wall_ns: int
    executor: Literal["slurm", "local"]
    cluster: str | None = None


# --- written by the node agent -----------------------------------------------------------------------------


class ClockTriple(Record, frozen=True, kw_only=True):
    """One instant on three clocks, read back to back."""

    realtime_ns: int
    monotonic_ns: int
    boottime_ns: int


class GpuInfo(Record, frozen=True, kw_only=True):
    """A GPU of the job."""

    index: int
    """As this process sees it (torch ordinal)."""
    uuid: str
    name: str
    memory_total_bytes: int | None = None


class ProfilerChoice(Record, frozen=True, kw_only=True):
    """Which external profiler was asked for, which one runs, and why."""

    requested: str
    resolved: str
    reason: str
    version: str | None = None
    program: str | None = None
    """Where it is."""
    notes: list[str] = field(default_factory=list)
    """What to know about it here: an unknown version, something asked for that it cannot do."""


class NodeInfo(Record, frozen=True, kw_only=True):
    """What a node is; written before its first process starts."""

    schema_version: int = SCHEMA_VERSION
    node_index: int
    host: str
    slurm_node: str | None
    attempt: int
    cpus_usable: int
    memory_limit_bytes: int | None
    gpus: list[GpuInfo]
    processes: int
    """Ranks on this node."""
    clock: ClockTriple
    profiler: ProfilerChoice
    packages: dict[str, str]
    environment: dict[str, str]
    """Allow-listed variables only."""
    machine: str | None = None
    """The kernel's boot id: nodes that share it are one machine."""
    network: str | None = None
    """Identity of the network namespace: within one, loopback reaches every process of the machine."""
    addresses: list[str] = field(default_factory=list)
    """Addresses of this node that others may reach: no loopback, no link-local."""
    cpus_machine: int | None = None
    """CPUs of the whole machine; nodes of one machine that may use all of them share them."""


class Plan(Record, frozen=True, kw_only=True):
    """What was asked for, resolved."""

    scenario: str
    nodes: int
    processes_per_node: int | None
    """None: as many as there are GPUs, one without."""
    gpus_per_node: int | None
    command: list[str]
    """What torchrun starts: the trainer, or the user's program."""
    profiler: str
    monitor_interval_s: float
    time_limit_s: int | None = None
    workload: str | None = None


MAX_RANKS = 1_000_000
"""A world size above it is no measurement."""


class Manifest(Record, frozen=True, kw_only=True):
    """What a run was; written by node 0 before the first process starts."""

    schema_version: int = SCHEMA_VERSION
    run_id: str
    job_id: str
    executor: Literal["slurm", "local"]
    attempt: int
    scenario: str
    started_wall_ns: int
    submitted_wall_ns: int | None
    code_version: str
    world_size: int
    plan: Plan
    nodes: list[NodeInfo]
    nodes_missing: list[int]
    shared_machine: bool
    """Nodes are processes of one machine (local executor): scaling is that machine's."""


class Session(Record, frozen=True, kw_only=True):
    """Node 0's word to the other nodes of the same attempt."""

    attempt: int
    token: str
    stage: Literal["gather", "start", "abort"]
    master_address: str | None = None
    master_port: int | None = None
    first_rank: list[int] = field(default_factory=list)
    """First global rank of each node."""
    world_size: int | None = None
    reason: str | None = None
    ends_wall_ns: int | None = None
    """When the scheduler will end the job, as node 0 knows it; None: no limit, or nobody says."""


class RankExit(Record, frozen=True, kw_only=True):
    """How one rank ended."""

    rank: int
    exit_code: int | None
    signal: str | None
    error: str | None = None


class MonitorStatus(Record, frozen=True, kw_only=True):
    """How the sampler of a node fared."""

    interval_s: float
    samples: int
    missed: int
    max_late_ms: float
    gpu_source: str | None
    """None: no GPU file, `gpu_reason` says why."""
    gpu_reason: str | None
    stopped_by: str | None = None
    """`signal`, `parent` (it had ended), `end` (of the duration), `write` (see `write_error`) or None while
    running (or killed).
    """
    gpu_errors: dict[str, int] = field(default_factory=dict)
    """Why GPU samples are empty, with how often."""
    write_error: str | None = None


State = Literal["running", "completed", "failed", "cancelled", "timeout"]


FIRST_FAILURE = "first failure on this node: "
"""Begins the words in `NodeStatus.lost` on the rank that failed before the others of its node."""


class NodeStatus(Record, frozen=True, kw_only=True):
    """Terminal marker of a node."""

    schema_version: int = SCHEMA_VERSION
    node_index: int
    host: str
    attempt: int
    state: State
    started_wall_ns: int
    ended_wall_ns: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    ranks: list[RankExit] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    """What should be here and is not, in words."""


class RunStatus(Record, frozen=True, kw_only=True):
    """The nodes' markers, merged."""

    schema_version: int = SCHEMA_VERSION
    job_id: str
    attempt: int
    state: State
    nodes: list[NodeStatus]
    nodes_missing: list[int]


# --- written by the trainer --------------------------------------------------------------------------------


class Range(Record, frozen=True, kw_only=True):
    """A timed piece of a step on one stream; ms since the step's start with ns precision (six decimals)."""

    stream: str
    """compute | allreduce | reducescatter | allgather | aux | host"""
    tag: str
    start_ms: float
    end_ms: float
    duration_ms: float
    metadata: dict[str, Any] | None = None
    """Of a collective: op, group, seq, bytes. `seq` is the order of the group's collectives within a step.
    From step to step it goes on counting, but of the steps that are timed as a whole only some collectives:
    gaps say nothing, and ranks that timed different steps part by part are shifted against each other.
    """


class Overlap(Record, frozen=True, kw_only=True):
    """Overlap of communication and compute in one step."""

    per_stream_ms: dict[str, float]
    overlap_ms: dict[str, float]
    """compute_allreduce, compute_reducescatter, compute_allgather, compute_comm, idle"""
    overlap_ratio: float | None
    """hidden / communication; None without communication."""
    active_segments: list[dict[str, Any]]
    """[{start_ms, end_ms, active_streams}] on the clock of the ranges."""
    utilization: float | None


class WindowExcess(Record, frozen=True, kw_only=True):
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


class Execution(Record, frozen=True, kw_only=True):
    """What ran on the GPU in one sampled step, from kernel activity. Ranges are windows (ready to done); this
    is execution."""

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


class StepProfile(Record, frozen=True, kw_only=True):
    """Everything timed inside one step."""

    index: int
    total_ms: float
    ranges: list[Range]
    markers: list[dict[str, Any]]
    overlap: Overlap


class Breakdown(Record, frozen=True, kw_only=True, gc=False):
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


Phase = Literal["warmup", "steady", "validation", "checkpoint", "profiler"]


class StepRecord(Record, frozen=True, kw_only=True):
    """One optimizer step of one rank: a line of `rank_<rank>_metrics.jsonl`."""

    schema_version: int = SCHEMA_VERSION
    run_id: str
    job_id: str
    host: str
    attempt: int
    rank: int
    local_rank: int
    world_size: int
    device: str
    device_uuid: str | None
    epoch: int
    step: int
    global_step: int
    phase: Phase
    wall_start_ns: int
    wall_end_ns: int
    mono_start_ns: int
    mono_end_ns: int
    samples: int
    """Samples that this rank consumed in this step."""
    data_wait_ms: float
    timing: Literal["host", "event_window", "kernel"]
    """What the ranges are: host timers, event windows (ready to done), or kernel activity."""
    breakdown: Breakdown | None
    """None: communication was not observed, or the step was not timed part by part (`detailed`)."""
    loss: float | None
    grad_norm: float | None
    lr: float
    memory_peak_bytes: int | None = None
    memory_total_bytes: int | None = None
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
    """Of sampled steps only (`capture.kernel_interval`)."""
    rocm_smi_output: str | None = None
    """What the tool printed in a sample that came during this step; None where none did."""
    detailed: bool = True
    """Timed part by part. False: as a whole, which costs next to nothing; breakdown, ranges, memory counters
    and execution are then absent, all else is there.
    """


METRICS_COLUMNS = tuple(
    (
        "epoch,train_loss,val_loss,val_mae,val_rmse,epoch_time_sec,throughput_samples_per_sec,data_load_time_sec,"
        "compute_time_sec,gpu_util_avg,cpu_util_avg,exposed_comm_time_sec,steps,samples"
    ).split(",")
)
"""`metrics.csv`: throughput is global (all ranks), times are means over ranks; empty means not measured."""
