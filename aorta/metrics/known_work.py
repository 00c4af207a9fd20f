"""Finds the floating-point operations of what a launch put on the GPU, by the operator that launched it."""

from __future__ import annotations

import numpy as np

from aorta.artefacts.events import ABSENT, Column, TraceRanges, among
from aorta.artefacts.hostline import ComputeKind

PRODUCTS = (
    ComputeKind.TENSOR_MATMUL,
    ComputeKind.PLAIN_MATMUL,
    ComputeKind.OTHER_MATMUL,
    ComputeKind.ATTENTION,
)
"""Kinds of kernels that multiply matrices."""


def known_work(operators: TraceRanges, at: Column, kind: Column, gpu_ns: Column) -> dict[str, Column]:
    """The columns `flops` and `item_bytes` of items at these times, by kind and duration of their kernels.

    An operator may launch several kernels. Those that multiply did its work: the longest one has all of it,
    the others none, so that the sum is right. Threads take turns at launching: an operator that two threads
    have at the same time is the later one.
    """
    counted = operators.flops != ABSENT
    start, end = operators.start_ns[counted], operators.end_ns[counted]
    order = np.argsort(start, kind="stable")
    flops, item = np.full((2, len(at)), ABSENT, dtype=np.int64)
    if not counted.any():
        return {"flops": flops, "item_bytes": item}
    place = np.searchsorted(start[order], at, side="right") - 1
    chosen = order[np.maximum(place, 0)]
    launches = np.flatnonzero((place >= 0) & (at < end[chosen]) & among(kind, PRODUCTS))
    launches = launches[np.argsort(-gpu_ns[launches], kind="stable")]
    _, longest = np.unique(chosen[launches], return_index=True)
    flops[launches] = 0
    flops[launches[longest]] = operators.flops[counted][chosen[launches[longest]]]
    item[launches] = operators.item_bytes[counted][chosen[launches]]
    return {"flops": flops, "item_bytes": item}
