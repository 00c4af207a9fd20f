"""What the rules look at, prepared once; and the arithmetic that they share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean

from aorta.artefacts.analysis import BreakdownTable, Finding, Kind, Measured, Speedup, Utilization
from aorta.config.schema import Config
from aorta.diagnosis.model import Modelled
from aorta.diagnosis.policy import Policy
from aorta.diagnosis.rank import RankCosts, waited_for
from aorta.metrics.allocator import AllocatorUse
from aorta.metrics.another_run import Repeat
from aorta.metrics.host_gaps import HostGap
from aorta.metrics.node_load import NodeLoad, Throttling
from aorta.readers.sacct import MemoryEstimate
from aorta.units import plural

ALWAYS_EMPTY = 0.9
"""Launches of which so many find an empty queue never get ahead of the GPU."""
FEW_PAUSES = 1 / 3
"""With a smaller share of the idle time in short gaps, the GPU waits for long pauses of its host."""


@dataclass(frozen=True, slots=True)
class HostIdle:
    """GPU idle time for the host alone, means over ranks and steps."""

    short_gaps_ms: float
    """In gaps between kernels that are no longer than launching a few takes."""
    long_gaps_ms: float
    sync_ms: float
    """While the host waited for the GPU."""
    launches: float
    """Driver calls that put work on the GPU, a step."""
    empty_share: float | None
    """Of the launches, those that found nothing queued, ranks weighted by their idle time; None: launches are
    not in the traces.
    """

    @property
    def gaps_ms(self) -> float:
        """All of it."""
        return self.short_gaps_ms + self.long_gaps_ms

    @property
    def synchronised(self) -> bool:
        """Whether the host waits for the GPU for most of it."""
        return self.sync_ms > self.gaps_ms / 2

    @property
    def launch_bound(self) -> bool:
        """Whether the GPU idles for launches: most of its idle time lies in short gaps; or hardly any launch
        finds the GPU at work, while nothing synchronises them and no few long pauses are what it waits for.
        """
        if self.short_gaps_ms > self.long_gaps_ms:
            return True
        return (
            self.empty_share is not None
            and self.empty_share >= ALWAYS_EMPTY
            and not self.synchronised
            and self.short_gaps_ms > FEW_PAUSES * self.gaps_ms
        )


MOST_OF_HOST = 0.5
"""A gap with this share of the host's part is one thing that can be removed."""


@dataclass(frozen=True, slots=True)
class Launches:
    """Of GPU steps that were recorded kernel by kernel within the training process; means a step."""

    kernels: float
    kernels_ms: float
    """In which a compute kernel ran."""
    windows_ms: float
    """Of compute by the step records, from ready to done."""
    not_hidden_ms: float = 0.0
    """Communication inside of those windows beside which no compute kernel ran: the windows count it as
    hidden, the kernels show that compute stood still.
    """

    @property
    def idle_ms(self) -> float:
        """The GPU idle inside the windows: launches came too late."""
        return max(self.windows_ms - self.kernels_ms - self.not_hidden_ms, 0.0)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What monitors, records and the node's agents tell of causes behind causes; empty: not measured."""

    host_gap: HostGap | None = None
    """Between which two things most of the host's part lies, by the step records."""
    loads: Mapping[str, NodeLoad] = field(default_factory=dict)
    """By host."""
    throttling: Mapping[int, Throttling] = field(default_factory=dict)
    """By rank."""
    cpus_machine: Mapping[str, int] = field(default_factory=dict)
    """By host."""
    cores_shared: str | None = None
    """In words, where ranks want more CPUs than they have."""
    launches: Launches | None = None
    driver_busy_pct: float | None = None
    """Of the time in which any kernel ran, by the driver's counter: mean over the ranks' GPUs; None where one
    of them has too few samples.
    """


