"""Half-open integer intervals [start, end) in ns, as int64 arrays of shape (n, 2).

Every function takes arrays of any order and overlap and returns sorted, disjoint, non-empty intervals or an
integer length, so that parts of a whole always sum to it exactly.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Intervals = NDArray[np.int64]

EMPTY: Intervals = np.empty((0, 2), dtype=np.int64)


def as_intervals(pairs: Iterable[tuple[int, int]]) -> Intervals:
    """An (n, 2) array from (start, end) pairs; nothing is merged or checked."""
    array = np.array(list(pairs), dtype=np.int64)
    return array.reshape(-1, 2)


def union(intervals: Intervals) -> Intervals:
    """The set covered by `intervals`: touching ones merged, empty and inverted ones dropped. The array itself
    where it is that already.
    """
    apart = intervals.reshape(-1)
    if bool((apart[1:] > apart[:-1]).all()):
        return intervals
    there = intervals[:, 1] > intervals[:, 0]
    kept = intervals if there.all() else intervals[there]
    if len(kept) == 0:
        return EMPTY
    start, end = np.ascontiguousarray(kept.T)
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    first = np.concatenate(([True], start[1:] > reach[:-1]))
    last = np.concatenate((first[1:], [True]))
    return np.stack((start[first], reach[last]), axis=1)


def length(intervals: Intervals) -> int:
    """Nanoseconds covered by the union of `intervals`."""
    merged = union(intervals)
    return int((merged[:, 1] - merged[:, 0]).sum())


def intersection(a: Intervals, b: Intervals) -> Intervals:
    """The set covered by both."""
    return _meet(union(a), union(b))


def _meet(a: Intervals, b: Intervals) -> Intervals:
    """`intersection` of what is merged already."""
    if len(a) == 0 or len(b) == 0:
        return EMPTY
    # For each interval of a, the run of b's intervals that reach into it.
    low = np.searchsorted(b[:, 1], a[:, 0], side="right")
    high = np.searchsorted(b[:, 0], a[:, 1], side="left")
    counts = np.maximum(high - low, 0)
    rows = np.repeat(np.arange(len(a)), counts)
    offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    columns = np.repeat(low, counts) + offsets
    return np.stack((np.maximum(a[rows, 0], b[columns, 0]), np.minimum(a[rows, 1], b[columns, 1])), axis=1)


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """The set covered by `a` and not by `b`."""
    a, b = union(a), union(b)
    if len(a) == 0 or len(b) == 0:
        return a
    gaps = np.empty((len(b) + 1, 2), dtype=np.int64)
    gaps[0, 0], gaps[-1, 1] = min(a[0, 0], b[0, 0]), max(a[-1, 1], b[-1, 1])
    gaps[1:, 0], gaps[:-1, 1] = b[:, 1], b[:, 0]
    return _meet(a, gaps[gaps[:, 1] > gaps[:, 0]])


def clip(intervals: Intervals, start: int, end: int) -> Intervals:
    """The part of `intervals` inside [start, end), merged."""
    return intersection(intervals, as_intervals([(start, end)]))


def lengths_in(intervals: Intervals, windows: Intervals) -> NDArray[np.int64]:
    """Nanoseconds of each of the m `windows` that `intervals` cover, as (m,); windows may overlap."""
    merged = union(intervals)
    if len(merged) == 0:
        return np.zeros(len(windows), dtype=np.int64)
    before = np.concatenate(([0], np.cumsum(merged[:, 1] - merged[:, 0])))
    covered = [_covered_until(merged, before, windows[:, side]) for side in (0, 1)]
    within: NDArray[np.int64] = np.maximum(covered[1] - covered[0], 0)
    return within


def _covered_until(
    merged: Intervals, before: NDArray[np.int64], times: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Length of `merged` below each time; `before[i]` is the length of its first i intervals."""
    index = np.searchsorted(merged[:, 0], times, side="right")
    beyond = np.maximum(merged[np.maximum(index - 1, 0), 1] - times, 0)
    covered: NDArray[np.int64] = before[index] - np.where(index > 0, beyond, 0)
    return covered
