"""Schema of `summary.json`, which `aorta compare` writes. Absent is None."""

from __future__ import annotations

from typing import Literal

from msgspec import field

from aorta.artefacts.analysis import Problem
from aorta.artefacts.records import Record

METRICS = (
    "step_ms",
    "compute_ms",
    "communication_ms",
    "hidden_communication_ms",
    "exposed_communication_ms",
    "compute_allreduce_ms",
    "compute_reducescatter_ms",
    "compute_allgather_ms",
    "allreduce_ms",
    "reducescatter_ms",
    "allgather_ms",
    "data_wait_ms",
    "host_ms",
    "overlap_ratio",
)
"""Metrics of a step over ranks: the slowest rank for `step_ms`, the mean over ranks for the others."""

Finding = Literal["higher", "lower", "no difference beyond noise", "not measurable"]


class MetricSpread(Record, frozen=True, kw_only=True):
    """One metric over the steps of a dataset that measure it."""

    count: int
    mean: float | None
    median: float | None
    p95: float | None


class LoggedDataset(Record, frozen=True, kw_only=True):
    """The steady steps of one log directory."""

    path: str
    ranks: list[int]
    steps: int
    """Steady steps that every rank has."""
    detailed_steps: int | None = None
    """Steady steps that every rank timed part by part: all metrics but `step_ms` use them. None means all."""
    timing: list[str]
    """Meaning of the times: host, event_window or kernel."""
    metrics: dict[str, MetricSpread]
    overlap_ratio: float | None
    """Hidden over all communication, of all steps together."""
    problems: list[Problem] = field(default_factory=list)


class Difference(Record, frozen=True, kw_only=True):
    """One metric of a candidate against the reference, by means, with 95% bootstrap intervals."""

    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    difference: float | None
    difference_low: float | None
    difference_high: float | None
    finding: Finding
    """higher or lower only where the interval of the difference leaves out 0."""


class DatasetComparison(Record, frozen=True, kw_only=True):
    """One candidate against the reference."""

    reference: str
    candidate: str
    metrics: dict[str, Difference]


class OverlapSummary(Record, frozen=True, kw_only=True):
    """`summary.json`."""

    schema_version: int = 1
    datasets: dict[str, LoggedDataset]
    comparisons: list[DatasetComparison]
    notes: list[str]
