"""Counts the launches that a GPU has not started yet."""

from __future__ import annotations

import numpy as np

from aorta.artefacts.events import ABSENT, Column, GpuEvents


def pending(at: Column, row: Column, gpu: GpuEvents) -> Column:
    """Returns how many launches had not started when each item began, those from before the line included.

    Args:
        at: when the items began, in order.
        row: the GPU event of each item; ABSENT: it launches nothing.
        gpu: the events of the rank's GPU.
    """
    has = row != ABSENT
    launched = np.cumsum(has.astype(np.int64)) - has.astype(np.int64)
    within = (gpu.start_ns >= at[0]) & (gpu.start_ns <= at[-1])
    before = within.copy()
    before[row[has]] = False
    own = within.copy()
    own[row[has]] = True
    started = np.searchsorted(np.sort(gpu.start_ns[own], kind="stable"), at)
    return np.asarray(launched + int(before.sum()) + _unseen(at, gpu) - started, dtype=np.int64)


def _unseen(at: Column, gpu: GpuEvents) -> Column:
    """Returns how many launches from before the capture were ahead of each item.

    A profiler leaves out the work that was launched before it began. While that ran, nothing else started. So
    the time to the first start, over the mean time from one start to the next, tells how many there were.
    """
    if not len(gpu):
        return np.zeros(len(at), dtype=np.int64)
    first = int(gpu.start_ns.min())
    each = max((int(gpu.end_ns.max()) - first) / len(gpu), 1.0)
    return np.asarray(np.maximum(first - at, 0) / each, dtype=np.int64)
