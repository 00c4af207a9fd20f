"""`profiling_analysis.json`: what other programs read. Fields are added, never renamed."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import field

from aorta.artefacts.hang import Hang
from aorta.artefacts.mesh import Mesh, SlowdownRecord
from aorta.artefacts.mistakes import Mistake, Mistakes
from aorta.artefacts.records import SCHEMA_VERSION, Record
from aorta.artefacts.traced import ProfilerOverhead, TraceTable
from aorta.artefacts.unseen import BetweenSteps, Missing, UnseenTime
from aorta.artefacts.weight import ProfilerWeight

Kind = str
"""A kind of finding or verdict, such as `data_loading`. `aorta.diagnosis.findings` has one module per kind of
finding; its `NAMES` lists every kind."""
Answered = Literal["found", "not_found", "not_measurable"]
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
    detailed_steps: int | None = None
    """Number of steady steps that every rank timed part by part; None: all of them."""
    others_cpus: float | None = None
    """CPUs that other programs used on the fullest node, where hardly one was free; None: no such node."""
    last_step: int | None = None
    """The last step that every rank completed; None: there are no step records."""
    standstill_s: float | None = None
    """How long no step ended before the job did, where that is far more than a step takes."""
    failure: str | None = None
    """How the first rank failed, in its node's words; None where none did or nobody saw it."""
    contradictions: list[str] = field(default_factory=list)
    """Other sources of the same job that lead to another verdict, in words."""
    ranks_assumed: bool = False
    """Nothing records how many ranks there are: those seen, from 0 on without a gap, count as all."""


class Interval(Record, frozen=True, kw_only=True):
    """Where a quantity lies."""

    low: float
    high: float
    confidence: float | None = 0.95
    """Confidence level; None: `low` and `high` are the least and the most that two runs gave."""


class Speedup(Record, frozen=True, kw_only=True):
    """Step time now over step time without the cause, as a range."""

    low: float
    high: float
    """`basis` says what the range is."""
    expected: float | None = None
    """What the replay of these steps without the cause gives, inside the range; None where nothing was
    replayed."""
    step_ms: float | None = None
    """Step time without the cause that goes with `expected`."""
    basis: Literal["replay", "bounds"] = "bounds"
    """`replay`: the range is the 95 % interval of another run without the cause. `bounds`: the part of the
    step that the cause takes, brought down to its threshold (low) or to nothing (high), and widened to
    `expected`; the range has no probability."""
    limit: float | None = None
    """Where `expected` is of the costliest part of the cause alone: the replay without all of it, such as an
    ideal network; None where `expected` is that, or nothing was replayed."""


class Lateness(Record, frozen=True, kw_only=True):
    """How often a rank was the last one, for so long that it shows."""

    rank: int
    host: str | None
    pattern: Literal["persistent", "intermittent", "one_off"]
    """In 80 % of the steps since the first one or more; less often; in a single unbroken stretch of at most
    5 % of the steps."""
    late_steps: int
    share_of_steps: float
    """0 to 1, of the detailed steady steps."""
    since_step: int
    """The first global step in which it was late, of the detailed ones."""
    late_ms: float
    """Mean over its late steps: how much later it came than the median rank."""


class LateNode(Record, frozen=True, kw_only=True):
    """A node all of whose ranks are late together while no rank of another node is."""

    host: str
    ranks: list[int]
    late_ms: float


class LatenessTable(Record, frozen=True, kw_only=True):
    """Late ranks, the worst first, and whether they are single ranks or whole nodes."""

    steps: int
    threshold_ms: float
    """A rank counts as late in a step where it comes this much later than the median rank."""
    ranks: list[Lateness]
    nodes: list[LateNode]
    scope: Literal["none", "rank", "node", "not_determined"]
    """`not_determined`: late ranks, but one rank per node: a slow rank and a slow node look the same."""


class ClockFit(Record, frozen=True, kw_only=True):
    """How the clock of some ranks was put beside that of the lowest rank, by the ends of collectives."""

    ranks: list[int]
    """The ranks that read this clock."""
    ahead_ms: float
    """In the middle of the run."""
    fast_ppm: float
    """How much faster the clock runs, in parts of a million; 0: no drift that shows above the scatter."""
    uncertainty_ms: float
    """After that, the median distance of the ends from each other."""


