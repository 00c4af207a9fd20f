"""The steps of a trace as windows on its clock."""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct

from aorta.artefacts import names
from aorta.artefacts.events import ABSENT, Column, RangeRole, Trace, TraceRanges, launched_at, take
from aorta.intervals import EMPTY, Intervals, as_intervals
from aorta.metrics.median import median
from aorta.metrics.trace_period import kernels_repeat, period_of

_PREFERRED = ("ProfilerStep", names.STEP_RANGE)
_SMALL_GAP = 0.01
"""Share of a step below which the time between two steps' ranges is the profiler's, not the loop's."""
_CUT_SHORT = 0.5
"""A last range shorter than this share of the others' is not a whole step."""


class StepWindows(Struct, frozen=True, eq=False):
    """Windows that the breakdown is made for: each from a step's start to the next one's."""

    number: Column
    """Number from the range's name; ABSENT where it has no number."""
    windows: Intervals
    basis: str
    """The source of the windows."""
    closed: bool = False
    """The last window ends where another step begins."""
    whole_capture: bool = False
    """The only window is the capture: it has no step ranges and does not repeat itself."""

    def __len__(self) -> int:
        return len(self.windows)


def steps_of(trace: Trace) -> StepWindows:
    """The steps of a trace; without step ranges its own period, else one window over all that its GPU did.

    A window reaches from a step's start to the start of the next, so that a loader called between two ranges
    counts. The last step has no following step, so it ends with its range. It is left out if the other steps
    show time after their ranges, or if the capture ended within it. Steps on the host are used; the same
    ranges projected on the GPU only where the host has none. Where no launch leads to a GPU event, the host
    may be ahead by any time: then the repetitions of kernels are used.
    """
    gpu = trace.gpu
    adrift = len(gpu) > 0 and not (launched_at(trace) != ABSENT).any()
    for ranges, place in ((trace.host, "host"), (trace.gpu_ranges, "GPU")):
        found = _marks(ranges, trace.names)
        if len(found):
            label = _family(trace.names[int(found.name[0])])
            steps = _windows(found, trace.names, f"{label} ranges on the {place}")
            return _repeated(trace, found, steps) if adrift and place == "host" else steps
    period = period_of(trace) if len(gpu) else None
    if period is not None:
        windows = np.stack((period.starts[:-1], period.starts[1:]), axis=1)
        basis = f"{period.basis}: the capture has no step ranges"
        return StepWindows(np.arange(len(windows)), windows, basis, closed=True)
    if len(gpu) == 0:
        return StepWindows(
            np.empty(0, dtype=np.int64), EMPTY, "nothing, because there are no step ranges and no GPU events"
        )
    whole = as_intervals([(int(gpu.start_ns.min()), int(gpu.end_ns.max()))])
    basis = "the whole capture, because it has no step ranges and does not repeat itself"
    return StepWindows(np.zeros(1, dtype=np.int64), whole, basis, whole_capture=True)


def marks_of(trace: Trace) -> TraceRanges:
    """Returns the ranges of steps on the host."""
    return _marks(trace.host, trace.names)


def _marks(ranges: TraceRanges, names: tuple[str, ...]) -> TraceRanges:
    return _one_family(take(ranges, ranges.role == RangeRole.STEP), names)


def _repeated(trace: Trace, marks: TraceRanges, steps: StepWindows) -> StepWindows:
    """The repetitions of a trace's kernels, if there are as many as marks on the host; else the host's steps.

    Args:
        trace: joins no launch to a GPU event.
        marks: the ranges of steps on the host.
        steps: the windows of `marks`.
    """
    period = kernels_repeat(trace)
    if period is None or abs(len(period.starts) - len(marks)) > 1:
        return steps
    windows = np.stack((period.starts[:-1], period.starts[1:]), axis=1)
    number: Column = np.full(len(windows), ABSENT, dtype=np.int64)
    if period.step is not None and int(period.step.max()) < len(marks):
        number = _numbers(marks, trace.names)[period.step[:-1]]
    basis = f"{period.basis}, one per mark on the host: no launch leads to a GPU event"
    return StepWindows(number, windows, basis, closed=True)


def _family(name: str) -> str:
    return re.sub(r"[\s#:=_]*\d+$", "", name)


def _one_family(ranges: TraceRanges, names: tuple[str, ...]) -> TraceRanges:
    """The ranges of one kind of name on one thread; a loop may be marked twice, or on several threads."""
    if len(ranges) == 0:
        return ranges
    labels = np.array([_family(names[code]) for code in ranges.name.tolist()])
    known = [label for label in _PREFERRED if (labels == label).any()]
    values, counts = np.unique(labels, return_counts=True)
    label = known[0] if known else values[np.argmax(counts)]
    ranges = take(ranges, labels == label)
    lanes, counts = np.unique(ranges.lane, return_counts=True)
    return take(ranges, ranges.lane == lanes[np.argmax(counts)])


def _numbers(ranges: TraceRanges, names: tuple[str, ...]) -> Column:
    # A longer number is no count of steps, and is over what 64 bits hold.
    digits = [re.search(r"(?<!\d)(\d{1,18})$", names[code]) for code in ranges.name.tolist()]
    number = np.array([int(found[1]) if found else ABSENT for found in digits], dtype=np.int64)
    return _counted_on(number) if (number != ABSENT).all() else number


def _counted_on(number: Column) -> Column:
    """Returns numbers that go on where those of the names begin again, as in each epoch."""
    ahead = np.diff(number)
    if len(number) < 2 or (ahead > 0).all():
        return number
    return np.asarray(number[0] + np.append(0, np.cumsum(np.where(ahead > 0, ahead, 1))), dtype=np.int64)


def _windows(ranges: TraceRanges, names: tuple[str, ...], basis: str) -> StepWindows:
    start, end = ranges.start_ns, ranges.end_ns
    number = _numbers(ranges, names)
    # A profiler that records in cycles leaves out the steps between them: a window must not span those.
    followed = (number[1:] == number[:-1] + 1) | (number[1:] == ABSENT)
    reach = np.append(np.where(followed, start[1:], end[:-1]), end[-1])
    gaps = (start[1:] - end[:-1])[followed]
    kept = np.ones(len(start), dtype=np.bool_)
    if len(gaps) and median(gaps) > _SMALL_GAP * median(end - start):
        kept[np.append(~followed, True)] = False
        basis += "; steps without a following step left out, because time between ranges is unknown"
    elif len(start) > 1 and (end - start)[-1] < _CUT_SHORT * median((end - start)[:-1]):
        kept[-1] = False
        basis += "; without the last step, which the capture cut short"
    kept &= reach > start
    return StepWindows(number[kept], np.stack((start, reach), axis=1)[kept], basis)
