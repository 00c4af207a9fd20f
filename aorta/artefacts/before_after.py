"""Describes what `aorta compare BEFORE AFTER` finds, as records. Absent is None."""

from __future__ import annotations

from typing import Literal

from msgspec import field

from aorta.artefacts.measured import Interval
from aorta.artefacts.records import Record

Answer = Literal["faster", "slower", "cannot be told apart", "not measurable"]


class PartChange(Record, frozen=True, kw_only=True):
    """One part of the mean step, before and after."""

    name: str
    before_ms: float | None
    after_ms: float | None
    difference_ms: Interval | None
    """None where a side has no step records."""


class Pair(Record, frozen=True, kw_only=True):
    """Two runs of one scenario."""

    name: str
    answer: Answer
    reason: str
    """Why it is not measurable, or what the interval covers."""
    before_ms: float | None
    """The mean step."""
    after_ms: float | None
    ratio: float | None
    """After over before."""
    ratio_interval: Interval | None
    before_samples_per_s: float | None
    after_samples_per_s: float | None
    before_efficiency: float | None
    """Against the smallest run of the same side; None where there is no scaling curve."""
    after_efficiency: float | None
    before_verdict: str
    after_verdict: str
    parts: list[PartChange]
    differences: list[str] = field(default_factory=list)
    """Other differences between the sides: the program, the machine or how the step was measured."""
    settings: list[str] = field(default_factory=list)
    """Settings that were changed, with both values."""


class BeforeAfter(Record, frozen=True, kw_only=True):
    """All scenarios that both sides have."""

    schema_version: int = 1
    before: str
    after: str
    pairs: list[Pair]
    alone: list[str]
    """Scenarios that only one side has."""