class WhatIf(Record, frozen=True, kw_only=True):
    """The steps replayed without one cause."""

    kind: Kind
    removed: str
    """What was taken away, in words."""
    ranks: list[int]
    """The ranks from which it was removed; empty: all ranks."""
    step_ms: float
    step_ms_interval: Interval | None
    """Interval of the mean step of another run without the cause; None with fewer than 10 steps."""
    speedup: float
    speedup_interval: Interval | None
    """Interval of the mean step now over that run's mean step; None with fewer than 10 steps."""
    alone_interval: Interval | None = None
    """The same by this run's own steps, whatever other runs say."""
    effect_interval: Interval | None = None
    """Interval of the speed-up of these very steps, by resampling them: above 1, there is an effect beyond
    their own noise; None with fewer than 10 steps."""
    bound: bool = False
    """What the hosts need for a step is not known, and may be the next limit: it takes this or longer."""


class Replay(Record, frozen=True, kw_only=True):
    """The model of the steps, what it makes of them unchanged, and its predictions."""

    steps: int
    measured_step_ms: float
    modelled_step_ms: float
    """Replayed with its own transfers, which gives the measured step: what speed-ups are relative to."""
    error_pct: float | None
    """The check: how far half of the steps, replayed with the transfers of the other half, miss their
    measured mean, the worse of both halves; predictions need 3 % or less. None: no collective to check."""
    ideal_network_step_ms: float | None
    """With every transfer taking no time; waits stay. None where predictions are withheld."""
    predictions: list[WhatIf]
    """The largest gain first; empty where they are withheld."""
    withheld: str | None = None
    """Why there are no predictions."""


class DevicePop(Record, frozen=True, kw_only=True):
    """The GPUs' branch of the POP factors: `load_balance` × `communication` × `orchestration` is the parallel
    efficiency of the devices."""

    parallel: float
    load_balance: float
    communication: float
    """max U / max (U + exposed communication + exposed copies)."""
    orchestration: float
    """max (U + exposed communication + exposed copies) / T: what launches, loaders and Python leave."""


class Pop(Record, frozen=True, kw_only=True):
    """POP efficiencies (0 to 1) of a run: U_i useful compute of rank i, T the step, N ranks.

    PE = sum U / (N T) = LB CommE; LB = mean U / max U; CommE = max U / T = SerE TE. The additive ones take
    lost shares from 1 instead: PE = 1 - (1 - LB) - (1 - CommE).
    """

    ranks: int
    step_ms: float
    useful_ms: float
    """Sum over ranks."""
    parallel: float
    load_balance: float
    communication: float
    serialisation: float | None
    """max U / T_ideal; None without a replay that reproduces the step."""
    transfer: float | None
    """T_ideal / T."""
    load_balance_inter_node: float | None
    """mean / max over nodes of a node's mean U; None where ranks' nodes are not known."""
    load_balance_intra_node: float | None
    additive_load_balance: float
    additive_communication: float
    additive_serialisation: float | None
    additive_transfer: float | None
    device: DevicePop | None = None
    """None without GPUs."""
    reason: str | None = None
    """Why a factor is absent."""


class CodeLocation(Record, frozen=True, kw_only=True):
    """A place in the program, from stacks that were sampled while it ran."""

    function: str
    file: str
    line: int
    share: float
    """Share of the step, 0 to 1, on the rank that is there longest."""
    longer_ms: float | None = None
    """Per step, over the median of the ranks that the finding does not name; None: it names all."""


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
    sub_cause: str | None = None
    """A code of the cause behind the cause, such as `workers_saturated` or `thermal_throttling`, with its
    measurements in `evidence`; `not_determined` where nothing measured tells; None: this kind has none."""
    sub_cause_text: str | None = None
    """The same in words, with the numbers."""
    where: CodeLocation | None = None
    """The function that takes the time; None: no stacks were sampled, or none of them tells."""
    lost_ms_per_step: float | None = None
    """Mean over ranks of the time that the cause takes of a step, of memory what its costliest symptom does;
    None: it takes none."""


class RuleMeasurement(Record, frozen=True, kw_only=True):
    """One rule's answer, fired or not: value beside threshold, or why there is none."""

    kind: Kind
    value: float | None
    threshold: float
    unit: str
    fired: bool
    reason: str | None = None
    """Why the value is absent: `not measurable: ...`."""
    answer: Answered | None = None
    """None: an earlier version wrote it, and `fired` and `value` tell."""
    remedy: str | None = None
    """What would make it measurable, as a command or a key to set."""


class Verdict(Record, frozen=True, kw_only=True):
    """The one sentence."""

    kind: Kind
    statement: str
    ranks: list[int]


