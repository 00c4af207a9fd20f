"""Mistakes that a program makes, as the analysis names them."""

from __future__ import annotations

from typing import Any

from msgspec import field

from aorta.artefacts.records import Record
from aorta.artefacts.weight import Estimate


class MistakePlace(Record, frozen=True, kw_only=True):
    """Tells where in the program something is; null: not known."""

    function: str | None = None
    file: str | None = None
    line: int | None = None


class Mistake(Record, frozen=True, kw_only=True):
    """One mistake of the catalogue."""

    id: str
    title: str
    ranks: list[int]
    """Empty: all ranks."""
    where: MistakePlace | None
    """Null: not known."""
    gain: Estimate
    """Step now over step without it, both without the profiler; 1 is no gain."""
    evidence: dict[str, Any] = field(default_factory=dict)
    intended: bool = False
    """The user declared it as intended (`thresholds.intended_mistakes`)."""


class Mistakes(Record, frozen=True, kw_only=True):
    """Says what all mistakes that gain something cost together."""

    ids: list[str]
    gain: Estimate
