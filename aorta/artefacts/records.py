"""Schemas of what a run writes. Absent is None, never 0.

Times are integer ns unless the name says otherwise. Writers and readers share these types; readers ignore
fields that they do not know.
"""

from __future__ import annotations

import re
from typing import Literal

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
    owner: ProcessId | None = None
    """The process that runs a job on this machine. None if a cluster does."""
    program: str | None = None
    """The file or module of a program of the user's own. None for the built-in trainer, or if not recorded.
    """


# --- written by the node agent -----------------------------------------------------------------------------


class ClockTriple(Record, frozen=True, kw_only=True):
    """One instant on three clocks, read back to back."""

    realtime_ns: int
    monotonic_ns: int
    boottime_ns: int


class GpuInfo(Record, frozen=True, kw_only=True):
    """A GPU of the job."""

    index: int
    """Index as this process sees it (torch ordinal)."""
    uuid: str
    name: str
    memory_total_bytes: int | None = None


class ProfilerChoice(Record, frozen=True, kw_only=True):
    """Tells which external profiler was asked for, which one runs, and why."""

    requested: str
    resolved: str
    reason: str
    version: str | None = None
    program: str | None = None
    """Place where it is."""
    notes: list[str] = field(default_factory=list)
    """A note about it on this node, such as an unknown version, or an option that it does not support."""
    ranged: bool | None = None
    """It records the steps of `capture` and no others. None if an older run did not say."""


class NodeInfo(Record, frozen=True, kw_only=True):
    """Says what a node is; written before its first process starts."""

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
    memory_of_job: bool | None = None
    """The memory that is sampled is the job's alone: its cgroup names the job. None if not recorded."""
    cpus_machine: int | None = None
    """CPUs of the whole machine; nodes of one machine that may use all of them share them."""


class ContainerRun(Record, frozen=True, kw_only=True):
    """The container that each node's ranks ran in."""

    image: str
    runtime: str

    def __str__(self) -> str:
        return f"{self.image} by {self.runtime}"


class ResolvedPlan(Record, frozen=True, kw_only=True):
    """Says what was asked for, resolved."""

    scenario: str
    nodes: int
    processes_per_node: int | None
    """None: as many as there are GPUs, one without."""
    gpus_per_node: int | None
    command: list[str]
    """The program that torchrun starts: the trainer, or the user's program."""
    profiler: str
    monitor_interval_s: float
    time_limit_s: int | None = None
    workload: str | None = None
    instrument: str | None = None
    """`auto`: hooks were to be put into the user's program. None if an earlier version wrote it."""
    container: ContainerRun | None = None
    """None: the ranks ran on the nodes themselves."""


MAX_RANKS = 1_000_000
"""A world size above it is no measurement."""


class Manifest(Record, frozen=True, kw_only=True):
    """Says what a run was; written by node 0 before the first process starts."""

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
    plan: ResolvedPlan
    nodes: list[NodeInfo]
    nodes_missing: list[int]
    shared_machine: bool
    """Nodes are processes of one machine (local executor): scaling is that machine's."""
    program_commit: str | None = None
    """The commit of a program of the user's own. None if it is in no git checkout, or this is our trainer."""


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
    """Time when the scheduler will end the job, as node 0 knows it. None if there is no limit, or if it is
    not known.
    """


class RankExit(Record, frozen=True, kw_only=True):
    """Tells how one rank ended."""

    rank: int
    exit_code: int | None
    signal: str | None
    error: str | None = None


class MonitorStatus(Record, frozen=True, kw_only=True):
    """Tells how the sampler of a node fared."""

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
_OF_A_PEER = re.compile(r"by peer|broken pipe|remote process exited|recvvalue failed|sendbytes failed", re.I)


def blames_peer(failure: str) -> bool:
    """True if a rank failed as another one was gone, by the words of its error."""
    return _OF_A_PEER.search(failure) is not None


class ProcessId(Record, frozen=True, kw_only=True):
    """One process for good: ids of processes are given again."""

    pid: int
    started_ticks: int
    """In clock ticks since boot."""
    machine: str
    """The boot of the machine, and the namespace of its processes: elsewhere this is unknown."""


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
    """Things that should be here and are not, in words."""
    agent: ProcessId | None = None
    """The node agent. None if an earlier version wrote the marker."""
    saving: bool = False
    """The node's ranks have ended; traces and samples are being put in their places."""


class RunStatus(Record, frozen=True, kw_only=True):
    """The nodes' markers, merged."""

    schema_version: int = SCHEMA_VERSION
    job_id: str
    attempt: int
    state: State
    nodes: list[NodeStatus]
    nodes_missing: list[int]


# --- written by the trainer --------------------------------------------------------------------------------


class Planned(Record, frozen=True, kw_only=True):
    """Says what the trainer is to do, written before its first step: by this, progress is measured."""

    steps: int
    """Optimizer steps of each rank, if nothing ends the training before."""


class Breakdown(Record, frozen=True, kw_only=True, gc=False):
    """`step_record.Parts` as the analysis reads them."""

    compute_ns: int
    exposed_comm_ns: int
    exposed_copy_ns: int | None
    """None: copies were not timed (they are then in the host part)."""
    data_wait_ns: int
    host_ns: int
    comm_ns: int
    """All communication, hidden and exposed: not a part of the sum."""
    hidden_comm_ns: int


METRICS_COLUMNS = tuple(
    (
        "epoch,train_loss,val_loss,val_mae,val_rmse,epoch_time_sec,throughput_samples_per_sec,data_load_time_sec,"
        "compute_time_sec,gpu_util_avg,cpu_util_avg,exposed_comm_time_sec,steps,samples"
    ).split(",")
)
"""`metrics.csv`: throughput is global (all ranks), times are means over ranks; empty means not measured."""