class RankBreakdown(Record, frozen=True, kw_only=True):
    """Means over the detailed steady steps of one rank, in ms per step; the five parts sum to step_ms."""

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
    unseen_ms: float | None = None
    """From traces: time in which the trace does not show what the GPU did; a seventh part of the sum."""
    host_work_ms: float | None = None
    """From traces: how long the host neither waited for its GPU nor for its loader. It runs beside the GPU
    and is no part of the sum."""
    own_host_wait_ms: float | None = None
    """Part of the waits for other ranks' compute and host that would remain, because this rank's own host is
    as slow; None: not known."""


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
    samples_per_s_interval: Interval | None = None
    """Interval from resampling blocks of consecutive steps; None with too few steps."""
    step_ms_interval: Interval | None = None
    """Interval of the mean step, from the same resampling."""


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
    energy_per_sample_j: float | None = None
    """Energy of all GPUs of the job per training sample, J: the sum of their mean powers over samples/s."""
    sm_active_pct: float | None = None
    """Share of the multiprocessors that were busy, by NVML's performance monitoring."""
    tensor_active_pct: float | None = None
    """Share of the tensor cores' peak."""
    dram_active_pct: float | None = None
    """Share of the memory bandwidth in use."""


class DetailCost(Record, frozen=True, kw_only=True):
    """What timing part by part costs: steady steps timed so against those timed as a whole beside them."""

    ratio: float | None
    """`detailed_ms` over `whole_ms`; None: `reason` says why."""
    ratio_interval: Interval | None
    """Interval from resampling blocks of consecutive steps; None with fewer than 10 on either side."""
    detailed_steps: int
    whole_steps: int
    """On either side of each block of detailed ones, as many as the block has, where there are as many."""
    detailed_ms: float | None = None
    """Median; each step by its slowest rank."""
    whole_ms: float | None = None
    detailed_mean_ms: float | None = None
    whole_mean_ms: float | None = None
    """Mean of all steps timed as a whole. It is above `detailed_mean_ms` where the slow part happens in steps
    whose parts nobody timed."""
    reason: str | None = None


class Submitted(Record, frozen=True, kw_only=True):
    """Where a run came from; None for what is not recorded."""

    command: str | None
    """What torchrun started, as it can be typed."""
    commit: str | None
    """The version of the program's code."""
    submission: str | None
    """The folder of the submission that the run is a job of."""


class ThresholdChange(Record, frozen=True, kw_only=True):
    """What a threshold was, and what it was for this analysis."""

    before: float
    now: float


class Analysis(Record, frozen=True, kw_only=True):
    """`profiling_analysis.json` of one run."""

    schema_version: int = SCHEMA_VERSION
    scenario: str | None
    job_id: str | None
    nodes: int | None
    world_size: int | None
    verdict: Verdict
    findings: list[Finding]
    measured: list[RuleMeasurement]
    breakdown: BreakdownTable
    blame: list[Blame]
    throughput: Throughput | None
    utilization: Utilization | None
    data_quality: DataQuality
    thresholds: dict[str, float]
    thresholds_changed: dict[str, ThresholdChange] = field(default_factory=dict)
    """Thresholds that `--override` changed for this analysis alone."""
    shared_machine: bool = False
    device: str | None = None
    started_wall_ns: int | None = None
    program: str | None = None
    """What ran, without batch sizes, lengths and paths; None where nothing says."""
    settings: dict[str, str | int | float | bool | None] | None = None
    """What runs of one program must have in common to be compared, by dotted key; None: not known."""
    replay: Replay | None = None
    """None: there was nothing to replay, `data_quality.notes` says why."""
    pop: Pop | None = None
    lateness: LatenessTable | None = None
    """None with a single rank, or where arrivals at collectives are not known."""
    clocks: list[ClockFit] = field(default_factory=list)
    """Fits of the clocks other than the lowest rank's own; empty: there are none, or nothing aligns them."""
    traces: TraceTable | None = None
    """None: there were no usable traces."""
    profiler_overhead: ProfilerOverhead | None = None
    """None: no profiler captured steps of this run."""
    profiler_weight: ProfilerWeight | None = None
    """None: there are no traces, or they do not join launches to kernels."""
    mesh: Mesh | None = None
    """Groups and stages; null: the job is no mesh, or nothing tells."""
    slowdown: SlowdownRecord | None = None
    """How much slower the mesh is than with all workers equal; null: not replayed."""
    mistakes: list[Mistake] = field(default_factory=list)
    """By traces, the one with the best gain first."""
    mistakes_together: Mistakes | None = None
    """None: fewer than two of them gain something."""
    detail_cost: DetailCost | None = None
    """None: every steady step was timed part by part."""
    hang: Hang | None = None
    """None: the job did not stand still, as far as that is known."""
    unseen: list[UnseenTime] = field(default_factory=list)
    between_steps: list[BetweenSteps] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    """What was not measured and is needed, where the verdict is `insufficient_data`."""
    submitted: Submitted | None = None
    """None: there is no manifest, such as of raw traces."""
