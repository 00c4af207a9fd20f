"""One observation of a run: everything that the findings look at, split by concern.

Adapters fill it, from step records (`from_records`) or from traces (`from_traces`); `judge` turns it into an
analysis. Each part has defaults, which say that nothing was measured, so that a test builds only the parts
that it needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct, field

from aorta.artefacts.analysis import DataQuality, RunFacts
from aorta.artefacts.measured import BreakdownTable, Utilization
from aorta.artefacts.mesh import MeshGroup
from aorta.artefacts.unseen import UnseenTime
from aorta.averages import fmean
from aorta.diagnosis.policy import CULPRIT_SHARE, Policy
from aorta.diagnosis.rank import RankCosts, waited_for
from aorta.units import plural

if TYPE_CHECKING:
    from aorta.artefacts.instrument_record import InstrumentRecord
    from aorta.config.schema import Config
    from aorta.diagnosis.model import Modelled
    from aorta.diagnosis.records_alone import ObservedRecords
    from aorta.metrics.allocator import AllocatorUse
    from aorta.metrics.another_run import Repeat
    from aorta.metrics.blame import BlameTable
    from aorta.metrics.collector_pauses import Pauses
    from aorta.metrics.host_gaps import HostGap
    from aorta.metrics.launches import Launches
    from aorta.metrics.mesh import MeshFacts
    from aorta.metrics.node_load import NodeLoad, Throttling
    from aorta.metrics.stalls import Stall
    from aorta.metrics.trace_capture import HostIdle
    from aorta.readers.sacct import MemoryEstimate


class ObservedJob(Struct, frozen=True):
    """The job that ran, and its nodes and ranks."""

    config: Config | None = None
    """The trainer's configuration; None for a program of the user's own, whose knobs are not known."""
    cuda: bool = False
    world_size: int = 1
    hosts: Mapping[int, str] = field(default_factory=dict)
    """Each rank's host."""
    machines: Mapping[int, str] = field(default_factory=dict)
    """Each rank's machine, where nodes say it: several nodes may be one machine."""
    cpus_usable: int | None = None
    """The fewest usable CPUs of any node."""
    ranks_missing: bool = False
    """True if ranks left no records, so that waiting for them cannot be told from transfer."""
    known: bool = True
    """False where nothing says what the job was and how it ended; traces are judged without."""

    def nodes(self, ranks: list[int]) -> list[str]:
        """Returns the hosts of `ranks`."""
        return sorted({self.hosts[rank] for rank in ranks if rank in self.hosts})


class ObservedSteps(Struct, frozen=True):
    """Parts of the step, rank by rank, and the source that they come from."""

    breakdown: BreakdownTable = field(default_factory=lambda: BreakdownTable(steps=0, per_rank=[]))
    """Breakdown of the steps that were timed part by part."""
    costs: list[RankCosts] = field(default_factory=list)
    waits: BlameTable | None = None
    """Waits charged to ranks."""
    blame_absent: str | None = None
    """Why waits are not charged to ranks; None where they are."""
    steady: int | None = None
    """Steady steps by the records, timed part by part or as a whole. None if the breakdown is of traces."""
    of_capture: bool = False
    """The breakdown is of a capture with too few whole steps: what is found is about the capture alone."""
    unseen: tuple[UnseenTime, ...] = ()
    """Time of the step that nothing shows, by reason; the largest first."""
    untimed_calls: float = 0.0
    """Calls of `torch.distributed` per step, on the rank with most, that were seen and could not be timed."""
    traced: bool = False
    """True if the breakdown comes from kernel traces."""
    loader_absent: str | None = None
    """Why the loader's time is not known apart from the rest of the host's. None if it is."""
    costs_absent: str = "communication was not observed"
    """Reason why there are no `costs`; None if there are some."""
    source: str = "step records"
    """The source that the ranks left, in words."""
    replay_missed: str | None = None
    """Why the replay of a traced pipeline is not used. None if it is, or there is no pipeline."""
    files: tuple[str, ...] = ("rank_*_metrics.jsonl",)
    """The files that the parts of the step come from."""
    exchanged: Mapping[int, float] = field(default_factory=dict)
    """Bytes per step of each rank's all-to-all. Empty if there is none, or sizes are not recorded."""
    between_shares: Mapping[int, float] = field(default_factory=dict)
    """Share of each rank's time (0 to 1) that lies between steps, in no record. Empty if not known."""
    between_ms: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    """Time between steps: phase to rank to ms per step."""
    between_inside: bool = False
    """The windows of traces reach from step to step: the time between steps is a part of the step then."""
    notes: tuple[str, ...] = ()
    """Notes on the source for `DataQuality.notes`; they are dropped if another source takes its place."""

    @property
    def between_share(self) -> float | None:
        """The largest of `between_shares`. None if not known."""
        return max(self.between_shares.values(), default=None)

    @property
    def step_ms(self) -> float:
        """The mean step over ranks; call it only where there is a breakdown."""
        return fmean(item.step_ms for item in self.costs)

    def unseen_pct(self) -> float:
        """Returns the largest share of any rank's step that nothing shows, in percent."""
        rows = self.breakdown.per_rank
        return max((100.0 * (row.unseen_ms or 0.0) / row.step_ms for row in rows if row.step_ms), default=0.0)

    def untimed(self, least_pct: float) -> str | None:
        """Returns why a share below its threshold is not measurable. None if all calls were timed."""
        if not self.untimed_calls:
            return None
        calls = f"{self.untimed_calls:.3g} calls of torch.distributed per step could not be timed"
        return f"not measured: at least {least_pct:.1f} % of the step; {calls}"

    def words(self) -> str:
        """Returns the steps that the breakdown is of, in words."""
        count = self.breakdown.steps
        if self.steady is None or self.steady <= count:
            return plural(count, "steady step")
        return f"{count} of {plural(self.steady, 'steady step')} (those timed part by part)"

    def enough(self, policy: Policy) -> bool:
        """Returns True if the breakdown is of enough steps, or of what a short capture has."""
        return self.breakdown.steps >= (1 if self.of_capture else policy.min_steady_steps)

    def too_little(self, policy: Policy) -> str | None:
        """Returns why no finding about the step can be judged; None if it can."""
        if not self.enough(policy):
            return f"not measured: {self.words()}, {policy.min_steady_steps} are needed"
        if not self.costs:
            return f"not measured: the {self.source} have no breakdown, because {self.costs_absent}"
        return None


