"""Counts the calls of collectives in a step, by what they are for, by the step records."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from aorta.artefacts.range_columns import Ints, RangeColumns
from aorta.artefacts.step_columns import StepColumns, ranges_of
from aorta.units import NS_PER_MS

SMALL_BYTES = 4096
FEW_BYTES = 64
"""Metrics of up to this size count as one size: some are an int64, others a float."""
REDUCTIONS = ("all_reduce", "reduce")
_LARGE_PER_SMALL = 0.25
"""Larger reductions over small ones from which both are gradients that the program averages by itself."""
_GRADIENTS = "gradients"


class RecordedCalls(Struct, frozen=True):
    """One rank's calls per step."""

    small: float
    """Reductions of metrics: at most 4 KiB, of one size, called by the program outside of its passes.

    A program that averages its gradients by itself reduces tensors of many sizes, and larger ones among them.
    """
    small_ms: float
    """Time that they take."""
    passes: int
    """Forward passes; 0: their number differs from step to step."""
    gradients: tuple[int, ...]
    """Bytes of each all-reduce of gradients, in order; empty: steps differ, or sizes are not recorded."""
    each_pass: bool
    """True if as many of these start after each forward pass, before the next one, and weights are updated
    after the last pass alone. False if there are none. Two models with one backward pass exchange all of
    theirs after the last forward pass. Two models with an update each need each exchange.
    """


def recorded_calls(by_rank: Mapping[int, StepColumns]) -> dict[int, RecordedCalls]:
    """Returns the calls of each rank in the steps that were timed part by part."""
    found = {}
    for rank, every in by_rank.items():
        steps = every.where(every.profiled)
        if len(steps):
            found[rank] = _of(ranges_of([steps]), len(steps))
    return found


def _of(ranges: RangeColumns, steps: int) -> RecordedCalls:
    compute = _rows(ranges, [kind.stream == "compute" for kind in ranges.kinds])
    reduced = _rows(
        ranges,
        [kind.op in REDUCTIONS and kind.tag != _GRADIENTS and bool(kind.bytes) for kind in ranges.kinds],
    )
    # Steps lie one behind the other, so that a call is looked for in the passes of its own.
    base = ranges.row * (int(ranges.end_ns.max(initial=0)) + 1)
    begin = np.sort((base + ranges.start_ns)[compute])
    end = np.sort((base + ranges.end_ns)[compute])
    at = (base + ranges.start_ns)[reduced]
    outside = reduced[np.searchsorted(begin, at, side="right") == np.searchsorted(end, at, side="right")]
    metrics = outside[_of_metrics(_bytes(ranges, outside))]
    took = (ranges.end_ns - ranges.start_ns)[metrics]
    forward, update = (
        _rows(ranges, [kind.stream == "compute" and kind.tag == tag for kind in ranges.kinds])
        for tag in ("forward", "optimizer")
    )
    passes = np.bincount(ranges.row[forward], minlength=steps)
    gradients = _gradients(ranges, steps)
    starts = (base + ranges.start_ns)[_exchanges(ranges)]
    behind = np.searchsorted(np.sort((base + ranges.start_ns)[forward]), (base + ranges.start_ns)[update])
    updated = np.isin(np.arange(steps), ranges.row[update]).all()
    at_the_end = updated and (behind == np.cumsum(passes)[ranges.row[update]]).all()
    return RecordedCalls(
        small=len(metrics) / steps,
        small_ms=float(took.sum()) / steps / NS_PER_MS,
        passes=int(passes[0]) if (passes == passes[0]).all() else 0,
        gradients=gradients,
        each_pass=bool(gradients and at_the_end)
        and _as_many(np.sort((base + ranges.start_ns)[forward]), starts),
    )


def _of_metrics(sizes: Ints) -> NDArray[np.bool_]:
    """Returns which reductions of these sizes, in bytes, are metrics: those of the most common small size."""
    small = sizes <= SMALL_BYTES
    if not small.any() or (~small).sum() >= _LARGE_PER_SMALL * small.sum():
        return np.zeros(len(sizes), dtype=np.bool_)
    like = np.maximum(sizes, FEW_BYTES)
    most_common = np.bincount(like[small]).argmax()
    return np.asarray(small & (like == most_common), dtype=np.bool_)


def _bytes(ranges: RangeColumns, rows: Ints) -> Ints:
    return np.array([kind.bytes or 0 for kind in ranges.kinds], dtype=np.int64)[ranges.kind[rows]]


def _as_many(passes: Ints, starts: Ints) -> bool:
    """Returns True if the same number of calls starts after each pass, before the next one."""
    behind = np.searchsorted(passes, starts, side="right")
    count = np.bincount(behind, minlength=len(passes) + 1)
    return len(passes) > 0 and not count[0] and bool((count[1:] == count[1]).all())


def _exchanges(ranges: RangeColumns) -> Ints:
    return _rows(ranges, [kind.tag == _GRADIENTS and kind.op == "all_reduce" for kind in ranges.kinds])


def _gradients(ranges: RangeColumns, steps: int) -> tuple[int, ...]:
    """Bytes of the gradients' all-reduces, where each step has the same ones."""
    rows = _exchanges(ranges)
    sizes = _bytes(ranges, rows)
    each = len(rows) // steps
    if not each or len(rows) % steps or (np.bincount(ranges.row[rows], minlength=steps) != each).any():
        return ()
    order = np.lexsort((ranges.start_ns[rows], ranges.row[rows]))
    table = sizes[order].reshape(steps, each)
    return tuple(table[0].tolist()) if (table == table[0]).all() and (table > 0).all() else ()


def _rows(ranges: RangeColumns, wanted: list[bool]) -> Ints:
    return np.flatnonzero(np.array(wanted, dtype=np.bool_)[ranges.kind]) if wanted else ranges.kind[:0]
