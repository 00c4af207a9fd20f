"""Decide if B is slower than A, from blocks of runs in balanced order, on a machine whose speed drifts.

A block is four runs, alternately in the order A B B A and B A A B. A linear drift of the machine therefore
affects both equally. Its value is the mean of log(B) less the mean of log(A). A burst of other load can put
a block far off. So the evidence that one block adds is bounded, as in Huber (A robust version of the
probability ratio test, Annals of Mathematical Statistics 36, 1965).

After each block the sequential probability ratio test of Wald (Sequential Analysis, 1947) weighs "B is slower
by the limit" against "B is as fast". The scale of the noise is that of the blocks so far, whose median
absolute deviation is widened because they are few.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from aorta.averages import median

_BOUND = 1.5
"""Standard deviations from the middle between both hypotheses beyond which a block adds no more."""
_STRICTER = 8.0
"""The scale of the noise is estimated from the same blocks, which costs this much of the share of alarms."""
_TO_DEVIATION = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""


@dataclass(frozen=True, slots=True)
class GatePlan:
    """The slowdown that the gate is to find, and how often it may be wrong."""

    limit: float = 0.02
    """The slowdown to find, such as 0.02."""
    false_alarms: float = 0.01
    """At most this share of equal pairs is found slower."""
    missed: float = 0.05
    """Largest share of pairs slower by `limit` that may be missed."""
    least_blocks: int = 6
    most_blocks: int = 120


@dataclass(slots=True)
class SequentialTest:
    """The blocks so far and what they say."""

    plan: GatePlan
    values: list[float] = field(default_factory=list)
    """log(B) less log(A) of each block."""

    @property
    def blocks(self) -> int:
        """Returns how many blocks were measured."""
        return len(self.values)

    def order(self) -> str:
        """The runs of the next block, in their order."""
        return "ABBA" if self.blocks % 2 == 0 else "BAAB"

    def add(self, a: list[float], b: list[float]) -> None:
        """Add the times of a block's runs, all > 0."""
        self.values.append(_mean_log(b) - _mean_log(a))

    @property
    def evidence(self) -> float:
        """The log likelihood of "slower by the limit" over that of "as fast"."""
        scale, shift = self._scale(), math.log1p(self.plan.limit)
        off = [(value - shift / 2.0) / scale for value in self.values]
        return sum(min(max(value, -_BOUND), _BOUND) for value in off) * shift / scale

    def _scale(self) -> float:
        """The scale of the noise: median absolute deviation, widened for few blocks."""
        middle = median(self.values)
        spread = _TO_DEVIATION * median(abs(value - middle) for value in self.values)
        few = 1.0 + 4.0 / self.blocks
        return max(spread * few, 1e-4)

    @property
    def sure(self) -> bool:
        """The evidence suffices for one of the answers."""
        if self.blocks < self.plan.least_blocks:
            return False
        low, high = self._bounds()
        return not low < self.evidence < high

    @property
    def decided(self) -> bool:
        """The evidence suffices, or the most blocks were measured."""
        return self.sure or self.blocks >= self.plan.most_blocks

    def _bounds(self) -> tuple[float, float]:
        alarms, missed = self.plan.false_alarms / _STRICTER, self.plan.missed / 2.0
        return math.log(missed / (1.0 - alarms)), math.log((1.0 - missed) / alarms)

    @property
    def slower(self) -> bool:
        """B is slower, as far as the blocks tell."""
        return self.blocks >= self.plan.least_blocks and self.evidence >= self._bounds()[1]

    @property
    def ratio(self) -> float:
        """B over A: the median over blocks."""
        return math.exp(median(self.values))


def _mean_log(values: list[float]) -> float:
    return sum(math.log(value) for value in values) / len(values)
