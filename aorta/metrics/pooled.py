"""Throughput of the runs of one scenario together, with what varies within and between them.

Two runs give their range. With t(1) = 12.7, Student's interval of two runs that differ by a fifth reaches
from a third to three times their mean, which is too wide to be useful.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import stdev

from aorta.artefacts.measured import Interval, Throughput
from aorta.averages import fmean
from aorta.metrics.student import CONFIDENCE, t_quantile

_RANGED = 2
"""Number of runs that have a range but no interval."""


@dataclass(frozen=True, slots=True)
class Pooled:
    """Runs of one scenario."""

    rates: tuple[float, ...]
    """Samples per second of each."""
    spread: float | None
    """Half width of the interval of log(mean); None for two runs, or if nothing tells."""

    @property
    def mean(self) -> float:
        """Samples per second."""
        return fmean(self.rates)

    def interval(self) -> Interval | None:
        """Around the mean; of two runs their range."""
        if len(self.rates) == _RANGED:
            return _range(min(self.rates), max(self.rates))
        return _around(self.mean, self.spread)


def pooled_rate(runs: Sequence[Throughput]) -> Pooled:
    """The mean rate of `runs`, one at least.

    Of one run the spread is that of its steps. With three or more runs, it is Student's interval of the
    runs' logarithms. It is never narrower than the interval from the steps of a single run, because a few
    runs may agree by chance.
    """
    rates = tuple(run.samples_per_s for run in runs)
    if len(runs) == _RANGED:
        return Pooled(rates, None)
    widths = [
        math.log(run.samples_per_s_interval.high / run.samples_per_s_interval.low) / 2
        for run in runs
        if run.samples_per_s_interval is not None and run.samples_per_s_interval.low > 0
    ]
    within = fmean(widths) / math.sqrt(len(runs)) if widths else None
    if len(runs) == 1:
        return Pooled(rates, within)
    between = t_quantile(len(runs) - 1) * stdev(map(math.log, rates)) / math.sqrt(len(runs))
    return Pooled(rates, max(between, within or 0.0))


def ratio_interval(above: Pooled, below: Pooled, factor: float) -> Interval | None:
    """Interval of `factor` times above over below, which vary apart; None where either's spread is not known.

    Where either has two runs, it is the range of every run above over every run below.
    """
    if _RANGED in (len(above.rates), len(below.rates)):
        low, high = min(above.rates) / max(below.rates), max(above.rates) / min(below.rates)
        return _range(factor * low, factor * high)
    if above.spread is None or below.spread is None:
        return None
    return _around(factor * above.mean / below.mean, math.hypot(above.spread, below.spread))


def _range(low: float, high: float) -> Interval:
    return Interval(low=low, high=high, confidence=None)


def _around(value: float, spread: float | None) -> Interval | None:
    """`value` between its share and its multiple by e to the `spread`."""
    if spread is None:
        return None
    return Interval(low=value * math.exp(-spread), high=value * math.exp(spread), confidence=CONFIDENCE)
