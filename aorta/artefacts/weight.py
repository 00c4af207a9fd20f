"""Describes what a profiler adds to the steps that it records."""

from __future__ import annotations

from typing import Literal

from msgspec import field

from aorta.artefacts.records import Record


class Estimate(Record, frozen=True, kw_only=True):
    """A value that is not measured directly, with the range that it lies in."""

    value: float
    low: float
    high: float


class RankWeight(Record, frozen=True, kw_only=True):
    """One rank's traced step, with and without the profiler."""

    rank: int
    step_ms: float
    """The host's step as it was recorded."""
    host_ms: float
    """The host's own work per step without the profiler."""
    weight_ms: float
    """Time that is subtracted from the host's work per step."""
    operators: float
    """Recorded operators per step."""
    calls: float
    """Recorded driver calls per step."""


class ProfilerWeight(Record, frozen=True, kw_only=True):
    """The traced step, and an estimate of what it takes without the profiler."""

    step_ms: float
    """The step as traced."""
    step_ms_without: Estimate
    by_rank: list[RankWeight] = field(default_factory=list)
    basis: Literal["untraced steps", "trace"]
    """Source of the calibration."""
