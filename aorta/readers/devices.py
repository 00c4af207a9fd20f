"""Gives each GPU of a process that drives several a trace of its own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from aorta.artefacts.analysis import Problem
from aorta.artefacts.events import ABSENT, GpuEvents, Kind, Trace, UnseenIntervals, among, take
from aorta.intervals import union
from aorta.units import plural

OTHERS = "other GPUs of the same process are busy, and it is not recorded which GPU waits for which"
_SHARE = 0.05
"""Share of the kernels of the busiest GPU from which another one does work of its own."""


def by_device(trace: Trace, traces: int) -> list[Trace]:
    """Returns the trace, or a trace for each GPU where one process computed on several.

    A rank that drives several GPUs keeps the busiest of them; a problem counts the events of the others.

    Args:
        trace: as read.
        traces: the number of traces that are read together.
    """
    gpu = trace.gpu
    kernels = among(gpu.kind, (Kind.COMPUTE, Kind.GRAPH, Kind.COMMUNICATION))
    devices, counts = np.unique(gpu.device[kernels], return_counts=True)
    working = devices[counts >= _SHARE * counts.max(initial=0)]
    if len(working) < 2:
        return [trace]
    if trace.rank is None and traces == 1:
        note = f"one process used {len(working)} GPUs; each GPU counts as a rank, in the order of devices"
        return [
            replace(
                _of(trace, device), rank=number, rank_basis="the order of devices", notes=(*trace.notes, note)
            )
            for number, device in enumerate(working.tolist())
        ]
    main = int(devices[np.argmax(counts)])
    lost = int((gpu.device != main).sum())
    names = ", ".join(str(device) for device in working.tolist() if device != main)
    reason = f"{plural(lost, 'GPU event')} of device {names} not counted: the rank uses device {main}"
    return [replace(trace, problems=(*trace.problems, Problem(file=trace.source, reason=reason)))]


def with_ranks_by_device(traces: Sequence[Trace]) -> list[Trace]:
    """Returns the traces, where the processes of one file that say no rank are numbered by their GPUs.

    One process on each of several GPUs is how launchers number ranks on a node. Anything else stays untold.
    """
    nameless: defaultdict[str, list[int]] = defaultdict(list)
    for place, trace in enumerate(traces):
        if trace.rank is None:
            nameless[trace.source].append(place)
    found = list(traces)
    for places in nameless.values():
        used = [np.unique(traces[place].gpu.device[traces[place].gpu.device != ABSENT]) for place in places]
        own = [int(devices[0]) for devices in used if len(devices) == 1]
        if len(places) > 1 and len(own) == len(places) == len(set(own)):
            order = sorted(own)
            for place, device in zip(places, own, strict=True):
                found[place] = replace(
                    traces[place], rank=order.index(device), rank_basis="the order of devices"
                )
    return found


def _of(trace: Trace, device: int) -> Trace:
    """The trace with the events of one device alone."""
    own = trace.gpu.device == device
    others = UnseenIntervals(
        OTHERS, "run one process per GPU, as torchrun does", union(take(trace.gpu, ~own).intervals(*Kind))
    )
    row = np.cumsum(own) - 1
    known = take(trace.collectives, own[trace.collectives.event])
    gpu: GpuEvents = take(trace.gpu, own)
    collectives = replace(known, event=row[known.event].astype(np.int64))
    return replace(trace, gpu=gpu, collectives=collectives, unseen=(*trace.unseen, others))
