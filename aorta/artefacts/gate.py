"""`gate.json`: what `aorta gate` measured and decided. Absent is None."""

from __future__ import annotations

from typing import Literal

from aorta.artefacts.records import Record


class GateRun(Record, frozen=True, kw_only=True):
    """One run of one side."""

    side: Literal["A", "B"]
    block: int
    """From 1; 0 is the run before the first block, which does not count."""
    value: float
    """The measured quantity; smaller is better."""
    folder: str


class GateCause(Record, frozen=True, kw_only=True):
    """Says what takes longer in B, from the step records of both sides."""

    part: str
    """The part of the step that grew most."""
    before_ms: float
    after_ms: float
    verdict: str
    """The verdict of B's run."""
    ranks: list[int]
    where: str | None
    """Function, file and line of B's finding; None where it is not known."""


class GateResult(Record, frozen=True, kw_only=True):
    """The whole of it."""

    schema_version: int = 1
    a: str
    b: str
    measured: str
    """Meaning of `value`: the step time in ms, a number that the program printed, or the wall time in s."""
    limit: float
    slower: bool
    decided: bool
    """False: the most blocks were measured, and the evidence does not suffice for either answer."""
    ratio: float
    """B over A, the median over blocks."""
    log_ratios: list[float]
    """log(B over A) of each block."""
    evidence: float
    """The log likelihood of "slower by the limit" over that of "as fast"."""
    runs: list[GateRun]
    cause: GateCause | None
    """None where B is not slower, or there are no step records."""
