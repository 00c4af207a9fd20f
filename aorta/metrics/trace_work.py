"""A traced rank's steps as its GPU did them, with its collectives: what waits are charged by.

The host runs ahead of the GPU, by up to a whole step and by another amount on each rank. So GPU work belongs
to the step in which it was launched, whenever it ran; the n-th collective that step s launches is then the
same one on every rank. On the GPU, step s begins with its first compute kernel and ends where the next step
begins. Where a trace joins no launch to a GPU event, both are taken by the time at which work ran.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aorta.artefacts.events import ABSENT, Collectives, Column, Kind, Role, Trace, take
from aorta.intervals import subtract, union
from aorta.metrics.collectives import Call, Key, Matched, Timeline
from aorta.metrics.collectives import Collectives as CollectiveSet
from aorta.metrics.trace_breakdown import main_device, timeline_of
from aorta.metrics.trace_steps import Steps, steps_of

_NO_GROUP = ""
_OF_ALL = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
_CLOCK_ERROR_NS = 100_000
_LATEST = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, eq=False)
class GpuWork:
    """One rank's work by step, ns on its trace's clock."""

    trace: Trace
    steps: Steps
    """Windows on the GPU, whole ones only."""
    timeline: Timeline
    edge_calls: int
    """Communication kernels of no step in the capture: launched before it, or after its last one."""


@dataclass(frozen=True, slots=True, eq=False)
class _Attributed:
    """A trace, and when each of its GPU events was launched; ABSENT: not in the trace."""

    trace: Trace
    host: Steps
    launched: Column
    joined: bool


def gpu_work(traces: Sequence[Trace]) -> dict[int, GpuWork]:
    """The work of each rank that has GPU events and steps. Ranks must be known, and each occur once.

    Collectives are numbered by their sequence numbers in the groups in which every rank's trace has them,
    otherwise by their order within step and group.
    """
    found = {}
    for trace in traces:
        host = steps_of(trace)
        if trace.rank is not None and len(trace.gpu) and len(host):
            found[trace.rank] = _attribute(trace, host)
    numbered = _numbered_groups([item.trace for item in found.values()])
    return {rank: _work(item, numbered) for rank, item in found.items()}


def common_steps(work: Mapping[int, GpuWork]) -> tuple[int, ...]:
    """The numbers of the steps that are whole on every rank, ascending."""
    sets = [set(item.steps.number.tolist()) for item in work.values()]
    return tuple(sorted(set.intersection(*sets) - {ABSENT})) if sets else ()


def only(steps: Steps, numbers: Sequence[int]) -> Steps:
    """The steps of these numbers."""
    kept = np.isin(steps.number, numbers)
    return Steps(steps.number[kept], steps.windows[kept], steps.basis)


def impossible_share(collectives: CollectiveSet) -> float:
    """Share of the matched collectives that ended on one member before another one had come to it.

    No member leaves an exchange of all with all before the last one is there, but for the clocks' error. A
    large share says that calls of different groups were taken for one.
    """
    of_all = [item for item in collectives.matched if _op(collectives, item) in _OF_ALL]
    bad = sum(int(item.end.min()) + _CLOCK_ERROR_NS < int(item.entry.max()) for item in of_all)
    return bad / len(of_all) if of_all else 0.0


def _op(collectives: CollectiveSet, item: Matched) -> str:
    return collectives.timelines[item.ranks[0]].calls[item.key].op


def _attribute(trace: Trace, host: Steps) -> _Attributed:
    calls = (trace.host.role == Role.LAUNCH) & (trace.host.correlation != ABSENT)
    correlation, first = np.unique(trace.host.correlation[calls], return_index=True)
    times = trace.host.start_ns[calls][first]
    launched = np.full(len(trace.gpu), ABSENT, dtype=np.int64)
    if len(correlation):
        place = np.minimum(np.searchsorted(correlation, trace.gpu.correlation), len(correlation) - 1)
        # Several kernels of one launch, such as a graph's, share its time.
        known = correlation[place] == trace.gpu.correlation
        launched[known] = times[place[known]]
    joined = bool((launched[trace.gpu.kind == Kind.COMPUTE] != ABSENT).any())
    numbers = host.number if (host.number != ABSENT).all() else np.arange(len(host))
    return _Attributed(
        trace, Steps(numbers, host.windows, host.basis), launched if joined else trace.gpu.start_ns, joined
    )


def _numbered_groups(traces: Sequence[Trace]) -> frozenset[str]:
    """The groups whose every collective with a group has a sequence number of its own, on every rank."""
    good: dict[str, bool] = {}
    for trace in traces:
        table = trace.collectives
        for code in np.unique(table.group[table.group != ABSENT]).tolist():
            sequence = table.sequence[table.group == code]
            sound = bool((sequence != ABSENT).all()) and len(np.unique(sequence)) == len(sequence)
            name = trace.names[code]
            good[name] = good.get(name, True) and sound
    return frozenset(name for name, sound in good.items() if sound)


def _work(item: _Attributed, numbered: frozenset[str]) -> GpuWork:
    trace, line = item.trace, timeline_of(item.trace)
    windows = _gpu_windows(item) if item.joined else item.host
    calls, edge = _calls(item, numbered)
    timeline = Timeline(
        starts=dict(zip(windows.number.tolist(), windows.windows[:, 0].tolist(), strict=True)),
        compute=line.compute,
        data=subtract(line.loader, line.busy),
        communication=union(line.communication),
        calls={key: call for key, call in calls.items() if key[0] in set(windows.number.tolist())},
    )
    return GpuWork(trace, windows, timeline, edge)


def _gpu_windows(item: _Attributed) -> Steps:
    """Each step from the start of its first compute kernel to that of the next step.

    The last one counts where the capture shows that another step followed.
    """
    gpu, host = item.trace.gpu, item.host
    compute = np.flatnonzero((gpu.kind == Kind.COMPUTE) & (item.launched != ABSENT))
    order = compute[np.argsort(item.launched[compute], kind="stable")]
    launched = item.launched[order]
    # The first to run of all that were launched at a time or later.
    earliest = np.minimum.accumulate(gpu.start_ns[order][::-1])[::-1]
    earliest = np.append(earliest, _LATEST)
    start, end = (earliest[np.searchsorted(launched, host.windows[:, side], side="left")] for side in (0, 1))
    marks = item.trace.host.start_ns[item.trace.host.role == Role.STEP]
    followed = np.isin(host.windows[:, 1], np.concatenate((host.windows[1:, 0], marks)))
    kept = followed & (end < _LATEST) & (start < end)
    basis = f"{host.basis}, on the GPU from a step's first compute kernel to the next step's"
    return Steps(host.number[kept], np.stack((start, end), axis=1)[kept], basis)


def _calls(item: _Attributed, numbered: frozenset[str]) -> tuple[dict[Key, Call], int]:
    """The collectives of each step, and how many kernels belong to none."""
    trace = item.trace
    table = _of_main_device(trace)
    when = item.launched[table.event]
    place = np.searchsorted(item.host.windows[:, 0], when, side="right") - 1
    inside = (place >= 0) & (when < item.host.windows[np.maximum(place, 0), 1]) & (when != ABSENT)
    order: Counter[tuple[int, str]] = Counter()
    calls: dict[Key, Call] = {}
    # Launch order is the program's; of one launch's kernels, the order in which they ran.
    for row in np.lexsort((table.event, when)):
        if not inside[row]:
            continue
        step, event = int(item.host.number[place[row]]), int(table.event[row])
        group = trace.names[int(table.group[row])] if table.group[row] != ABSENT else _NO_GROUP
        number = int(table.sequence[row]) if group in numbered else order[(step, group)]
        order[(step, group)] += 1
        op = trace.names[int(table.op[row])] if table.op[row] != ABSENT else "?"
        calls[(step, group, number)] = Call(op, int(trace.gpu.start_ns[event]), int(trace.gpu.end_ns[event]))
    return calls, int((~inside).sum())


def _of_main_device(trace: Trace) -> Collectives:
    device = main_device(trace.gpu).device[0]
    mine: NDArray[np.bool_] = trace.gpu.device[trace.collectives.event] == device
    return take(trace.collectives, mine)
