"""Makes a rank's host line of its trace."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from aorta.artefacts.events import (
    ABSENT,
    Column,
    GpuEvents,
    Kind,
    RangeRole,
    Trace,
    TraceRanges,
    among,
    build,
    coded,
    take,
)
from aorta.artefacts.hostline import (
    ComputeKind,
    HostLine,
    Item,
    LineTable,
    Pace,
    Tag,
    TagTime,
    pack_line,
)
from aorta.artefacts.packed import pack
from aorta.intervals import EMPTY, Intervals, lengths_in, subtract, union
from aorta.metrics.host_census import census, own_frames, place_of
from aorta.metrics.host_tags import SILENT_NS, loader_work, tagged
from aorta.metrics.kernel_names import kinds_of_events, waits_for_none
from aorta.metrics.known_work import known_work
from aorta.metrics.launch_queue import pending
from aorta.metrics.median import median
from aorta.metrics.rows import order_within
from aorta.metrics.small_kernels import with_small
from aorta.metrics.trace_breakdown import main_device
from aorta.metrics.trace_steps import StepWindows, steps_of

_MOST_ITEMS = 60_000
"""Items that a line holds; of more, the last steps are."""
_FULL_QUEUE = 512
"""Number of launches ahead from which a launch waits for room in the queue."""
_BLOCKED = 3.0
"""Multiple of the usual launch time from which a launch waits for room."""
_REAL_WAIT = 0.05
"""Share of the step from which the range of a loader with workers is waiting for it."""
_TOLERANCE_NS = 2_000
_CALLS = (RangeRole.LAUNCH, RangeRole.SYNC, RangeRole.API)
_COPIES = (ComputeKind.COPY, ComputeKind.PAGEABLE_COPY, ComputeKind.READ_COPY)
_FEW = 20
_FRAMES = 4
_NEARLY = 0.02
"""Share of a copy that may be left when the call returns that waited for it: clocks differ."""
_LEAST_STEPS = 2
_QUEUES = re.compile(r"(?:cuda|hip)Mem(?:cpy|set)\w*Async(?:_v\d+)?(?:_ptsz)?")
_WAIT_EVENT = re.compile(r"(?:cuda|hip)StreamWaitEvent(?:_v\d+)?(?:_ptsz)?|cuStreamWaitEvent(?:_ptsz)?")


class _Items(Struct):
    """The items in the order of the host, before they are cut into steps."""

    at: Column
    end: Column
    item: Column
    row: Column
    """Row of the GPU event; ABSENT: none."""


def host_line(trace: Trace) -> HostLine | None:
    """The line of a trace; None where it joins no launch to a kernel, or has no steps."""
    steps = steps_of(trace)
    # A program on the CPU has a line of its host alone.
    gpu = main_device(trace.gpu) if len(trace.gpu) else build(GpuEvents, 1)
    host = _own_lanes(trace)
    launches = (host.role == RangeRole.LAUNCH) & np.isin(host.correlation, gpu.correlation)
    launches &= host.correlation != ABSENT
    idle = len(trace.gpu) > 0 or not (trace.operators.role == RangeRole.OPERATOR).any()
    if len(steps) == 0 or (steps.number == ABSENT).all() or (idle and not launches.any()):
        return None
    host, steps = _last_steps(host, steps, launches)
    items = _items(trace, host, gpu, steps)
    tags = tagged(trace)
    table, windows = _table(trace, host, gpu, items, steps, tags=_item_tags(tags, items))
    table, small = with_small(table, windows, tags)
    frames = own_frames(trace)
    spent = {**_with_silence(tags, trace, host, windows), **_copies(table, items), **small}
    times = [
        TagTime(tag=int(tag), work_ns=pack(work), place=place_of(spans, frames, trace.names))
        for tag, spans in spent.items()
        if (work := lengths_in(spans, windows)).any() or tag is Tag.PAGEABLE
    ]
    names, table = _groups(trace, gpu, table, items)
    return HostLine(
        columns=pack_line(table),
        groups=names,
        tagged=times,
        pace=_pace(trace, host, steps),
        census=census(trace, host, gpu, steps),
    )


def _own_lanes(trace: Trace) -> TraceRanges:
    """The ranges of the threads that drive the GPU: with steps, operators or many launches."""
    host = trace.host
    lanes = set(np.unique(trace.operators.lane).tolist())
    lanes |= set(np.unique(host.lane[host.role == RangeRole.STEP]).tolist())
    made, counts = np.unique(host.lane[host.role == RangeRole.LAUNCH], return_counts=True)
    lanes |= set(made[counts > 0.01 * counts.sum()].tolist())
    return take(host, np.isin(host.lane, list(lanes)))


def _last_steps(
    host: TraceRanges, steps: StepWindows, launches: NDArray[np.bool_]
) -> tuple[TraceRanges, StepWindows]:
    """The last steps that another one followed, as many as a line holds, and the ranges in them.

    The last step of a capture contains the profiler's own end, and is left out if two other steps are left.
    """
    # A step that the end of the capture cut short is no window, and tells that its predecessor is whole.
    marks = host.start_ns[host.role == RangeRole.STEP]
    followed = np.isin(steps.windows[:, 1], np.concatenate((steps.windows[1:, 0], marks)))
    if followed.sum() >= _LEAST_STEPS:
        steps = StepWindows(steps.number[followed], steps.windows[followed], steps.basis)
    times = host.start_ns[launches]
    inside = np.searchsorted(times, steps.windows[:, 1]) - np.searchsorted(times, steps.windows[:, 0])
    behind = np.cumsum(inside[::-1])[::-1]
    kept = behind <= _MOST_ITEMS
    kept[-1] = True
    chosen = StepWindows(steps.number[kept], steps.windows[kept], steps.basis)
    first, last = int(chosen.windows[0, 0]), int(chosen.windows[-1, 1])
    return take(host, (host.start_ns >= first) & (host.start_ns < last)), chosen


def _items(trace: Trace, host: TraceRanges, gpu: GpuEvents, steps: StepWindows) -> _Items:
    """All items: a launch has one for each GPU event that it made."""
    order = np.argsort(gpu.correlation, kind="stable")
    keys = gpu.correlation[order]
    rows = np.flatnonzero((host.role == RangeRole.LAUNCH) & (host.correlation != ABSENT))
    first = np.searchsorted(keys, host.correlation[rows], side="left")
    after = np.searchsorted(keys, host.correlation[rows], side="right")
    counts = after - first
    call = np.repeat(rows, counts)
    behind = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    event = order[np.repeat(first, counts) + behind]
    sync = np.flatnonzero(host.role == RangeRole.SYNC)
    # A call that waits and has GPU work of its own is a launch that waits for this work.
    own = np.searchsorted(keys, host.correlation[sync], side="left")
    has = (host.correlation[sync] != ABSENT) & (np.append(keys, ABSENT)[own] == host.correlation[sync])
    call = np.concatenate((call, sync[has]))
    event = np.concatenate((event, order[own[has]]))
    sync = sync[~has]
    waits = _loader_waits(trace, host, steps)
    last = steps.windows[-1:, 1]
    columns = (
        np.concatenate((steps.windows[:, 0], host.start_ns[call], host.start_ns[sync], waits[:, 0], last)),
        np.concatenate((steps.windows[:, 0], host.end_ns[call], host.end_ns[sync], waits[:, 1], last)),
        np.repeat(
            [Item.STEP, Item.LAUNCH, Item.SYNC, Item.LOADER, Item.END],
            [len(steps), len(call), len(sync), len(waits), 1],
        ),
        np.concatenate(
            (
                np.full(len(steps), ABSENT),
                event,
                np.full(len(sync) + len(waits) + 1, ABSENT),
            )
        ),
    )
    place = np.lexsort((columns[3], columns[2], columns[0]))
    at, end, item, row = (column[place] for column in columns)
    within = (at >= steps.windows[0, 0]) & ((at < last[0]) | (item == Item.END))
    return _Items(at[within], end[within], item[within], row[within])


def _loader_waits(trace: Trace, host: TraceRanges, steps: StepWindows) -> Intervals:
    """Returns when the host waited for a loader of other processes."""
    rows = host.role == RangeRole.LOADER
    spans = np.stack((host.start_ns[rows], host.end_ns[rows]), axis=1)
    typical = median(steps.windows[:, 1] - steps.windows[:, 0])
    own = loader_work(trace)
    worked = lengths_in(own, spans)
    long = spans[:, 1] - spans[:, 0] > _REAL_WAIT * typical
    return union(spans[long & (worked == 0)]) if len(spans) else EMPTY


def _table(
    trace: Trace, host: TraceRanges, gpu: GpuEvents, items: _Items, steps: StepWindows, *, tags: Column
) -> tuple[LineTable, Intervals]:
    """The items as columns but for collectives, and the span of the work before each."""
    has = items.row != ABSENT
    row = np.maximum(items.row, 0)
    start, end = (np.where(has, column[row], 0) for column in (gpu.start_ns, gpu.end_ns))
    kinds = kinds_of_events(gpu, trace.names)
    took = items.end - items.at
    launch = items.item == Item.LAUNCH
    usual = int(median(took[launch])) if launch.any() else 0
    copy = has & among(kinds[row], _COPIES)
    late = np.maximum(1_000, _NEARLY * (end - start))
    waited = launch & copy & (items.end >= end - late) & (items.end > start)
    # A short copy may be over before the call that queued it returns: nobody waited for it.
    calls = host.start_ns[coded(trace.names, host.name, _QUEUES.fullmatch)]
    queues = coded(trace.names, gpu.name[row], waits_for_none) & np.isin(items.at, calls)
    waited &= ~(has & queues)
    waited |= among(items.item, (Item.SYNC, Item.LOADER))
    queued = launch & ~waited & (took > _BLOCKED * usual) & (pending(items.at, items.row, gpu) >= _FULL_QUEUE)
    resume = np.where(waited, items.end, np.where(queued, np.maximum(items.end - usual, items.at), items.at))
    # A call may have several events, and threads overlap: time goes on once.
    resume = np.maximum.accumulate(np.maximum(resume, items.at))
    begin = np.concatenate(([items.at[0]], resume[:-1]))
    windows = np.stack((np.minimum(begin, items.at), items.at), axis=1)
    first = (items.item == Item.STEP) & ~np.isin(items.at, steps.windows[:, 1])
    windows[first, 0] = windows[first, 1]
    needs, behind = _needs(trace, host, gpu, items, waited)
    edges, calls = _counts(trace, host, windows)
    number = steps.number[np.searchsorted(steps.windows[:, 0], items.at, side="right") - 1]
    table = LineTable(
        step=number,
        item=items.item,
        work_ns=windows[:, 1] - windows[:, 0],
        edges=edges,
        calls=calls,
        held_ns=np.where(waited, np.maximum(resume - items.at, 1), 0),
        behind_ns=behind,
        stream=np.where(has, gpu.stream[row], ABSENT),
        gpu_ns=np.where(has, end - start, 0),
        kind=np.where(has, kinds[row], int(ComputeKind.NONE)),
        needs=needs,
        group=np.full(len(row), ABSENT),
        order=np.full(len(row), ABSENT),
        bytes=np.where(has, gpu.bytes[row], ABSENT),
        tags=tags,
        **known_work(
            trace.operators, items.at, np.where(has, kinds[row], ABSENT), np.where(has, end - start, 0)
        ),
    )
    return table, windows


def _needs(
    trace: Trace, host: TraceRanges, gpu: GpuEvents, items: _Items, waited: NDArray[np.bool_]
) -> tuple[Column, Column]:
    """Returns how far before each item the launch lies that it waits for, and the time behind that end.

    The first launch after a call that makes a stream wait needs what other streams had before, where the
    trace agrees. A synchronisation needs the last work that had ended when it returned.
    """
    waits = np.sort(
        host.start_ns[(host.role == RangeRole.API) & coded(trace.names, host.name, _WAIT_EVENT.fullmatch)]
    )
    after_wait = np.searchsorted(waits, items.at, side="left")
    needs = np.zeros(len(items.at), dtype=np.int64)
    behind = np.zeros(len(items.at), dtype=np.int64)
    last: dict[int, tuple[int, int]] = {}
    seen = 0
    row = np.maximum(items.row, 0)
    of_gpu = (column[row] for column in (gpu.start_ns, gpu.end_ns, gpu.stream))
    columns = (items.item, items.at, items.end, after_wait, waited, *of_gpu)
    launch, sync = int(Item.LAUNCH), int(Item.SYNC)
    for place, (item, begin, end, told, held, start_ns, end_ns, stream) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        if item == launch:
            if told > seen:
                others = [
                    (ended, at)
                    for other, (at, ended) in last.items()
                    if other != stream and ended <= start_ns + _TOLERANCE_NS
                ]
                needs[place] = place - max(others)[1] if others else 0
                seen = told
            last[stream] = (place, end_ns)
            if held:
                behind[place] = max(end - end_ns, 0)
        elif item == sync:
            ended = [(when, at) for at, when in last.values() if when <= end + _TOLERANCE_NS]
            if ended:
                when, at = max(ended)
                needs[place], behind[place] = place - at, max(min(end - when, end - begin), 0)
    return needs, behind


def _counts(trace: Trace, host: TraceRanges, windows: Intervals) -> tuple[Column, Column]:
    """Starts and ends of operators, and those of driver calls, in each window.

    Four Python functions count as one operator: the profiler keeps less of each.
    """
    inner, made = trace.operators, []
    parts = ((inner, RangeRole.OPERATOR), (inner, RangeRole.FRAME), (host, *_CALLS))
    for table, *roles in parts:
        rows = among(table.role, roles)
        # Starts are in order, and ends nearly.
        edges = np.sort(np.concatenate((table.start_ns[rows], table.end_ns[rows])), kind="stable")
        made.append(np.searchsorted(edges, windows[:, 1]) - np.searchsorted(edges, windows[:, 0]))
    return np.asarray(made[0] + made[1] // _FRAMES, dtype=np.int64), made[2]


def _item_tags(spans: Mapping[Tag, Intervals], items: _Items) -> Column:
    """The tags of what was going on when each item began."""
    tags = np.zeros(len(items.at), dtype=np.int64)
    for tag, found in spans.items():
        place = np.searchsorted(found[:, 0], items.at, side="right") - 1
        inside = (place >= 0) & (items.at < found[np.maximum(place, 0), 1])
        tags[inside] |= int(tag)
    return tags


def _with_silence(
    found: Mapping[Tag, Intervals], trace: Trace, host: TraceRanges, windows: Intervals
) -> Mapping[Tag, Intervals]:
    """The spans of each tag, with the silent ones."""
    calls = among(host.role, _CALLS)
    known = [np.stack((host.start_ns[calls], host.end_ns[calls]), axis=1), *found.values()]
    known.append(trace.operators.intervals(RangeRole.OPERATOR))
    quiet = subtract(union(windows), union(np.concatenate(known)))
    quiet = quiet[quiet[:, 1] - quiet[:, 0] >= SILENT_NS]
    return {**found, Tag.SILENT: quiet} if len(quiet) else found


def _copies(table: LineTable, items: _Items) -> dict[Tag, Intervals]:
    """Returns when the host copied from pageable memory."""
    rows = (table.kind == ComputeKind.PAGEABLE_COPY) & (table.held_ns > 0)
    return {Tag.PAGEABLE: np.stack((items.at[rows], items.end[rows]), axis=1)} if rows.any() else {}


def _groups(trace: Trace, gpu: GpuEvents, table: LineTable, items: _Items) -> tuple[list[str], LineTable]:
    """The names of the groups, and the table with its collectives numbered within step and group."""
    known = trace.collectives
    if len(trace.gpu) == 0:
        return [], table
    main = np.flatnonzero(trace.gpu.device == gpu.device[0])
    code, size = np.full((2, len(trace.gpu)), ABSENT, dtype=np.int64)
    code[known.event] = known.group
    size[known.event] = np.maximum(known.bytes_in, known.bytes_out)
    rows = np.flatnonzero(items.row != ABSENT)
    chosen = rows[gpu.kind[items.row[rows]] == Kind.COMMUNICATION]
    event = main[items.row[chosen]]
    values, group = np.unique(code[event], return_inverse=True)
    names = ["" if value == ABSENT else trace.names[value] for value in values.tolist()]
    group = group.reshape(-1)
    filled = replace(
        table,
        group=_put(table.group, chosen, group),
        order=_put(table.order, chosen, order_within(table.step[chosen], group)),
        bytes=_put(table.bytes, chosen, size[event]),
    )
    return names, filled


def _put(column: Column, rows: Column, values: Column) -> Column:
    made = column.copy()
    made[rows] = values
    return made


def _pace(trace: Trace, host: TraceRanges, steps: StepWindows) -> Pace:
    inner, (first, last) = trace.operators, (steps.windows[0, 0], steps.windows[-1, 1])
    within = (inner.role == RangeRole.OPERATOR) & (inner.start_ns >= first) & (inner.start_ns < last)
    calls = among(host.role, _CALLS)
    launches = host.role == RangeRole.LAUNCH
    spacing = _spacing(*(column[within] for column in (inner.start_ns, inner.end_ns, inner.lane)))
    took = (host.end_ns - host.start_ns)[launches]
    return Pace(
        operators=int(within.sum()) / len(steps),
        calls=float(calls.sum()) / len(steps),
        spacing_ns=median(spacing) if len(spacing) >= _FEW else None,
        launch_ns=float(np.percentile(took, 10)) if len(took) >= _FEW else None,
        step_ns=float((steps.windows[:, 1] - steps.windows[:, 0]).mean()),
        stacks=bool((trace.operators.role == RangeRole.FRAME).any()),
    )


def _spacing(start: Column, end: Column, lane: Column) -> Column:
    """Time from each operator's start to that of the first one within it."""
    order = np.lexsort((-end, start, lane))
    start, end, lane = (column[order] for column in (start, end, lane))
    nested = (lane[1:] == lane[:-1]) & (start[1:] < end[:-1])
    return np.asarray((start[1:] - start[:-1])[nested], dtype=np.int64)
