"""Finds the floating-point operations of what a launch put on the GPU, by the operator that launched it."""

from __future__ import annotations

import numpy as np

from aorta.artefacts.events import ABSENT, Column, TraceRanges


def known_work(operators: TraceRanges, at: Column, row: Column) -> dict[str, Column]:
    """The columns `flops` and `item_bytes` of items at these times; `row` is ABSENT where none is a launch.

    An operator may launch several kernels. All of its work is the first one's, and the others have none, so
    that the sum over kernels is right. Threads take turns at launching: an operator that two threads have at
    the same time is the later one.
    """
    counted = operators.flops != ABSENT
    start, end = operators.start_ns[counted], operators.end_ns[counted]
    order = np.argsort(start, kind="stable")
    flops, item = np.full((2, len(at)), ABSENT, dtype=np.int64)
    if not counted.any():
        return {"flops": flops, "item_bytes": item}
    place = np.searchsorted(start[order], at, side="right") - 1
    chosen = order[np.maximum(place, 0)]
    inside = (place >= 0) & (at < end[chosen]) & (row != ABSENT)
    launches = np.flatnonzero(inside)
    _, first = np.unique(chosen[launches], return_index=True)
    flops[launches] = 0
    flops[launches[first]] = operators.flops[counted][chosen[launches[first]]]
    item[launches] = operators.item_bytes[counted][chosen[launches]]
    return {"flops": flops, "item_bytes": item}
