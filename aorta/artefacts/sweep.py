"""Schemas of a sweep: its points, written at submission, and what came of them. Absent is None, never 0."""

from __future__ import annotations

from typing import Literal

from aorta.artefacts.analysis import Problem
from aorta.artefacts.records import SCHEMA_VERSION, Record

Scaling = Literal["strong", "weak"]


class SweepPoint(Record, frozen=True, kw_only=True):
    """One run of a sweep."""

    scenario: str
    nodes: int
    task: int
    """Its place among the points of its scenario, from 0: the array's task index."""
    values: dict[str, str]
    """The swept keys, as they were written."""
    repeat: int
    """From 1."""
    per_rank_batch: int | None = None
    """`training.batch_size` where strong scaling chose it."""
    job_id: str | None = None
    """None: not accepted, or not yet."""

    @property
    def label(self) -> str:
        """Values and repeat in a few words."""
        return f"{words(self.values)} #{self.repeat}".strip()


class Sweep(Record, frozen=True, kw_only=True):
    """`sweep.json` of a submission."""

    schema_version: int = SCHEMA_VERSION
    keys: dict[str, list[str]]
    """Each swept key with its values, in their order."""
    repeats: int
    scaling: Scaling | None
    """None: one number of nodes."""
    global_batch: int | None
    """Samples of all ranks in one optimizer step, where strong scaling fixes it."""
    executor: Literal["slurm", "local"]
    points: list[SweepPoint]


def words(values: dict[str, str]) -> str:
    """`batch_size=8 num_workers=2`: each key by its last part, unless two end alike."""
    last = [key.rpartition(".")[2] for key in values]
    names = last if len(set(last)) == len(last) else list(values)
    return " ".join(f"{name}={value}" for name, value in zip(names, values.values(), strict=True))


class RepeatedMean(Record, frozen=True, kw_only=True):
    """A mean over repeats, and where it lies; a single repeat does not say."""

    mean: float
    low: float | None = None
    high: float | None = None
    repeats: int
    basis: Literal["confidence", "range"] = "confidence"
    """Meaning of `low` and `high`. `confidence`: the 95 % band, from three repeats or more. `range`: the
    least and the most of two repeats, which holds no probability; Student's band of two is 13 times as wide.
    """


class SettingResult(Record, frozen=True, kw_only=True):
    """Says what one setting measured, over its valid repeats; None without one, or where not measured."""

    scenario: str
    nodes: int
    values: dict[str, str]
    repeats_planned: int
    repeats_valid: int
    world_size: int | None
    global_batch: int | None
    per_rank_batch: int | None
    job_ids: list[str]
    """Job ids of the valid repeats."""
    samples_per_s: RepeatedMean | None
    step_ms: RepeatedMean | None
    """Median step of each repeat."""
    exposed_comm_ms: RepeatedMean | None
    """Mean over ranks, per step."""
    exposed_comm_pct: RepeatedMean | None
    """Percent of the mean step."""
    overlap_ratio: RepeatedMean | None
    """Hidden over all communication; None without communication."""


class CurvePoint(Record, frozen=True, kw_only=True):
    """One number of nodes in a scaling curve."""

    scenario: str
    nodes: int
    world_size: int
    speedup: RepeatedMean
    """Throughput over the reference's; the ideal is the ratio of the ranks."""
    efficiency: RepeatedMean
    """E_n = (X_n / N_n) / (X_ref / N_ref), N in ranks."""
    flag: str | None = None
    """`superlinear` above 1.05."""


class ScalingCurve(Record, frozen=True, kw_only=True):
    """Scaling of one setting over numbers of nodes."""

    values: dict[str, str]
    label: Literal["strong", "weak", "mixed"] | None
    """Kind of scaling, by the recorded batches."""
    reference: str | None
    points: list[CurvePoint]
    reason: str | None = None
    """Why there is no curve, or what it lacks."""


class SweepSeries(Record, frozen=True, kw_only=True):
    """One swept key, everything else held: the settings in the order of its values."""

    scenario: str
    held: dict[str, str]
    """Values of the other keys."""
    settings: list[int]
    """For each value of the key, the place in `SweepAnalysis.settings`."""


class Sensitivity(Record, frozen=True, kw_only=True):
    """Says what depends on one key."""

    key: str
    values: list[str]
    series: list[SweepSeries]


class SweepAnalysis(Record, frozen=True, kw_only=True):
    """`docs/SWEEP_ANALYSIS.json`."""

    schema_version: int = SCHEMA_VERSION
    generated_wall_ns: int
    statement: str
    sweep: Sweep
    settings: list[SettingResult]
    curves: list[ScalingCurve]
    sensitivities: list[Sensitivity]
    failed: list[Problem]
    """Points that do not count, each with the reason."""
    shared_machine: bool = False
    """The nodes were one machine: scaling is that machine's."""
