"""GPU idle time that belongs to no step of a trace: validation, checkpoints, logging, and the rest."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from aorta.artefacts.events import Column, RangeRole, Trace, TraceRanges, coded
from aorta.intervals import EMPTY, Intervals, intersection, lengths_in, subtract, union
from aorta.metrics.between_steps import UNKNOWN
from aorta.metrics.host_tags import spans
from aorta.metrics.trace_breakdown import timeline_of
from aorta.metrics.trace_steps import StepWindows, marks_of

_LOGGED = 16
"""Launches that reading what is logged takes at most."""
_FEW_LAUNCHES = 0.05
"""Share of all launches."""
_WORD = r"(?:^|.*[^a-z])(?:{})(?:$|[^a-z].*)"
_LABELS: dict[str, re.Pattern[str]] = {
    "validation": re.compile(
        _WORD.format(r"val|valid|validat\w*|eval|evaluat(?:e|ion|ing)|test_?step"), re.IGNORECASE
    ),
    "checkpoint": re.compile(
        _WORD.format(r"ckpt\w*|checkpoint\w*|save(?:_?(?:checkpoint|ckpt|model|state|weights))?"),
        re.IGNORECASE,
    ),
    "logging": re.compile(
        _WORD.format(r"log|logs|logging|logger|log_\w+|metrics?|report\w*|print\w*|tensorboard|wandb|mlflow"),
        re.IGNORECASE,
    ),
}
"""Names of ranges that lie between steps."""
_FUNCTIONS: dict[str, re.Pattern[str]] = {
    "validation": re.compile(r".*\): (?:run_)?(?:validate|evaluate|validation|evaluation)(?:_loop|_epoch)?"),
    "checkpoint": re.compile(
        r"(?:.*/)?torch/serialization\.py\(\d+\): save"
        r"|(?:.*/)?torch/distributed/checkpoint/\S*: (?:async_)?save"
        r"|.*\): (?:save_(?:checkpoint|ckpt|model|state|pretrained)|save_file)"
    ),
    "logging": re.compile(
        r"(?:.*/)?logging/__init__\.py\(\d+\): .*|(?:.*/)?torch/utils/tensorboard/.*"
        r"|(?:.*/)?(?:wandb|tensorboardX|mlflow|tqdm|comet_ml|neptune|aim)/.*|<built-in function print>"
    ),
}
"""Python functions: what they do belongs to no step, wherever they are called."""


def between_steps(trace: Trace, steps: StepWindows) -> dict[str, Column]:
    """Returns the idle ns of each step's window by what the host did outside of the step.

    The GPU is idle, the host does not wait for a loader, and the host is between two ranges of steps or in a
    function that belongs to no step. Empty if the ranges leave nothing between them, and no such function was
    recorded.
    """
    if len(trace.gpu) == 0 or len(steps) == 0:
        return {}
    marks = marks_of(trace)
    gaps = _gaps(marks)
    silent = gaps if _quiet(trace, gaps) else EMPTY
    named = {phase: _named(trace, marks, phase, gaps) for phase in _LABELS}
    if not len(silent) and not any(len(found) for found in named.values()):
        return {}
    windows = steps.windows
    span = np.array([[windows[:, 0].min(), windows[:, 1].max()]], dtype=np.int64)
    loader = union(trace.host.intervals(RangeRole.LOADER, RangeRole.DATA))
    left = subtract(subtract(span, timeline_of(trace).covered), loader)
    made: dict[str, Column] = {}
    for phase, found in (*named.items(), (UNKNOWN, silent)):
        made[phase] = lengths_in(intersection(left, union(found)), windows)
        left = subtract(left, union(found))
    return {phase: ns for phase, ns in made.items() if phase == UNKNOWN or ns.any()}


def _quiet(trace: Trace, gaps: Intervals) -> bool:
    """Returns True if hardly anything is launched between the ranges: otherwise they are no whole steps."""
    launches = trace.host.start_ns[trace.host.role == RangeRole.LAUNCH]
    inside = np.searchsorted(gaps[:, 0], launches, side="right") - 1
    within = (inside >= 0) & (launches < gaps[np.maximum(inside, 0), 1]) if len(gaps) else launches < 0
    return int(within.sum()) <= _FEW_LAUNCHES * len(launches)


def _gaps(marks: TraceRanges) -> Intervals:
    """Returns what lies between the ranges of one thread's steps that follow each other."""
    if len(marks) < 2:
        return EMPTY
    order = np.argsort(marks.start_ns, kind="stable")
    starts, ends = marks.start_ns[order], np.maximum.accumulate(marks.end_ns[order])
    found = np.stack((ends[:-1], starts[1:]), axis=1)
    return np.asarray(found[found[:, 1] > found[:, 0]], dtype=np.int64)


def _named(trace: Trace, marks: TraceRanges, phase: str, gaps: Intervals) -> Intervals:
    """Returns when the host was in such a function, or between steps in a range with such a name."""
    thread = np.unique(marks.lane)

    def rows(ranges: TraceRanges, role: RangeRole, test: Callable[[str], object]) -> Intervals:
        chosen = (ranges.role == role) & coded(trace.names, ranges.name, test)
        return union(spans(ranges, chosen & np.isin(ranges.lane, thread) if len(thread) else chosen))

    labelled = rows(trace.host, RangeRole.OTHER, _LABELS[phase].fullmatch)
    functions = rows(trace.operators, RangeRole.FRAME, _FUNCTIONS[phase].fullmatch)
    return np.concatenate((intersection(labelled, gaps), _outside(trace, marks, phase, functions)))


def _outside(trace: Trace, marks: TraceRanges, phase: str, functions: Intervals) -> Intervals:
    """Returns the functions without those that hold training: a library may wrap the loop, or a step."""
    held = _inside(functions, marks.start_ns)
    if phase == "logging":
        launches = trace.host.start_ns[trace.host.role == RangeRole.LAUNCH]
        held = held + (_inside(functions, launches) > _LOGGED)
    return np.asarray(functions[held == 0], dtype=np.int64)


def _inside(spans_of: Intervals, moments: Column) -> Column:
    """Returns how many of the moments lie within each interval."""
    ordered = np.sort(moments)
    first, last = (np.searchsorted(ordered, spans_of[:, side]) for side in (0, 1))
    return np.asarray(last - first, dtype=np.int64)
