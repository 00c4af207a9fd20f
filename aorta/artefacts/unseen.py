"""Describes what an analysis did not see, and what would make it visible."""

from __future__ import annotations

from aorta.artefacts.records import Record


class UnseenTime(Record, frozen=True, kw_only=True):
    """A part of the step in which nothing shows what the GPU did: neither compute nor host, nor idle."""

    ms: float
    """Per step, mean over ranks."""
    reason: str
    remedy: str


class Missing(Record, frozen=True, kw_only=True):
    """A measurement without which the run cannot be called healthy."""

    what: str
    command: str
    """A command or setting that would measure it."""


class BetweenSteps(Record, frozen=True, kw_only=True):
    """Time that lies in no step."""

    phase: str
    """`validation`, `checkpoint`, `first batch`, or `not recorded`."""
    ms: float
    """Per step, mean over the ranks."""
    ranks: list[int]
    """The ranks that the others wait for. Empty if no rank stands out."""