@dataclass(frozen=True, slots=True)
class Context:
    """One run, as the rules see it."""

    policy: Policy
    config: Config | None
    """The trainer's configuration; None for a program of the user's own, whose knobs are not known."""
    cuda: bool
    world_size: int
    breakdown: BreakdownTable
    """Over the steps that were timed part by part."""
    costs: list[RankCosts]
    blame_absent: str | None
    """Why waits are not charged to ranks; None where they are."""
    utilization: Utilization | None
    allocator: AllocatorUse | None
    """Of the GPUs, by the step records; None where they have nothing of it."""
    memory_estimate: MemoryEstimate | None
    hosts: Mapping[int, str]
    cpus_usable: int | None
    """The fewest of any node."""
    records: str = "step records"
    """What the ranks left, in words."""
    files: tuple[str, ...] = ("rank_*_metrics.jsonl",)
    """Where the parts of the step come from."""
    sample_files: tuple[str, ...] = ("gpu_monitor.csv",)
    loader_marked: bool = True
    """Whether the loader can be told from the rest of the host."""
    idle: HostIdle | None = None
    """Of traced GPUs."""
    ranks_missing: bool = False
    """Ranks left no trace, so that waiting for them cannot be told from transfer."""
    between_steps: float | None = None
    """Share of the time (0 to 1) that lies between steps, in no record; None: not known."""
    model: Modelled | None = None
    """The replay, and who is late."""
    evidence: Evidence = Evidence()
    """What tells the causes behind causes."""
    repeats: tuple[Repeat, ...] = ()
    """Each other run of the same thing, without the costliest cause found in it."""
    steady_steps: int | None = None
    """By the records, timed part by part or as a whole; None: the breakdown is of traces."""
    job_known: bool = True
    """Whether anything says what the job was and how it ended; traces are judged without."""

    @property
    def step_ms(self) -> float:
        """Mean step over ranks; call it only where there is a breakdown."""
        return fmean(item.step_ms for item in self.costs)

    @property
    def launches(self) -> Launches | None:
        """Of the steps recorded kernel by kernel, where no traces tell more."""
        return self.evidence.launches if self.idle is None else None

    @property
    def idle_inside_ms(self) -> float:
        """The GPU's idle time inside of compute's windows: by steps recorded kernel by kernel; else what is
        left of the time in which no kernel ran at all, when all that lies outside of the windows is taken
        from it; 0 where nothing tells, and by traces, which have it in the host's part.
        """
        if self.launches is not None:
            return self.launches.idle_ms
        busy = self.driver_busy_pct
        if busy is None:
            return 0.0
        outside = fmean(
            item.host_ms + item.data_wait_ms + item.exposed_comm_ms + item.copy_ms for item in self.costs
        )
        return max(self.step_ms * (1.0 - busy / 100.0) - outside, 0.0)

    @property
    def driver_busy_pct(self) -> float | None:
        """The driver's counter, where windows on a GPU are all that is known of its work."""
        if not self.cuda or self.idle is not None or self.launches is not None or not self.costs:
            return None
        return self.evidence.driver_busy_pct

    @property
    def windows_alone(self) -> bool:
        """Whether a GPU's work is known by windows from event to event and by nothing else."""
        return self.cuda and self.idle is None and self.launches is None and self.driver_busy_pct is None

    @property
    def idle_inside_share(self) -> float:
        """The same of compute's windows, 0 to 1."""
        launches = self.launches
        windows = launches.windows_ms if launches is not None else fmean(c.compute_ms for c in self.costs)
        return min(self.idle_inside_ms / windows, 1.0) if windows else 0.0

    @property
    def last_ranks(self) -> list[int]:
        """As `waited_for`."""
        late = self.model.lateness if self.model else None
        return waited_for(self.costs, self.policy.culprit_share, late)

    @property
    def host_ms(self) -> float:
        """All of the mean step in which the device idles for the host, inside of windows and outside, and
        behind waits for other ranks that the own host takes anyway.
        """
        return fmean(item.host_ms + item.own_host_wait_ms for item in self.costs) + self.idle_inside_ms

    @property
    def launch_bound(self) -> bool:
        """Whether the GPU idles for launches: by traces, or with most of the host's part inside of compute's
        windows.
        """
        if self.launches is not None:
            return self.launches.idle_ms > MOST_OF_HOST * self.host_ms
        return self.idle is not None and self.idle.launch_bound

    @property
    def host_share(self) -> float | None:
        """Share of the host's part (0 to 1) that is one removable thing; None: not known."""
        if self.idle is not None:
            return self.idle.short_gaps_ms / self.idle.gaps_ms if self.launch_bound else None
        gap = self.evidence.host_gap
        return gap.share if gap is not None and gap.share >= MOST_OF_HOST else None

    def nodes(self, ranks: list[int]) -> list[str]:
        """The hosts of `ranks`."""
        return sorted({self.hosts[rank] for rank in ranks if rank in self.hosts})

    def steps(self) -> str:
        """The steps that the breakdown is of, in words."""
        count, steady = self.breakdown.steps, self.steady_steps
        if steady is None or steady <= count:
            return plural(count, "steady step")
        return f"{count} of {plural(steady, 'steady step')} (those timed part by part)"

    @property
    def lacks_detail(self) -> bool:
        """Whether enough steps are steady and too few of them were timed part by part."""
        least = self.policy.min_steady_steps
        return self.breakdown.steps < least <= (self.steady_steps or 0)

    def too_little(self) -> str | None:
        """Why no rule about the step can answer; None if they can."""
        if self.breakdown.steps < self.policy.min_steady_steps:
            return f"not measurable: {self.steps()}, {self.policy.min_steady_steps} are needed"
        if not self.costs:
            return (
                f"not measurable: the {self.records} have no breakdown, since communication was not observed"
            )
        return None


Answer = tuple[Measured, Finding | None]
"""What a rule measured, and what it found."""


def not_measured(kind: Kind, threshold: float, unit: str, reason: str) -> Measured:
    """The answer of a rule that has no value."""
    return Measured(kind=kind, value=None, threshold=threshold, unit=unit, fired=False, reason=reason)


def removal_to_threshold(step_ms: float, part_ms: float, threshold_pct: float) -> float:
    """The ms to remove from a part so that it is `threshold_pct` of the step that is then left.

    (part − x) / (step − x) = t gives x = (part − t·step) / (1 − t).
    """
    share = threshold_pct / 100.0
    return max((part_ms - share * step_ms) / (1.0 - share), 0.0) if share < 1.0 else 0.0


def gain(step_ms: float, low_ms: float, high_ms: float) -> Speedup | None:
    """Step now over step without `low_ms` to `high_ms` of it; None where nothing would be left."""
    low_ms, high_ms = sorted((max(low_ms, 0.0), max(high_ms, 0.0)))
    if high_ms >= step_ms:
        return None
    return Speedup(low=step_ms / (step_ms - low_ms), high=step_ms / (step_ms - high_ms))
