"""Finds launches whose work on the GPU was not recorded: idle time behind them is unseen, not idle."""

from __future__ import annotations

import re

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from aorta.artefacts.analysis import Problem
from aorta.artefacts.events import (
    ABSENT,
    Kind,
    RangeRole,
    Trace,
    TraceRanges,
    UnseenIntervals,
    among,
    coded,
    take,
)
from aorta.intervals import Intervals, as_intervals, union
from aorta.units import plural

Mask = NDArray[np.bool_]

LOST = "launches without GPU events"
GRAPHS = "CUDA graphs that were recorded as a whole"
UNJOINED = "no launch can be matched with a GPU event"
_SHARE = 0.01
"""Share of the launches that may lack an event: some launch nothing, some lie at the capture's edges."""
_TAIL = 0.2
"""Share of the launches that may lie behind the last recorded kernel: the capture's end cuts them off."""
_NO_KERNEL = re.compile(r"mem(?:cpy|set|ory)", re.IGNORECASE)
_GRAPH = re.compile(r"graph.*launch", re.IGNORECASE)
_CAPTURE = re.compile(r"\w*Stream(Begin|End)Capture\w*", re.IGNORECASE)
_REMEDY = {
    "nsys": "record again with nsys --cuda-graph-trace=node, and check the report for dropped events",
    "kineto": "record fewer steps, or run once without CUDA graphs (mode=max-autotune-no-cudagraphs)",
    "rocprofv3": "record again with --kernel-trace, or run once without graphs",
}


def with_unseen(trace: Trace) -> Trace:
    """Returns the trace with the time spans in which the GPU may have run work that was not recorded."""
    found = [*trace.unseen]
    whole = trace.gpu.intervals(Kind.GRAPH)
    if len(whole):
        found.append(UnseenIntervals(GRAPHS, _REMEDY["nsys"], union(whole)))
    calls, joined = _launches(trace)
    lost = _lost(trace, calls, joined)
    notes = trace.notes
    if lost is not None:
        spans, count = lost
        remedy = _REMEDY.get(trace.format, _REMEDY["kineto"])
        found.append(UnseenIntervals(LOST, remedy, union(spans)))
        notes = (*notes, f"{plural(count, 'launch', 'launches')} of kernels or graphs have no GPU event")
    problems = (*trace.problems, *_ends_early(trace, calls, joined))
    return replace(trace, unseen=tuple(found), notes=notes, problems=problems)


def _ends_early(trace: Trace, calls: TraceRanges, joined: Mask) -> tuple[Problem, ...]:
    """A problem if many launches lie behind the last recorded kernel: steps there are not judged."""
    if not joined.any():
        return ()
    behind = int((calls.start_ns > int(calls.start_ns[joined].max())).sum())
    if behind <= _TAIL * len(calls):
        return ()
    reason = f"its GPU events end early: {behind} of {len(calls)} launches come after the last GPU event"
    return (Problem(file=trace.source, reason=reason),)


def _launches(trace: Trace) -> tuple[TraceRanges, Mask]:
    """The launches of kernels and graphs, and the ones that are joined to a GPU event."""
    host = trace.host
    calls = take(host, (host.role == RangeRole.LAUNCH) & (host.correlation != ABSENT))
    calls = take(calls, _of_kernels(calls, trace.names) & ~_captured(calls, host, trace.names))
    return calls, np.isin(calls.correlation, trace.gpu.correlation)


def _lost(trace: Trace, calls: TraceRanges, joined: Mask) -> tuple[Intervals, int] | None:
    """Returns when lost work may have run, and the number of its launches.

    None where no more are lost than usual.
    """
    gpu, host = trace.gpu, trace.host
    if not joined.any():
        return None
    # What was launched behind the last recorded kernel may have run behind the capture's end.
    before_end = calls.start_ns <= int(calls.start_ns[joined].max())
    lost = ~joined & before_end
    graphs = _matching(_GRAPH, calls, trace.names)
    unjoined = ~np.isin(gpu.correlation, host.correlation) & ~np.isin(gpu.kind, (Kind.COPY, Kind.MEMSET))
    # An event of a smaller correlation was launched before the capture.
    earlier = (gpu.correlation > 0) & (gpu.correlation < int(calls.correlation.min()))
    count = int(lost.sum()) - int((unjoined & ~earlier).sum())
    if count <= 0 or (count <= _SHARE * len(calls) and not (lost & graphs).any()):
        return None
    return _spans(trace, calls, lost), count


def _of_kernels(calls: TraceRanges, names: tuple[str, ...]) -> Mask:
    return ~_matching(_NO_KERNEL, calls, names)


def _matching(pattern: re.Pattern[str], calls: TraceRanges, names: tuple[str, ...]) -> Mask:
    return coded(names, calls.name, pattern.search)


def _captured(calls: TraceRanges, host: TraceRanges, names: tuple[str, ...]) -> Mask:
    """Returns which launches were made while a graph was captured: they run nothing."""
    marks = take(host, _matching(_CAPTURE, host, names))
    begins = marks.start_ns[_matching(re.compile("Begin"), marks, names)]
    ends = marks.start_ns[_matching(re.compile("End"), marks, names)]
    opened = np.searchsorted(np.sort(begins), calls.start_ns, side="right")
    closed = np.searchsorted(np.sort(ends), calls.start_ns, side="right")
    return opened > closed


def _spans(trace: Trace, calls: TraceRanges, lost: Mask) -> Intervals:
    """For each lost launch the time between the kernels launched before and behind it.

    It ends sooner where the host waited for the GPU in between.
    """
    gpu = trace.gpu
    kernels = np.flatnonzero(among(gpu.kind, (Kind.COMPUTE, Kind.GRAPH)))
    _, at_call, at_kernel = np.intersect1d(calls.correlation, gpu.correlation[kernels], return_indices=True)
    launched = calls.start_ns[at_call]
    order = np.argsort(launched, kind="stable")
    launched = launched[order]
    started, ended = (column[kernels][at_kernel][order] for column in (gpu.start_ns, gpu.end_ns))
    when = calls.start_ns[lost]
    last = int(gpu.end_ns.max())
    place = np.searchsorted(launched, when)
    # Streams run beside each other: the latest end of those before, the earliest start of those behind.
    reach = np.concatenate((when[:1] * 0 - (1 << 62), np.maximum.accumulate(ended)))
    first = np.append(np.minimum.accumulate(started[::-1])[::-1], last)
    begin, end = np.maximum(when, reach[place]), first[place]
    syncs = trace.host.intervals(RangeRole.SYNC)
    waits = syncs[np.argsort(syncs[:, 0], kind="stable")]
    following = np.searchsorted(waits[:, 0], when)
    returned = (
        np.append(np.minimum.accumulate(waits[::-1, 1])[::-1], last) if len(waits) else np.array([last])
    )
    end = np.minimum(end, np.maximum(returned[following], begin))
    good = end > begin
    return np.stack((begin[good], end[good]), axis=1) if good.any() else as_intervals([])
