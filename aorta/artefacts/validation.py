"""`runs.jsonl` of a validation: one line per run, with what was put in and what the analysis said of it."""

from __future__ import annotations

from msgspec import field

from aorta.artefacts.analysis import Kind
from aorta.artefacts.records import SCHEMA_VERSION, Record


class Truth(Record, frozen=True, kw_only=True):
    """Says what was put into a run, and which answers are right."""

    fault: str
    """`clean`: nothing."""
    strength: str = ""
    """In words, such as `45 ms`; empty for a clean run."""
    place: str = ""
    """In words: `all ranks`, `rank 2`; empty for a clean run."""
    kinds: list[Kind]
    """Verdicts that are right."""
    ranks: list[int] = field(default_factory=list)
    """Ranks that the verdict must name, and no others. Empty if all or none have the cause."""
    timeless: bool = False
    """It takes no time, and counts whatever the step time does."""


class DiagnosedRun(Record, frozen=True, kw_only=True):
    """Says what the analysis made of a run, from `profiling_analysis.json`."""

    kind: Kind
    ranks: list[int]
    statement: str
    step_ms: float | None
    """Mean over the steady steps and the ranks; None where the records do not give it."""
    steps: int
    cause: str | None = None
    """The leading finding's sub-cause."""
    speedup: float | None = None
    """Predicted by the replay; None where there is no prediction."""
    speedup_low: float | None = None
    """Lower end of the prediction's interval; None where it has none."""
    speedup_high: float | None = None
    withheld: str | None = None
    """Why there is no prediction."""
    replay_error_pct: float | None = None
    """Error of the replay's check on steps that its transfers are not of; None where it has none."""


class Trial(Record, frozen=True, kw_only=True):
    """One run of the matrix."""

    schema_version: int = SCHEMA_VERSION
    cell: str
    """Its name in the matrix, which holds everything that was varied."""
    nodes: int
    world_size: int
    truth: Truth
    job_id: str
    run_dir: str
    started_wall_ns: int
    ended_wall_ns: int
    completed: bool
    said: DiagnosedRun | None
    """None where the run could not be analysed, for `problem`."""
    problem: str | None = None
