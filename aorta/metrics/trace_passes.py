"""Forward and backward passes of microbatches on a GPU, by what the host launched between sends and receives.

The host launches a pass between the calls that receive its input and send its output, and autograd launches
the backward kernels from a thread of its own. So passes are told apart by the order of launches, however far
the GPU is behind.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from aorta.artefacts.events import ABSENT, Column, ColumnTable, Kind, RangeRole, Trace
from aorta.metrics.trace_steps import StepWindows

FORWARD, BACKWARD = 0, 1
"""Codes of passes: launched by the program's own thread, or by another one."""
LEAST_PASS = 0.05
"""A run of kernels that takes less than this share of its step's longest pass is part of a neighbour."""


@dataclass(frozen=True, slots=True, eq=False)
class PassTable(ColumnTable):
    """The passes of a rank's steps, in order of launch; ns on the trace's clock."""

    step: Column
    code: Column
    start_ns: Column
    end_ns: Column


def no_passes() -> PassTable:
    """Returns a table without rows."""
    nothing = np.empty(0, dtype=np.int64)
    return PassTable(nothing, nothing, nothing, nothing)


def passes_of(trace: Trace, launched: Column, host: StepWindows, sends: Column) -> PassTable:
    """Returns the passes; none where the trace joins no launches to kernels, or nothing is sent.

    Args:
        trace: of a rank.
        launched: when each GPU event was launched; ABSENT where that is not known.
        host: the steps on the host.
        sends: rows of the GPU events that send or receive.
    """
    gpu, lane = trace.gpu, _launching_lane(trace)
    if not len(sends) or (lane[sends] == ABSENT).all():
        return no_passes()
    lanes, counts = np.unique(lane[sends][lane[sends] != ABSENT], return_counts=True)
    own = int(lanes[np.argmax(counts)])
    cut = np.zeros(len(gpu), dtype=np.bool_)
    cut[sends] = True
    used = np.flatnonzero((cut | (gpu.kind == Kind.COMPUTE)) & (launched != ABSENT) & (lane != ABSENT))
    order = used[np.lexsort((used, launched[used]))]
    place = np.searchsorted(host.windows[:, 0], launched[order], side="right") - 1
    inside = (place >= 0) & (launched[order] < host.windows[np.maximum(place, 0), 1])
    order, step = order[inside], host.number[place[inside]]
    code = np.where(lane[order] == own, FORWARD, BACKWARD)
    work = ~cut[order]
    # A pass ends where something is sent or received, the launching thread changes, or the step does.
    turn = np.cumsum(~work) * 2 + code
    begins = np.concatenate(([True], (np.diff(turn) != 0) | (np.diff(step) != 0)))[: len(order)]
    run = np.cumsum(begins) - 1
    if not work.any():
        return no_passes()
    return _merged(step[work], code[work], run[work], gpu.start_ns[order[work]], gpu.end_ns[order[work]])


def _merged(step: Column, code: Column, run: Column, start: Column, end: Column) -> PassTable:
    """Returns one row per run of kernels; short ones, such as a cleared gradient, are left out."""
    first = np.flatnonzero(np.concatenate(([True], np.diff(run) != 0)))
    begin = np.minimum.reduceat(start, first)
    stop = np.maximum.reduceat(end, first)
    length = stop - begin
    of_step = step[first]
    longest = {number: int(length[of_step == number].max()) for number in np.unique(of_step).tolist()}
    least = np.array([LEAST_PASS * longest[number] for number in of_step.tolist()])
    kept = length >= least
    return PassTable(of_step[kept], code[first][kept], begin[kept], stop[kept])


def _launching_lane(trace: Trace) -> Column:
    """Returns the thread that launched each GPU event; ABSENT where the trace joins no launch to it."""
    found = np.full(len(trace.gpu), ABSENT, dtype=np.int64)
    calls = (trace.host.role == RangeRole.LAUNCH) & (trace.host.correlation != ABSENT)
    correlation, first = np.unique(trace.host.correlation[calls], return_index=True)
    if len(correlation):
        lanes = trace.host.lane[calls][first]
        place = np.minimum(np.searchsorted(correlation, trace.gpu.correlation), len(correlation) - 1)
        known = correlation[place] == trace.gpu.correlation
        found[known] = lanes[place[known]]
    return found