class ObservedHost(Struct, frozen=True):
    """Measurements of how the host's part of a step is spent. None if not measured."""

    idle: HostIdle | None = None
    """The GPU's idle time while its host is late, from traces."""
    launches: Launches | None = None
    """Kernel launches, from steps recorded kernel by kernel."""
    gap: HostGap | None = None
    """The two things between which most of the host's part lies, by the step records."""
    stacks: Mapping[int, InstrumentRecord] = field(default_factory=dict)
    """Sampled stacks of the training threads, by rank. Empty if none were sampled."""
    collector: Mapping[int, Pauses] = field(default_factory=dict)
    """Pauses of Python's garbage collector by rank; a rank without any is left out."""
    uncertain_ms: float = 0.0
    """Uncertainty of the estimate of the hosts' time per step without the profiler."""
    driver_busy_pct: float | None = None
    """Mean share of the time with any kernel, by the driver's counter. None if a GPU has too few samples."""


class ObservedDevices(Struct, frozen=True):
    """Samples and counters of devices and memory. None if not measured."""

    utilization: Utilization | None = None
    allocator: AllocatorUse | None = None
    """The GPUs' allocators, by the step records."""
    memory_estimate: MemoryEstimate | None = None
    """The job's memory, from Slurm's accounting."""
    sample_files: tuple[str, ...] = ("gpu_monitor.csv",)


class ObservedNodes(Struct, frozen=True):
    """Other load and events on the nodes. Empty if not measured."""

    loads: Mapping[str, NodeLoad] = field(default_factory=dict)
    """Load of each node, by host."""
    throttling: Mapping[int, Throttling] = field(default_factory=dict)
    """Throttling of each GPU, by rank."""
    cpus_machine: Mapping[str, int] = field(default_factory=dict)
    """CPUs of each machine, by host."""
    cores_shared: str | None = None
    """Note, in words, that ranks want more CPUs than they have. None if they do not."""


class Observation(Struct, frozen=True):
    """One run, as the findings see it."""

    job: ObservedJob = field(default_factory=ObservedJob)
    steps: ObservedSteps = field(default_factory=ObservedSteps)
    host: ObservedHost = field(default_factory=ObservedHost)
    monitored: ObservedDevices = field(default_factory=ObservedDevices)
    around: ObservedNodes = field(default_factory=ObservedNodes)
    recorded: ObservedRecords | None = None
    """The verdict of the step records alone. None if there are none."""
    model: Modelled | None = None
    """The replay, and the ranks that are late."""
    stall: Stall | None = None
    """The place where the run stood still, by the step records."""
    recorded_steps: bool = False
    """True if enough steps were recorded to tell."""
    groups: tuple[MeshGroup, ...] = ()
    """The groups in which ranks exchange, with what each takes. Empty if not known."""
    mesh: MeshFacts | None = None
    """Stages, groups and slowdown of a mesh. None if it is not such a job, or if that is not known."""
    repeats: tuple[Repeat, ...] = ()
    """Each other run of the same thing, without the costliest cause found in it."""
    facts: RunFacts = field(default_factory=RunFacts)
    quality: DataQuality = field(
        default_factory=lambda: DataQuality(ranks_expected=None, ranks_seen=0, sources=[], problems=[])
    )

    def last_ranks(self) -> list[int]:
        """Returns the ranks that the others wait for, as `waited_for`."""
        late = self.model.lateness if self.model else None
        return waited_for(self.steps.costs, CULPRIT_SHARE, late)
