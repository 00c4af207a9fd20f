"""Holds what the report shows of one run, as records: figures are drawn from them, the JSON has them.

Everything here is derived from the run's `Analysis`, step records and samples. Absent is None, never 0.
"""

from __future__ import annotations

from typing import Literal

from msgspec import field

from aorta.artefacts.records import Record

Level = Literal["high", "medium", "low", "none"]
Doing = Literal["compute", "wait", "transfer", "data_wait", "host", "hidden"]


class Confidence(Record, frozen=True, kw_only=True):
    """Tells how far the verdict's cause can be trusted, and how far its gain."""

    level: Level
    """Confidence in the cause; `none`: there is no verdict to trust."""
    basis: list[str]
    """Measurements behind it."""
    doubts: list[str]
    """Reasons that lower it; empty if it is high."""
    gain: Level = "none"
    """Confidence in the predicted speed-up; `none`: there is none to trust."""
    gain_doubts: list[str] = field(default_factory=list)
    """Reasons that lower the confidence in the gain; empty if it is high."""


class StepPart(Record, frozen=True, kw_only=True):
    """A part of the mean step over ranks; the parts of a step sum to it."""

    key: str
    name: str
    ms: float | None
    """None: not timed apart; it is in the host's part."""
    pct: float | None
    """Percent of the step."""


class HeatMap(Record, frozen=True, kw_only=True):
    """Time by rank and cause, % of the mean step; rows in the order of ranks."""

    columns: list[str]
    groups: list[int]
    """Number of columns with a rank's own time, and number of columns with waits of others that are charged
    to it."""
    rows: list[str]
    values: list[list[float | None]]
    """Values by row, then column."""
    ranks_a_row: int
    """1, or the most ranks of a row that stands for several: its value is that of its worst rank."""
    note: str


class WorkerHeat(Record, frozen=True, kw_only=True):
    """S of workers (rows) in steps (columns)."""

    rows: list[str]
    columns: list[str]
    values: list[list[float]]
    note: str


class RankLoss(Record, frozen=True, kw_only=True):
    """A rank that costs time."""

    rank: int
    host: str | None
    own_ms: float
    """Its step less its exposed communication."""
    above_median_ms: float
    """Its own time less that of the median rank."""
    charged_ms: float | None
    """Time that each other rank waits for it, mean over the others. None if waits are not charged."""
    mostly: str
    """Cause of the larger part of that, otherwise the part in which it is longest above the median."""


class ExcerptSegment(Record, frozen=True, kw_only=True):
    """Says what a rank did from `start_ms` to `end_ms` after the excerpt's zero."""

    doing: Doing
    start_ms: float
    end_ms: float
    waits_for: int | None = None
    """The rank that came last to the collective; None if it is not waiting, or if the rank is unknown."""


class ExcerptLane(Record, frozen=True, kw_only=True):
    """One rank in the excerpt."""

    rank: int
    host: str | None
    segments: list[ExcerptSegment]
    """Exclusive, but for `hidden`: communication under compute."""


class Excerpt(Record, frozen=True, kw_only=True):
    """One step of several ranks on one clock; zero is the first one's start."""

    global_step: int
    step_ms: float
    """Time that its slowest rank takes."""
    median_ms: float
    """Median over steady steps of the slowest rank's time. If not every step was timed part by part or
    traced, only those that were count."""
    lanes: list[ExcerptLane]
    note: str
    all_detailed: bool = True
    """Every steady step was timed part by part; else this is one of those that were."""
    traced: bool = False
    """It is what ran on the GPUs by their traces, and one of the traced steps."""
    typical: bool = False
    """It is the step nearest to the median; else the longest one."""


class StepTimeSeries(Record, frozen=True, kw_only=True):
    """Each step's time by its slowest rank. Of more steps than fit, the longest of each few is kept."""

    global_step: list[int]
    ms: list[float]
    steady: list[bool]
    steps_a_point: int
    whole: list[bool] = field(default_factory=list)
    """A rank timed the step as a whole. Empty if no rank did."""

    @property
    def detailed(self) -> list[bool]:
        """Every rank timed the step part by part."""
        return [not one for one in self.whole] or [True] * len(self.ms)


class UtilizationCurve(Record, frozen=True, kw_only=True):
    """Samples over time, in percent: of one node, or of several as lowest, middle and highest."""

    what: Literal["gpu", "job_cpu", "cpu"]
    seconds: list[float]
    middle: list[float]
    low: list[float] | None = None
    high: list[float] | None = None


class Strip(Record, frozen=True, kw_only=True):
    """One node's curves, or those of `nodes` nodes together."""

    name: str
    nodes: int
    curves: list[UtilizationCurve]


class UtilizationOverTime(Record, frozen=True, kw_only=True):
    """Monitor samples from the run's first sample or step on."""

    strips: list[Strip]
    window_s: tuple[float, float] | None
    """The steady window."""
    absent: str
    """Values that were not measured, with the reason; empty if nothing is missing."""


class RunPage(Record, frozen=True, kw_only=True):
    """One run in the report."""

    scenario: str | None
    job_id: str | None
    step_ms: float | None
    cost_ms: float | None
    """Cost of the verdict's cause per step. None if no gain was predicted."""
    cost_pct: float | None
    confidence: Confidence
    parts: list[StepPart]
    ranks: int
    """Number of ranks with a breakdown."""
    heat_map: HeatMap | None
    workers: WorkerHeat | None = None
    """None: no mesh was replayed."""
    worst_ranks: list[RankLoss]
    """Worst first; of `costly_ranks` that cost any time."""
    costly_ranks: int
    excerpt: Excerpt | None
    excerpt_absent: str
    """Why there is none."""
    steps: StepTimeSeries | None
    utilization: UtilizationOverTime


class Recommendation(Record, frozen=True, kw_only=True):
    """Says what to do about one kind of cause, over all scenarios that show it."""

    kind: str
    scenarios: list[str]
    best_scenario: str
    """The one with the largest predicted gain; the three speed-ups are that one's."""
    speedup: float | None
    """Speed-up by replay; None if only bounds are known, or nothing."""
    speedup_low: float | None
    speedup_high: float | None
    actions: list[str]


class ReportSummary(Record, frozen=True, kw_only=True):
    """The first screen of the report over all scenarios."""

    scenario: str
    """The scenario whose verdict is the overall verdict."""
    step_ms: float | None
    cost_ms: float | None
    cost_pct: float | None
    actions: list[str]
    confidence: Confidence
