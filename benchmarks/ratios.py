"""Ratios of blocks of steps that took turns, with the interval that their spread allows."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

DRAWS = 400


@dataclass(frozen=True, slots=True)
class Block:
    """Some steps: milliseconds a step, each on the rank that has most of it."""

    ms: float
    queued_ms: float
    """Until the host had queued it: as long as the step where the host is the bottleneck."""
    handed: bool = False
    """Whether the recorder handed over what it had meanwhile."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """A typical quotient, and what it is in turns that were drawn from these again and again (bootstrap)."""

    value: float
    drawn: tuple[float, ...]

    @property
    def interval(self) -> tuple[float, float]:
        """Return the range that holds 95 of 100 draws."""
        ordered, beyond = sorted(self.drawn), round(len(self.drawn) * 0.025)
        return ordered[beyond], ordered[-1 - beyond]

    def __str__(self) -> str:
        return "{:.4f} [{:.4f}, {:.4f}]".format(self.value, *self.interval)


def ratio(over: Sequence[Block], under: Sequence[Block]) -> Ratio:
    """Return the ratio of two runs in the same turns."""
    turns = [(a.ms / b.ms, a.handed or b.handed) for a, b in zip(over, under, strict=True)]
    draw = random.Random(0)
    drawn = tuple(_typical(draw.choices(turns, k=len(turns))) for _ in range(DRAWS))
    return Ratio(_typical(turns), drawn)


def _typical(turns: Sequence[tuple[float, bool]]) -> float:
    """The median of those turns in which a recorder handed over, and that of the others, weighed by how many
    there are: of all together it would be that of turns without the work that comes once in a while.
    """
    kinds = [[value for value, handed in turns if handed is kind] for kind in (False, True)]
    return sum(len(values) * statistics.median(values) for values in kinds if values) / len(turns)


def over_both(over: Sequence[Block], first: Sequence[Block], second: Sequence[Block]) -> Ratio:
    """Over two runs that are alike: the mean of the quotients over each. That over their mean is too small
    where a few blocks take much longer than the others: a mean of two has one of those twice as often.
    """
    return mixed(ratio(over, first), ratio(over, second), 2)


def mixed(usual: Ratio, seldom: Ratio, every: int) -> Ratio:
    """Return the ratio of a run in which one block of `every` is of the second kind."""

    def mean(one: float, other: float) -> float:
        return ((every - 1) * one + other) / every

    return Ratio(mean(usual.value, seldom.value), tuple(map(mean, usual.drawn, seldom.drawn)))
