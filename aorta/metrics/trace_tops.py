"""The longest GPU work of a trace: kernels by name, collectives by operation, group and size."""

from __future__ import annotations

import numpy as np

from aorta.artefacts.events import ABSENT, Column, Kind, Trace, take
from aorta.artefacts.traced import CollectiveTotal, KernelTotal
from aorta.intervals import lengths_in, union
from aorta.metrics.median import median
from aorta.metrics.trace_breakdown import main_device

_ROUNDS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}
"""Number of times that data crosses each link of a ring: bus over algorithm bandwidth is this × (n − 1) / n
for n ranks."""
_ONCE = frozenset(("broadcast", "reduce", "send_recv"))
"""Bus and algorithm bandwidth are the same. (Both as nccl-tests' PERFORMANCE.md defines them.)"""


def top_kernels(trace: Trace, limit: int | None = None) -> list[KernelTotal]:
    """Kernels, copies and memsets of the trace's main device by total time, largest first."""
    gpu = main_device(trace.gpu)
    if len(gpu) == 0:
        return []
    duration = gpu.end_ns - gpu.start_ns
    everything = int(duration.sum())
    totals = []
    for rows in _groups(gpu.kind, gpu.name):
        own = duration[rows]
        code = int(gpu.name[rows[0]])
        totals.append(
            KernelTotal(
                name=trace.names[code] if code != ABSENT else "",
                kind=Kind(int(gpu.kind[rows[0]])).name.lower(),
                count=len(rows),
                total_ns=int(own.sum()),
                median_ns=median(own),
                min_ns=int(own.min()),
                max_ns=int(own.max()),
                share=int(own.sum()) / everything if everything else 0.0,
            )
        )
    return sorted(totals, key=lambda total: (-total.total_ns, total.name))[:limit]


def top_collectives(trace: Trace, limit: int | None = None) -> list[CollectiveTotal]:
    """Returns collectives by total time, largest first.

    Sends and receives of one coalesced kernel share its time in equal parts, and have no rate of their own.
    """
    known, gpu = trace.collectives, trace.gpu
    if len(known) == 0:
        return []
    events = take(gpu, known.event)
    duration = events.end_ns - events.start_ns
    spans = np.stack((events.start_ns, events.end_ns), axis=1)
    _, place, calls = np.unique(known.event, return_inverse=True, return_counts=True)
    calls = calls[place]
    hidden = lengths_in(union(main_device(gpu).intervals(Kind.COMPUTE)), spans)
    size = np.maximum(known.bytes_in, known.bytes_out)
    totals = []
    for rows in _groups(known.op, known.group, size, known.group_size):
        first = int(rows[0])
        op = _text(trace, int(known.op[first]))
        middle = median(duration[rows])
        totals.append(
            CollectiveTotal(
                op=op,
                group=_text(trace, int(known.group[first])),
                bytes=None if size[first] == ABSENT else int(size[first]),
                count=len(rows),
                total_ns=round(float((duration / calls)[rows].sum())),
                median_ns=middle,
                exposed_ns=round(float(((duration - hidden) / calls)[rows].sum())),
                bus_gb_per_s=None
                if (calls[rows] > 1).any()
                else bus_bandwidth(op, int(size[first]), int(known.group_size[first]), middle),
            )
        )
    return sorted(totals, key=lambda total: (-total.total_ns, total.op or ""))[:limit]


def bus_bandwidth(op: str | None, size: int, ranks: int, ns: float) -> float | None:
    """GB/s over the bottleneck link: size / time × factor of the operation; None where one is not known."""
    if size == ABSENT or ranks < 2 or ns <= 0:
        return None
    if op in _ONCE:
        return size / ns
    return size / ns * _ROUNDS[op] * (ranks - 1) / ranks if op in _ROUNDS else None


def _text(trace: Trace, code: int) -> str | None:
    return None if code == ABSENT else trace.names[code]


def _groups(*keys: Column) -> list[Column]:
    """The rows of each combination of keys."""
    order = np.lexsort(keys)
    changes = np.zeros(len(order), dtype=np.bool_)
    for key in keys:
        changes[1:] |= key[order][1:] != key[order][:-1]
    return np.split(order, np.flatnonzero(changes))
