"""Finds how to put one clock beside another: an offset, and a rate where it drifts.

Quartz clocks are off by up to 50 ppm, and clocks that are adjusted are not adjusted equally. At 20 ppm, two
monotonic clocks move apart by 12 ms in ten minutes. The line is Tukey's resistant line (Exploratory Data
Analysis, 1977, chapter 10). Its slope joins the medians of the first and the last third, so a few calls with
different ends do not change it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from aorta.metrics.median import median

Ints = NDArray[np.int64]

_FEWEST = 9
"""Times, three in each third; fewer have no rate."""


class ClockLine(Struct, frozen=True):
    """Correction to add to a clock's times: `offset_ns` + `rate` × (time - `about_ns`)."""

    offset_ns: int = 0
    rate: float = 0.0
    """Relative length of a second of the other clock, minus 1; negative: shorter."""
    about_ns: int = 0
    uncertainty_ns: int = 0
    """The median distance of the times from the line, to either side; of a chain of clocks, the sum."""

    def of(self, times: Ints) -> Ints:
        """Times of the clock on the other one; any shape."""
        if not self.rate:
            return times + self.offset_ns if self.offset_ns else times
        return put(times, [self], np.zeros(times.shape, dtype=np.int64))

    def then(self, other: ClockLine) -> ClockLine:
        """This line, and `other` behind it."""
        centre = self.about_ns + self.offset_ns
        offset = self.offset_ns + other.offset_ns + round(other.rate * (centre - other.about_ns))
        return ClockLine(
            offset_ns=offset,
            rate=self.rate + other.rate * (1.0 + self.rate),
            about_ns=self.about_ns,
            uncertainty_ns=self.uncertainty_ns + other.uncertainty_ns,
        )


def put(times: Ints, lines: Sequence[ClockLine], which: Ints) -> Ints:
    """Times of several clocks on another one: each by the line that `which`, of the same shape, says."""
    offset = np.array([line.offset_ns for line in lines], dtype=np.int64)
    placed: Ints = times + offset[which]
    if any(line.rate for line in lines):
        about = np.array([line.about_ns for line in lines], dtype=np.int64)
        rate = np.array([line.rate for line in lines])
        placed += np.rint(rate[which] * (times - about[which])).astype(np.int64)
    return placed


def clock_line(times: Ints, gaps: Ints) -> ClockLine:
    """The line through what to add at each of some times of a clock, one at least; both (n,).

    It has no rate where the gaps change by no more than they scatter: that would be the scatter's.
    """
    order = np.argsort(times, kind="stable")
    times, gaps = times[order], gaps[order]
    level = int(median(gaps))
    flat = ClockLine(offset_ns=level, uncertainty_ns=int(median(np.abs(gaps - level))))
    third = len(times) // 3
    if len(times) < _FEWEST or not flat.uncertainty_ns:
        return flat
    (first, before), (last, after) = (
        (float(median(times[part])), float(median(gaps[part])))
        for part in (slice(None, third), slice(-third, None))
    )
    if last <= first:
        return flat
    rate, about = (after - before) / (last - first), int(median(times))
    left = gaps - rate * (times - about)
    offset = float(median(left))
    scatter = float(median(np.abs(left - offset)))
    if abs(after - before) <= 2.0 * scatter:
        return flat
    return ClockLine(offset_ns=round(offset), rate=rate, about_ns=about, uncertainty_ns=round(scatter))
