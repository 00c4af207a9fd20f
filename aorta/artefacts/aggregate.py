"""`BOTTLENECK_ANALYSIS.json`: the analyses of all scenarios, and how they scale. Fields are added, never
renamed.
"""

from __future__ import annotations

from typing import Literal

from msgspec import field

from aorta.artefacts.analysis import Analysis, Kind, Problem, Verdict
from aorta.artefacts.measured import Interval
from aorta.artefacts.page import Recommendation, ReportSummary, RunPage
from aorta.artefacts.records import SCHEMA_VERSION, Record
from aorta.artefacts.replayed import Pop


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
    runs: int = 1
    """Runs of this scenario behind the point."""
    samples_per_s_interval: Interval | None = None
    speedup_interval: Interval | None = None
    efficiency_interval: Interval | None = None
    pop: Pop | None = None
    computation_scalability: float | None = None
    """Useful time of a sample at the reference over that here; None without a breakdown."""
    global_efficiency: float | None = None
    """Computation scalability times parallel efficiency."""
    self_check_ratio: float | None = None
    """global_efficiency / PE of the reference over `efficiency`: 1 when the numbers agree."""
    self_check: str | None = None
    """In words, where the two disagree by more than 2 %."""


class ScalingLoss(Record, frozen=True, kw_only=True):
    """Says what one step of scale loses, by factor.

    The log of each factor's ratio over the log of all of it.
    """

    scenario_from: str
    scenario_to: str
    efficiency_ratio: float
    """Efficiency at the larger over that at the smaller scale, of the runs whose factors these are."""
    factors: dict[str, float]
    """Ratio of each factor (load_balance, serialisation, transfer or communication, computation_scalability,
    between_steps); their product is `efficiency_ratio`."""
    main_factor: str | None
    """The one that loses most; None where nothing is lost."""
    statement: str
    """In words, with the finding of the larger run that goes with the factor."""
    finding_kind: Kind | None = None


class Scaling(Record, frozen=True, kw_only=True):
    """Scaling over the valid scenarios of one family."""

    family: str
    reference: str | None
    label: Literal["strong", "weak", "mixed"] | None
    points: list[ScalingPoint]
    reason: str | None = None
    """Why there is no curve, or what is not in it."""
    losses: list[ScalingLoss] = field(default_factory=list)
    """The loss of each step of scale, the smaller scale first."""


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
    """One sentence a kind of cause."""
    summary: ReportSummary | None = None
    """The first screen of the document; None without any scenario."""
    pages: list[RunPage] = field(default_factory=list)
    """The page of each of `scenarios`, in their order."""
    recommended: list[Recommendation] = field(default_factory=list)
    """`recommendations`, in parts."""
