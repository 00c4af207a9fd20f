"""Throughput of the runs of one scenario together, with what varies within and between them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from aorta.artefacts.analysis import Interval, Throughput
from aorta.metrics.student import CONFIDENCE, t_quantile


@dataclass(frozen=True, slots=True)
class Pooled:
    """Runs of one scenario."""

    mean: float
    """Samples per second."""
    runs: int
    spread: float | None
    """Half width of the interval of log(mean); None where nothing tells."""

    def interval(self) -> Interval | None:
        """Around the mean."""
        if self.spread is None:
            return None
        low, high = (self.mean * math.exp(sign * self.spread) for sign in (-1, 1))
        return Interval(low=low, high=high, confidence=CONFIDENCE)


def pooled_rate(runs: Sequence[Throughput]) -> Pooled:
    """The mean rate of `runs`, one at least.

    Of one run the spread is that of its steps. Of several it is Student's t of the runs' logarithms, but no
    less than what the steps of a run alone would give the mean: a few runs may agree by chance.
    """
    mean = fmean(run.samples_per_s for run in runs)
    widths = [
        math.log(run.samples_per_s_interval.high / run.samples_per_s_interval.low) / 2
        for run in runs
        if run.samples_per_s_interval is not None and run.samples_per_s_interval.low > 0
    ]
    within = fmean(widths) / math.sqrt(len(runs)) if widths else None
    if len(runs) == 1:
        return Pooled(mean, 1, within)
    logs = [math.log(run.samples_per_s) for run in runs]
    between = t_quantile(len(runs) - 1) * stdev(logs) / math.sqrt(len(runs))
    return Pooled(mean, len(runs), max(between, within or 0.0))


def ratio_spread(above: Pooled, below: Pooled) -> float | None:
    """Half width of the interval of log(above / below), which vary apart; None where either is not known."""
    if above.spread is None or below.spread is None:
        return None
    return math.hypot(above.spread, below.spread)
