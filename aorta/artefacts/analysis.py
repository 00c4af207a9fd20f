"""`profiling_analysis.json` and its aggregate: what other programs read. Fields are added, never renamed."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import field

from aorta.artefacts.records import SCHEMA_VERSION, Record

Kind = Literal[
    "gpu_underutilization",
    "data_loading",
    "communication",
    "memory_pressure",
    "straggler",
    "host_bound",
    "insufficient_data",
    "healthy",
]
Severity = Literal["critical", "warning", "info"]


class Problem(Record, frozen=True, kw_only=True):
    """A file that could not be used, or something that should be there and is not."""

    file: str | None
    reason: str


class DataQuality(Record, frozen=True, kw_only=True):
    """What the findings stand on."""

    ranks_expected: int | None
    ranks_seen: int
    sources: list[str]
    problems: list[Problem]
    nodes_expected: int | None = None
    nodes_seen: int = 0
    steady_steps: int = 0
    state: str | None = None
    """How the job ended, by its own markers and the accounting."""
    notes: list[str] = field(default_factory=list)
    """What a reader must know before reading on, such as nodes that share one machine."""


class Speedup(Record, frozen=True, kw_only=True):
    """Step time now over step time without the cause, as a range."""

    low: float
    high: float


class Finding(Record, frozen=True, kw_only=True):
    """One cause, with what shows it and what to do."""

    kind: Kind
    severity: Severity
    cause: str
    ranks: list[int]
    """Empty: all."""
    nodes: list[str]
    value: float | None
    threshold: float | None
    unit: str
    evidence: dict[str, Any]
    estimated_speedup: Speedup | None
    actions: list[str]
    symptom_of: str | None = None
    """Kind of the finding that explains this one."""


class Measured(Record, frozen=True, kw_only=True):
    """One rule's answer, fired or not: value beside threshold, or why there is none."""

    kind: Kind
    value: float | None
    threshold: float
    unit: str
    fired: bool
    reason: str | None = None
    """Why the value is absent: `not measurable: ...`."""


class Verdict(Record, frozen=True, kw_only=True):
    """The one sentence."""

    kind: Kind
    statement: str
    ranks: list[int]


class RankBreakdown(Record, frozen=True, kw_only=True):
    """Means over the steady steps of one rank, in ms a step; the five parts sum to step_ms."""

    rank: int
    host: str | None
    steps: int
    step_ms: float
    compute_ms: float
    exposed_comm_ms: float
    exposed_copy_ms: float | None
    data_wait_ms: float
    host_ms: float
    comm_ms: float
    overlap_ratio: float | None
    wait_ms: float | None = None
    transfer_ms: float | None = None
    unclassified_ms: float | None = None
    """From traces: GPU time of events that nothing names; a sixth part of the sum."""


class BreakdownTable(Record, frozen=True, kw_only=True):
    """The breakdown of a scenario."""

    steps: int
    per_rank: list[RankBreakdown]
    timing: str | None = None


class Blame(Record, frozen=True, kw_only=True):
    """Time of other ranks that one rank's cause costs."""

    rank: int
    cause: str
    lost_ms_per_step: float


class Throughput(Record, frozen=True, kw_only=True):
    """Global samples per second over the steady window, by each rank's own clock."""

    samples_per_s: float
    global_batch: int
    per_rank_batch: int
    step_ms_median: float
    step_ms_p95: float
    cross_check_ratio: float | None
    """samples/s over global batch / median step time: 1 when the record agrees with itself."""
    step_ms_mean: float | None = None
    """The mean over steps; above the median where some steps are far slower than the rest."""
    slowest_rank_ms_median: float | None = None
    """Step time of the slowest rank of each step; `step_ms_*` are of the mean over ranks."""
    slowest_rank_ms_p95: float | None = None


class Utilization(Record, frozen=True, kw_only=True):
    """Monitor samples inside the steady window; None where not measured."""

    gpu_util_pct: float | None
    """The driver's counter: says busy while a kernel waits."""
    effective_gpu_util_pct: float | None
    gpu_memory_used_pct: float | None
    gpu_power_w: float | None
    cpu_pct: float | None
    job_cpu_pct: float | None
    host_memory_used_pct: float | None
    samples: int
    job_memory_used_pct: float | None = None
    """Peak of the job's cgroup over its limit; None without a limit."""


class Analysis(Record, frozen=True, kw_only=True):
    """`profiling_analysis.json` of one run."""

    schema_version: int = SCHEMA_VERSION
    scenario: str | None
    job_id: str | None
    nodes: int | None
    world_size: int | None
    verdict: Verdict
    findings: list[Finding]
    measured: list[Measured]
    breakdown: BreakdownTable
    blame: list[Blame]
    throughput: Throughput | None
    utilization: Utilization | None
    data_quality: DataQuality
    thresholds: dict[str, float]
    shared_machine: bool = False
    device: str | None = None
    started_wall_ns: int | None = None
    program: str | None = None
    """What ran, without batch sizes, lengths and paths; None where nothing says."""
    settings: dict[str, str | int | float | bool | None] | None = None
    """What runs of one program must have in common to be compared, by dotted key; None: not known."""


class ScalingPoint(Record, frozen=True, kw_only=True):
    """One scenario in the scaling curve."""

    scenario: str
    nodes: int
    world_size: int
    samples_per_s: float
    speedup: float
    efficiency: float
    """E_n = (X_n / N_n) / (X_ref / N_ref), N in ranks."""
    global_batch: int
    flag: str | None = None
    """`superlinear` above 1.05."""


class Scaling(Record, frozen=True, kw_only=True):
    """Scaling over the valid scenarios of one family."""

    family: str
    reference: str | None
    label: Literal["strong", "weak", "mixed"] | None
    points: list[ScalingPoint]
    reason: str | None = None
    """Why there is no curve, or what is not in it."""


class Aggregate(Record, frozen=True, kw_only=True):
    """`docs/BOTTLENECK_ANALYSIS.json`."""

    schema_version: int = SCHEMA_VERSION
    generated_wall_ns: int
    verdict: Verdict
    scenarios: list[Analysis]
    scaling: list[Scaling]
    missing: list[Problem]
    """Scenarios that were submitted and gave nothing, with the reason."""
    recommendations: list[str]
