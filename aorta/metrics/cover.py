"""Finds how much of a set of intervals lies before a time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from aorta.intervals import Intervals, union


class Cover:
    """Length of a set of intervals before any time, in ns."""

    def __init__(self, intervals: Intervals) -> None:
        merged = union(intervals)
        self._starts, self._ends = merged[:, 0], merged[:, 1]
        self._before = np.concatenate(([0], np.cumsum(self._ends - self._starts)))

    def before(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        """|intervals ∩ (−∞, t)| of each t, int64 of the same shape."""
        if len(self._starts) == 0:
            return np.zeros(times.shape, dtype=np.int64)
        count = np.searchsorted(self._starts, times, side="left")
        reach = self._ends[np.maximum(count - 1, 0)] - times
        cut = np.where(count > 0, np.maximum(reach, 0), 0)
        return np.asarray(self._before[count] - cut, dtype=np.int64)
