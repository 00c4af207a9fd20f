"""Checks events against each other: what cannot have happened is left out or cut, counted and named."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from aorta.artefacts.analysis import Problem
from aorta.artefacts.events import (
    ABSENT,
    Column,
    GpuEvents,
    Trace,
    TracedCollectives,
    UnseenIntervals,
    launched_at,
    take,
)
from aorta.intervals import as_intervals
from aorta.units import NS_PER_MS, NS_PER_S, plural

_CLOCK_ERROR_NS = NS_PER_MS
"""The clocks of host and GPU differ by less than this."""
_EXCEPTIONS = 0.01
"""Share of events below which a contradiction is a fault of the events; above it is one of the clocks."""
_FEWEST = 3
_MARGIN_NS = 60 * NS_PER_S
_BEFORE_HOST_NS = NS_PER_S
_LONGEST_SAMPLE = 100_000
CLOCKS = "the clocks of the host and the GPU contradict each other"
_CLOCKS_REMEDY = "record the capture again; another tool may have changed the GPU's clock"

Mask = NDArray[np.bool_]


def without_impossible(trace: Trace) -> Trace:
    """Returns the trace without events that cannot have happened, and with a problem that counts them.

    An event cannot start before its own launch, lie far outside the capture, or run into the next event of
    its stream. Where so many do that the clocks must be wrong, the events stay and idle time is unseen.
    """
    if len(trace.gpu) == 0:
        return trace
    found: dict[str, int] = {}
    trace = _with_times(trace, found)
    if len(trace.gpu) == 0:
        return _said(trace, found)
    trace = _within_capture(trace, found)
    late = launched_at(trace)
    early = (late != ABSENT) & (trace.gpu.start_ns < late - _CLOCK_ERROR_NS)
    if early.any():
        if _exceptions(early, int((late != ABSENT).sum())):
            found["start before their own launch"] = int(early.sum())
            trace = _drop_gpu(trace, early)
        else:
            trace = _contradicting_clocks(trace, int(early.sum()))
    trace, cut = _cut_overlaps(trace)
    return _said(trace, found, cut)


def _said(trace: Trace, found: Mapping[str, int], cut: int = 0) -> Trace:
    problems = []
    if found:
        reasons = ", ".join(f"{count} {reason}" for reason, count in found.items())
        problems.append(f"{plural(sum(found.values()), 'impossible event')} left out: {reasons}")
    if cut:
        problems.append(f"{plural(cut, 'event')} cut, because they overlap the next event of their stream")
    said = tuple(Problem(file=trace.source, reason=reason) for reason in problems)
    return replace(trace, problems=(*trace.problems, *said))


def _with_times(trace: Trace, found: dict[str, int]) -> Trace:
    """Drops GPU events that end before they start, or whose times were never set and are 0."""
    gpu = trace.gpu
    backwards = gpu.end_ns < gpu.start_ns
    empty = (gpu.start_ns == 0) & ~backwards
    # A capture that begins at its own zero has one event there, which lasts.
    if not ((gpu.end_ns == 0) & empty).any() and int(np.median(gpu.start_ns)) <= NS_PER_S:
        empty[:] = False
    if empty.all():
        empty[:] = False
    for mask, reason in ((backwards, "end before they start"), (empty, "have no times")):
        if mask.any():
            found[reason] = int(mask.sum())
    return _drop_gpu(trace, backwards | empty) if found else trace


def _exceptions(mask: Mask, of: int) -> bool:
    return int(mask.sum()) <= max(_FEWEST, _EXCEPTIONS * of)


def _within_capture(trace: Trace, found: dict[str, int]) -> Trace:
    """Drops GPU events and host ranges that start or end far from all others."""
    gpu, host = trace.gpu, trace.host
    starts = np.concatenate((_sample(gpu.start_ns), _sample(host.start_ns)))
    low, high = (int(value) for value in np.percentile(starts, (1, 99), method="nearest"))
    margin = 10 * (high - low) + _MARGIN_NS
    first, last = low - margin, high + margin
    outside = (gpu.start_ns < first) | (gpu.start_ns > last)
    if len(host):
        known = host.start_ns[(host.start_ns >= first) & (host.start_ns <= last)]
        outside |= gpu.start_ns < int(known.min(initial=low)) - _BEFORE_HOST_NS
    if outside.any() and _exceptions(outside, len(gpu)):
        found["are outside the capture"] = int(outside.sum())
        trace = _drop_gpu(trace, outside)
    trace = _end_in_capture(trace, last, found)
    strange = (host.start_ns < first) | (host.end_ns > last)
    if strange.any() and _exceptions(strange, len(host)):
        found["on the host are outside the capture"] = int(strange.sum())
        trace = replace(trace, host=take(host, ~strange))
    return trace


def _end_in_capture(trace: Trace, last: int, found: dict[str, int]) -> Trace:
    """Drops the last event of a stream if it ends far behind the capture; `_cut_overlaps` cuts the others."""
    gpu = trace.gpu
    long = gpu.end_ns > last
    if not long.any():
        return trace
    order, following = _next_in_stream(gpu)
    final = np.zeros(len(gpu), dtype=np.bool_)
    final[order] = following == ABSENT
    if not (long & final).any():
        return trace
    found["end outside the capture"] = int((long & final).sum())
    return _drop_gpu(trace, long & final)


def _sample(times: Column) -> Column:
    return times[:: max(1, len(times) // _LONGEST_SAMPLE)]


def _drop_gpu(trace: Trace, dropped: Mask) -> Trace:
    """The trace without these GPU events; rows of collectives are numbered again."""
    kept = ~dropped
    row = np.cumsum(kept) - 1
    known: TracedCollectives = take(trace.collectives, kept[trace.collectives.event])
    return replace(
        trace, gpu=take(trace.gpu, kept), collectives=replace(known, event=row[known.event].astype(np.int64))
    )


def _contradicting_clocks(trace: Trace, count: int) -> Trace:
    gpu = trace.gpu
    span = as_intervals([(int(gpu.start_ns.min()), int(gpu.end_ns.max()))])
    reason = f"{plural(count, 'event')} start before their own launch: {CLOCKS}"
    return replace(
        trace,
        unseen=(*trace.unseen, UnseenIntervals(CLOCKS, _CLOCKS_REMEDY, span)),
        problems=(*trace.problems, Problem(file=trace.source, reason=reason)),
    )


def _next_in_stream(gpu: GpuEvents) -> tuple[NDArray[np.intp], Column]:
    """Events in order of device, stream and start, and when the next of the stream starts; ABSENT: none."""
    order = np.lexsort((gpu.start_ns, gpu.stream, gpu.device))
    device, stream, start = gpu.device[order], gpu.stream[order], gpu.start_ns[order]
    following = np.full(len(order), ABSENT, dtype=np.int64)
    same = (device[1:] == device[:-1]) & (stream[1:] == stream[:-1])
    following[:-1] = np.where(same, start[1:], ABSENT)
    return order, following


def _cut_overlaps(trace: Trace) -> tuple[Trace, int]:
    """Ends events where the next of their stream starts, if next to no event of the capture overlaps so.

    A stream runs one after the other. Graphs and some platforms write several streams as one: there many
    events overlap, and all stay.
    """
    gpu = trace.gpu
    order, following = _next_in_stream(gpu)
    over = (following != ABSENT) & (gpu.end_ns[order] > following)
    far = over & (gpu.end_ns[order] > following + _CLOCK_ERROR_NS)
    if not far.any() or not _exceptions(over, len(gpu)):
        return trace, 0
    end = gpu.end_ns.copy()
    end[order[far]] = following[far]
    return replace(trace, gpu=replace(gpu, end_ns=end)), int(far.sum())
