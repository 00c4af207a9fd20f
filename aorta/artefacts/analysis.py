"""`profiling_analysis.json`: what other programs read. Fields are added, never renamed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from msgspec import field, structs

from aorta.artefacts.compute import ComputeUse
from aorta.artefacts.hang import Hang
from aorta.artefacts.measured import Blame, BreakdownTable, DetailCost, Throughput, Utilization
from aorta.artefacts.mesh import Mesh, SlowdownRecord
from aorta.artefacts.mistakes import Mistake, Mistakes
from aorta.artefacts.records import SCHEMA_VERSION, Record
from aorta.artefacts.replayed import ClockFit, LatenessTable, Pop, Replay
from aorta.artefacts.resources import ResourceTable
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
    """Says what the findings stand on."""

    ranks_expected: int | None
    ranks_seen: int
    sources: list[str]
    problems: list[Problem]
    nodes_expected: int | None = None
    nodes_seen: int = 0
    steady_steps: int = 0
    state: str | None = None
    """End of the job, by its own markers and the accounting."""
    notes: list[str] = field(default_factory=list)
    """Notes that a reader must know first, such as nodes that share one machine."""
    detailed_steps: int | None = None
    """Number of steady steps that every rank timed part by part. None means all of them."""
    others_cpus: float | None = None
    """CPUs that other programs used on the fullest node, where hardly one was free. None if there is no such
    node.
    """
    last_step: int | None = None
    """The last step that every rank completed. None if there are no step records."""
    standstill_s: float | None = None
    """Time without the end of a step before the job ended, if it is far longer than a step."""
    failure: str | None = None
    """Failure of the first rank that failed, in its node's words; None if no rank failed, or if that was not
    seen.
    """
    contradictions: list[str] = field(default_factory=list)
    """Other sources of the same job that lead to another verdict, in words."""
    ranks_assumed: bool = False
    """Nothing records how many ranks there are: those seen, from 0 on without a gap, count as all."""

    def adding(
        self, sources: Sequence[str] = (), problems: Sequence[Problem] = (), notes: Sequence[str] = ()
    ) -> DataQuality:
        """Returns the same with more sources, problems and notes."""
        made: DataQuality = structs.replace(
            self,
            sources=[*self.sources, *sources],
            problems=[*self.problems, *problems],
            notes=[*self.notes, *notes],
        )
        return made


class Speedup(Record, frozen=True, kw_only=True):
    """Step time now over step time without the cause, as a range."""

    low: float
    high: float
    """`basis` says what the range is."""
    expected: float | None = None
    """Speed-up by the replay of these steps without the cause, inside the range. None if nothing was
    replayed."""
    step_ms: float | None = None
    """Step time without the cause that goes with `expected`."""
    basis: Literal["replay", "bounds"] = "bounds"
    """`replay`: the range is the 95 % interval of another run without the cause. `bounds`: the part of the
    step that the cause takes, brought down to its threshold (low) or to nothing (high), and widened to
    `expected`; the range has no probability."""
    limit: float | None = None
    """Speed-up without all of the cause, such as with an ideal network, if `expected` covers only its
    costliest part. Otherwise None."""


class CodeLocation(Record, frozen=True, kw_only=True):
    """A place in the program, from stacks that were sampled while it ran."""

    function: str
    file: str
    line: int
    share: float
    """Share of the step, 0 to 1, on the rank that is there longest."""
    longer_ms: float | None = None
    """Per step, over the median of the ranks that the finding does not name. None if it names all."""


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
    measurements in `evidence`; `not_determined` where nothing measured tells. None if this kind has none."""
    sub_cause_text: str | None = None
    """The same in words, with the numbers."""
    where: CodeLocation | None = None
    """The function that takes the time. None if no stacks were sampled, or none of them tells."""
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
    """Why the value is absent: `not measured: ...`."""
    answer: Answered | None = None
    """None: an earlier version wrote it, and `fired` and `value` tell."""
    remedy: str | None = None
    """A command or a key that would make it measurable."""


class Verdict(Record, frozen=True, kw_only=True):
    """The one sentence."""

    kind: Kind
    statement: str
    ranks: list[int]


class Submitted(Record, frozen=True, kw_only=True):
    """Tells where a run came from; None for what is not recorded."""

    command: str | None
    """The command that torchrun started, as it can be typed."""
    commit: str | None
    """The version of the program's code."""
    submission: str | None
    """The folder of the submission that the run is a job of."""


class ThresholdChange(Record, frozen=True, kw_only=True):
    """Says what a threshold was, and what it was for this analysis."""

    before: float
    now: float


class RunFacts(Record, frozen=True, kw_only=True):
    """Facts of a run that its analysis repeats without judging them."""

    scenario: str | None = None
    job_id: str | None = None
    nodes: int | None = None
    world_size: int | None = None
    shared_machine: bool = False
    device: str | None = None
    started_wall_ns: int | None = None
    program: str | None = None
    """The program, without batch sizes, lengths and paths. None if not known."""
    settings: dict[str, str | int | float | bool | None] | None = None
    """Settings by dotted key that runs of one program must have in common to be compared. None if not known.
    """
    throughput: Throughput | None = None
    traces: TraceTable | None = None
    """None: there were no usable traces."""
    profiler_overhead: ProfilerOverhead | None = None
    """None: no profiler captured steps of this run."""
    profiler_weight: ProfilerWeight | None = None
    """None: there are no traces, or they do not join launches to kernels."""
    mistakes: list[Mistake] = field(default_factory=list)
    """Known mistakes that the traces show, the best gain first."""
    mistakes_together: Mistakes | None = None
    """None: fewer than two of them gain something."""
    compute_use: ComputeUse | None = None
    """None: there are no traces of all ranks that join launches to kernels."""
    detail_cost: DetailCost | None = None
    """None: every steady step was timed part by part."""
    hang: Hang | None = None
    """None: the job did not stand still, as far as that is known."""
    between_steps: list[BetweenSteps] = field(default_factory=list)


class Analysis(RunFacts, frozen=True, kw_only=True):
    """`profiling_analysis.json` of one run."""

    schema_version: int = SCHEMA_VERSION
    verdict: Verdict
    findings: list[Finding]
    measured: list[RuleMeasurement]
    breakdown: BreakdownTable
    blame: list[Blame]
    utilization: Utilization | None
    data_quality: DataQuality
    thresholds: dict[str, float]
    thresholds_changed: dict[str, ThresholdChange] = field(default_factory=dict)
    """Thresholds that `--override` changed for this analysis alone."""
    replay: Replay | None = None
    """None: there was nothing to replay, `data_quality.notes` says why."""
    pop: Pop | None = None
    lateness: LatenessTable | None = None
    """None with a single rank, or where arrivals at collectives are not known."""
    clocks: list[ClockFit] = field(default_factory=list)
    """Fits of the clocks other than the lowest rank's own. Empty if there are none, or nothing aligns them.
    """
    mesh: Mesh | None = None
    """Groups and stages; null: the job is no mesh, or nothing tells."""
    slowdown: SlowdownRecord | None = None
    """Slowdown of the mesh against one whose workers are all equal; null: not replayed."""
    unseen: list[UnseenTime] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    """Measurements that are missing for a verdict, if it is `insufficient_data`."""
    submitted: Submitted | None = None
    """None: there is no manifest, such as of raw traces."""
    resources: ResourceTable | None = None
    """Requested against used. None if the run was no Slurm job."""
