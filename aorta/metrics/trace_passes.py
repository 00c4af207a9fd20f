"""Forward and backward passes of microbatches on a GPU, by what the host launched between sends and receives.

The host launches a pass between the calls that receive its input and send its output. Autograd launches the
backward kernels from its own thread. So passes are told apart by the order of launches, however far the GPU
is behind.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from aorta.artefacts.events import ABSENT, Column, ColumnTable, Kind, Trace, build, of_launch, take
from aorta.metrics.median import median
from aorta.metrics.trace_steps import StepWindows

Mask = NDArray[np.bool_]

FORWARD, BACKWARD, WEIGHT = 0, 1, 2
"""Codes of passes. Where nothing names them, the program's own thread launches the forward ones."""
_NAMED = re.compile(r"PP:(\d+)([FBIW])(\d+)")
"""The ranges of torch's schedules: stage, pass and microbatch. `I` is the backward pass of the inputs."""
_CODES = {"F": FORWARD, "B": BACKWARD, "I": BACKWARD, "W": WEIGHT}
LEAST_PASS = 0.2
"""A run of kernels is not a pass if it takes less than this share of the median pass of the same step and
kind.
"""


class PassTable(ColumnTable, frozen=True, eq=False):
    """The passes of a rank's steps, in order of launch; ns on the trace's clock."""

    step: Column
    code: Column
    stage: Column
    """Stage of the model; ABSENT: nothing names it."""
    microbatch: Column
    start_ns: Column
    end_ns: Column
    busy_ns: Column
    """Time in which its kernels ran."""


def no_passes() -> PassTable:
    """Returns a table without rows."""
    return build(PassTable, 0)


def passes_of(trace: Trace, launched: Column, host: StepWindows, sends: Column) -> PassTable:
    """Returns the passes; none where the trace joins no launches to kernels, or nothing is sent.

    Args:
        trace: of a rank.
        launched: when each GPU event was launched; ABSENT where that is not known.
        host: the steps on the host.
        sends: rows of the GPU events that send or receive.
    """
    gpu, lane = trace.gpu, of_launch(trace, trace.host.lane)
    if not len(sends) or (lane[sends] == ABSENT).all():
        return no_passes()
    cut = np.zeros(len(gpu), dtype=np.bool_)
    cut[sends] = True
    used = np.flatnonzero((cut | (gpu.kind == Kind.COMPUTE)) & (launched != ABSENT) & (lane != ABSENT))
    order = used[np.lexsort((used, launched[used]))]
    place = np.searchsorted(host.windows[:, 0], launched[order], side="right") - 1
    inside = (place >= 0) & (launched[order] < host.windows[np.maximum(place, 0), 1])
    order, step = order[inside], host.number[place[inside]]
    named = _in_named(trace, launched[order])
    if named is not None:
        kept = (named[0] != ABSENT) & ~cut[order]
        columns = tuple(column[kept] for column in (step, *named))
        return _merged(trace, order[kept], columns, least=0.0)
    lanes, counts = np.unique(lane[sends][lane[sends] != ABSENT], return_counts=True)
    code = np.where(lane[order] == int(lanes[np.argmax(counts)]), FORWARD, BACKWARD)
    work = ~cut[order]
    # A pass ends where something is sent or received, the launching thread changes, or the step does.
    turn = np.cumsum(~work) * 2 + code
    run = np.cumsum(np.concatenate(([0], (np.diff(turn) != 0) | (np.diff(step) != 0)))[: len(order)])
    work &= ~_after_the_last_backward(step, code, work)
    absent = np.full(int(work.sum()), ABSENT)
    return _merged(trace, order[work], (step[work], run[work], code[work], absent, absent), least=LEAST_PASS)


def _after_the_last_backward(step: Column, code: Column, work: Mask) -> Mask:
    """Tells which kernels of forward passes no backward pass follows in their step: the optimizer's. A step
    without a backward pass keeps all.
    """
    found = np.zeros(len(step), dtype=np.bool_)
    for one in np.unique(step).tolist():
        back = np.flatnonzero((step == one) & (code == BACKWARD) & work)
        if len(back):
            found[back[-1] + 1 :] |= step[back[-1] + 1 :] == one
    return found & work


def _in_named(trace: Trace, launched: Column) -> tuple[Column, Column, Column, Column] | None:
    """Returns range, code, stage and microbatch of each launch within a named pass. None if none is named."""
    found = {code: match for code, name in enumerate(trace.names) if (match := _NAMED.fullmatch(name))}
    rows = np.flatnonzero(np.isin(trace.host.name, list(found)))
    if not len(rows):
        return None
    rows = rows[np.argsort(trace.host.start_ns[rows], kind="stable")]
    place = np.searchsorted(trace.host.start_ns[rows], launched, side="right") - 1
    within = (place >= 0) & (launched < trace.host.end_ns[rows[np.maximum(place, 0)]])
    matches = [found[int(code)] for code in trace.host.name[rows]]
    columns = [
        np.array(values)[np.maximum(place, 0)]
        for values in (
            [_CODES[match[2]] for match in matches],
            [int(match[1]) for match in matches],
            [int(match[3]) for match in matches],
        )
    ]
    run, code, stage, microbatch = (np.where(within, column, ABSENT) for column in (place, *columns))
    return run, code, stage, microbatch


def _merged(trace: Trace, rows: Column, columns: tuple[Column, ...], *, least: float) -> PassTable:
    """Returns one row per run of kernels, except runs that are short among those of their step and kind.

    Args:
        trace: of a rank.
        rows: its kernels, in order of launch.
        columns: step, number of the run, code, stage and microbatch of each.
        least: share of the median.
    """
    if not len(rows):
        return no_passes()
    step, run = columns[0], columns[1]
    first = np.flatnonzero(np.concatenate(([True], (np.diff(run) != 0) | (np.diff(step) != 0))))
    begin = np.minimum.reduceat(trace.gpu.start_ns[rows], first)
    end = np.maximum.reduceat(trace.gpu.end_ns[rows], first)
    busy = np.add.reduceat(trace.gpu.end_ns[rows] - trace.gpu.start_ns[rows], first)
    of_step, code = step[first], columns[2][first]
    place = of_step * len(_CODES) + code
    middle = {one: median(busy[place == one]) for one in np.unique(place).tolist()}
    kept = busy >= np.array([least * middle[one] for one in place.tolist()])
    stage, microbatch = columns[3][first], columns[4][first]
    made = PassTable(of_step, code, stage, microbatch, begin, end, np.minimum(busy, end - begin))
    return take(made, kept)
