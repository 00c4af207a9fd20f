"""Finds how far the step of another run may lie from the one that a run's steps predict.

Resampled steps show how well a run's own mean is known. If you remove a cause and run again, the difference
is larger: runs of one program differ by more, and so do stretches of one run. So a run is taken for one more
stretch. The steps are cut into five stretches of equal length. The interval is Student's for one further
observation, m ± t · s · √(1 + 1/5), where s is the standard deviation of the stretches' means and t has four
degrees of freedom. See Hahn and Meeker, Statistical Intervals, 1991, section 4.7. Five are few enough for
each to be long, and so to see a machine's slow changes, and t accounts for their being few.

What the model misses of steps that it was not made of is no chance, and is added in quadrature.

If the same program ran several times before, these runs show how much runs differ. A single run cannot show
that, because a machine may vary from run to run and stay the same within each run. Let s be the standard
deviation of the logarithms of the mean steps of k runs, and let t have k - 1 degrees of freedom. Two further
runs then differ by t · s · √2.

A run with a cause is used without that cause. The removed time is a prediction with its own interval, so if
a large part of a step is removed, the rest is not known precisely. The differences between runs are
therefore separated from the uncertainty of each run as in meta-analysis, with the estimate of Paule and
Mandel. With s² and each run's own deviation u, the squared distances from the weighted mean, each divided by
s² + u², add up to k - 1. See Consensus values and weighting factors, Journal of Research of the National
Bureau of Standards 87, 1982. Where nothing was taken from any, it is their variance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from aorta.artefacts.measured import Interval
from aorta.metrics.bootstrap import CONFIDENCE, MIN_VALUES, Floats
from aorta.metrics.student import t_quantile

STRETCHES = 5
MIN_RUNS = 4
"""Fewest runs with a useful interval. With three runs, it is five standard deviations wide on each side."""
_HALVINGS = 60
_NOTHING = 1e-15
"""A variance that is left of rounding."""


def spread(steps: Floats, miss: float = 0.0) -> float | None:
    """Half the width of the interval of log(step of another run over this one's), from earlier runs; None:
    fewer than 4."""
    mean = float(steps.mean()) if len(steps) else 0.0
    if len(steps) < MIN_VALUES or mean <= 0.0:
        return None
    from statistics import stdev  # few traces have so many steps, and it takes a hundredth of their analysis

    means = [float(stretch.mean()) for stretch in np.array_split(steps, STRETCHES)]
    chance = t_quantile(STRETCHES - 1) * stdev(means) / mean * math.sqrt(1.0 + 1.0 / STRETCHES)
    return math.hypot(chance, miss)


class Repeat(Struct, frozen=True):
    """Another run of the same thing."""

    step_ms: float
    """Its mean step, > 0, without the cause that was found in it."""
    doubt: float = 0.0
    """Standard deviation of log(step_ms) by what was taken from it; 0 where nothing was."""


def doubt_of(interval: Interval, value: float) -> float:
    """The standard deviation of log(`value`) that has `interval`: of Student's t, which has the variance
    ν / (ν - 2).
    """
    degrees = STRETCHES - 1
    return math.log(interval.high / value) / t_quantile(degrees) * math.sqrt(degrees / (degrees - 2))


def apart(repeats: Sequence[Repeat]) -> float | None:
    """Half the width of the interval of log(step of another run over this one's), from earlier runs; None:
    fewer than 4."""
    deviation, count = _deviation(repeats), len(repeats)
    return None if deviation is None else t_quantile(count - 1) * deviation * math.sqrt(2.0)


def by_chance(repeats: Sequence[Repeat]) -> float | None:
    """Bound of log(step of another run over the mean of these) in 95 of 100 cases; None with fewer than 4.

    Student's bound of one further observation, to one side: all of the other 5 % lies above it.
    """
    deviation, count = _deviation(repeats), len(repeats)
    one_side = 2.0 * CONFIDENCE - 1.0
    if deviation is None:
        return None
    return t_quantile(count - 1, one_side) * deviation * math.sqrt(1.0 + 1.0 / count)


def _deviation(repeats: Sequence[Repeat]) -> float | None:
    """Spread of the logarithms beyond what is not known of each run; None with fewer than 4."""
    if len(repeats) < MIN_RUNS:
        return None
    logs = np.log([item.step_ms for item in repeats])
    own = np.array([item.doubt for item in repeats]) ** 2
    low, high = 0.0, float(logs.var(ddof=1))
    # Their variance is enough, since no run is known better than exactly.
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        if middle > 0.0 and _distance(logs, own + middle) > len(logs) - 1:
            low = middle
        else:
            high = middle
    return math.sqrt(high) if high > _NOTHING else 0.0


def _distance(logs: Floats, variances: Floats) -> float:
    """The squared distances from the weighted mean, each over its variance, summed."""
    weights = 1.0 / variances
    mean = (weights * logs).sum() / weights.sum()
    return float((weights * (logs - mean) ** 2).sum())


def around(value: float, relative: float | None) -> Interval | None:
    """`value` times and over exp(`relative`), so that a ratio and its inverse have the same interval."""
    if relative is None:
        return None
    factor = math.exp(relative)
    return Interval(low=value / factor, high=value * factor, confidence=CONFIDENCE)


def at_least(interval: Interval | None, value: float, relative: float | None) -> Interval | None:
    """`interval` of `value`, and no narrower than `relative` makes it; None stays None."""
    if interval is None or relative is None:
        return interval
    return around(value, max(math.log(interval.high / value), relative))
