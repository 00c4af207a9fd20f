"""Why a traced GPU was idle, how far ahead the host was, and what communication beside compute costs."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from aorta.artefacts.events import ABSENT, Column, Kind, RangeRole, Trace, among
from aorta.artefacts.traced import Contention, QueueDepth
from aorta.intervals import Intervals, lengths_in, subtract, union
from aorta.metrics.median import median
from aorta.metrics.trace_breakdown import main_device, timeline_of
from aorta.metrics.trace_steps import StepWindows, steps_of

SHORT_GAP_NS = 200_000
"""A launch takes 5 to 50 µs of the host with what Python does around it."""
_BLOCKED = 3.0
"""A driver call that takes this many times as long as the quickest tenth of the launches waits for the GPU:
for room in its queue.
"""
_MIN_ALONE = 3
"""Undisturbed runs of a kernel that make its usual time known."""
_BESIDE = 0.5
"""A kernel runs beside communication when that covers at least this share of it; alone when none does."""


class IdleCauses(Struct, frozen=True, eq=False):
    """GPU idle time of each step by what the host was doing; the four columns sum to the idle time."""

    loader_ns: Column
    sync_ns: Column
    """Waiting for the GPU, which had nothing to do."""
    launch_ns: Column
    """In driver calls: too many small kernels, or slow launches."""
    elsewhere_ns: Column
    """Python, or code that the trace does not show."""
    idle_ns: Column


def idle_causes(trace: Trace, steps: StepWindows | None = None) -> IdleCauses | None:
    """Idle time by cause; of several at once the first of loader, sync, launch. None without GPU events."""
    steps = steps_of(trace) if steps is None else steps
    if len(trace.gpu) == 0 or len(steps) == 0:
        return None
    windows = steps.windows
    span = np.array([[windows[:, 0].min(), windows[:, 1].max()]], dtype=np.int64)
    left: Intervals = subtract(span, timeline_of(trace).covered)
    idle = lengths_in(left, windows)
    shares = []
    for roles in ((RangeRole.LOADER, RangeRole.DATA), (RangeRole.SYNC,), (RangeRole.LAUNCH, RangeRole.API)):
        rest = subtract(left, union(trace.host.intervals(*roles)))
        shares.append(lengths_in(left, windows) - lengths_in(rest, windows))
        left = rest
    loader, sync, launch = shares
    elsewhere = lengths_in(left, windows)
    assert (loader + sync + launch + elsewhere == idle).all()
    return IdleCauses(loader, sync, launch, elsewhere, idle)


def host_work(trace: Trace, steps: StepWindows) -> Column | None:
    """Time that the host took for each step and waited neither for its GPU nor for the loader; None where the
    trace holds no launches.

    A step takes at least that, whatever the GPU waits for: behind a wait for another rank it does not show.
    """
    host = trace.host
    launches = host.role == RangeRole.LAUNCH
    if not launches.any() or len(steps) == 0:
        return None
    usual = int(_BLOCKED * np.percentile((host.end_ns - host.start_ns)[launches], 10))
    calls = host.intervals(RangeRole.LAUNCH, RangeRole.API)
    blocked = calls[calls[:, 1] - calls[:, 0] > usual] + np.array([usual, 0])
    waiting = np.concatenate((blocked, host.intervals(RangeRole.SYNC, RangeRole.LOADER, RangeRole.DATA)))
    windows = _on_the_host(trace, steps.windows)
    return np.asarray(windows[:, 1] - windows[:, 0] - lengths_in(waiting, windows), dtype=np.int64)


def _on_the_host(trace: Trace, windows: Intervals) -> Intervals:
    """Returns when the host launched what each GPU window holds.

    That is from its first kernel's launch to that of the next window's. A host that runs ahead works at
    later steps meanwhile, and while nothing holds it up at more than one. Windows that no such kernels
    bound stay as they are.
    """
    gpu, host = main_device(trace.gpu), trace.host
    kernels = np.flatnonzero(among(gpu.kind, (Kind.COMPUTE, Kind.GRAPH)))
    calls = np.flatnonzero(host.role == RangeRole.LAUNCH)
    joined, at_call, at_kernel = np.intersect1d(
        host.correlation[calls], gpu.correlation[kernels], return_indices=True
    )
    known = joined != ABSENT
    started = gpu.start_ns[kernels[at_kernel[known]]]
    order = np.argsort(started, kind="stable")
    started, launched = started[order], host.start_ns[calls[at_call[known]]][order]
    if len(started) == 0:
        return windows
    place = np.minimum(np.searchsorted(started, windows), len(started) - 1)
    own = launched[place]
    bounded = (started[place] == windows).all(axis=1) & (own[:, 1] > own[:, 0])
    return np.where(bounded[:, None], own, windows)


class IdleGaps(Struct, frozen=True, eq=False):
    """GPU idle time of each step outside of the loader, by the length of the gap that it lies in."""

    short_ns: Column
    long_ns: Column


def idle_gaps(trace: Trace, steps: StepWindows) -> IdleGaps:
    """Gaps up to `SHORT_GAP_NS`, the time of launching a few kernels, and longer ones."""
    windows = steps.windows
    line = timeline_of(trace)
    if len(windows) == 0:
        nothing = np.empty(0, dtype=np.int64)
        return IdleGaps(nothing, nothing)
    span = np.array([[windows[:, 0].min(), windows[:, 1].max()]], dtype=np.int64)
    gaps = subtract(span, union(np.concatenate((line.covered, line.loader))))
    short = gaps[:, 1] - gaps[:, 0] <= SHORT_GAP_NS
    return IdleGaps(lengths_in(gaps[short], windows), lengths_in(gaps[~short], windows))


def launches_in(trace: Trace, steps: StepWindows) -> Column:
    """Driver calls in each step that put work on the GPU."""
    times = np.sort(trace.host.start_ns[trace.host.role == RangeRole.LAUNCH], kind="stable")
    first, last = (np.searchsorted(times, steps.windows[:, side], side="left") for side in (0, 1))
    return np.asarray(last - first, dtype=np.int64)


def queue_depth(trace: Trace) -> QueueDepth | None:
    """The queue at each launch that the trace joins to a GPU event; None where it joins none."""
    gpu, host = main_device(trace.gpu), trace.host
    calls = host.role == RangeRole.LAUNCH
    joined, at_call, at_event = np.intersect1d(host.correlation[calls], gpu.correlation, return_indices=True)
    known = joined != ABSENT
    if not known.any():
        return None
    launched = np.sort(host.start_ns[calls][at_call[known]], kind="stable")
    started = np.sort(gpu.start_ns[at_event[known]], kind="stable")
    depth = np.arange(len(launched)) - np.searchsorted(started, launched, side="right")
    depth = np.maximum(depth, 0)
    return QueueDepth(
        launches=len(depth),
        median=median(depth),
        p10=float(np.percentile(depth, 10)),
        empty_share=float((depth == 0).mean()),
    )


def contention(trace: Trace, steps: StepWindows | None = None) -> Contention | None:
    """The cost of communication beside compute; None where no kernel of a known usual time ran beside any."""
    steps = steps_of(trace) if steps is None else steps
    gpu = main_device(trace.gpu)
    rows = np.flatnonzero(gpu.kind == Kind.COMPUTE)
    if len(rows) == 0 or len(steps) == 0:
        return None
    spans = np.stack((gpu.start_ns[rows], gpu.end_ns[rows]), axis=1)
    duration = spans[:, 1] - spans[:, 0]
    shared = lengths_in(union(gpu.intervals(Kind.COMMUNICATION)), spans)
    in_step = lengths_in(union(steps.windows), spans) == duration
    alone, beside = shared == 0, (shared >= _BESIDE * duration) & (duration > 0) & in_step
    # One number for name and shape: to compare rows of two columns takes several times as long.
    shapes, shape = np.unique(gpu.shape[rows], return_inverse=True)
    _, key = np.unique(gpu.name[rows] * len(shapes) + shape, return_inverse=True)
    usual = _medians(key[alone], duration[alone], int(key.max()) + 1)[key]
    known = beside & ~np.isnan(usual)
    if not known.any():
        return None
    extra = float((duration[known] - usual[known]).sum())
    return Contention(
        ns_per_step=extra / len(steps),
        kernels=int(known.sum()),
        unknown=int((beside & np.isnan(usual)).sum()),
        slowdown=float(duration[known].sum() / usual[known].sum()),
    )


def _medians(key: Column, value: Column, keys: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The median of each key's values; NaN for a key with fewer than `_MIN_ALONE`."""
    order = np.lexsort((value, key))
    counts = np.bincount(key, minlength=keys)
    first = np.cumsum(counts) - counts
    medians = np.full(keys, np.nan)
    enough = np.flatnonzero(counts >= _MIN_ALONE)
    middle = first[enough] + (counts[enough] - 1) // 2
    upper = first[enough] + counts[enough] // 2
    ranked = value[order]
    medians[enough] = (ranked[middle] + ranked[upper]) / 2
    return medians
