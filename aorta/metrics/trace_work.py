"""A traced rank's steps as its GPU did them, with its collectives: what waits are charged by.

The host runs ahead of the GPU, by up to a whole step and by another amount on each rank. GPU work therefore
belongs to the step in which it was launched, whenever it ran. The n-th collective launched in step s is then
the same on every rank. On the GPU, step s begins with its first compute kernel and ends where the next step
begins. Where a trace joins no launch to a GPU event, both are taken by the time at which work ran.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from aorta.artefacts.events import (
    ABSENT,
    OWN,
    Column,
    ColumnTable,
    Kind,
    RangeRole,
    Trace,
    TracedCollectives,
    among,
    launched_at,
    take,
)
from aorta.intervals import Intervals, as_intervals, subtract, union
from aorta.metrics.calls import NOT_RECORDED, SEND_RECV, Calls, RankTimeline, TimesByStep
from aorta.metrics.rings import with_rings
from aorta.metrics.rows import order_within
from aorta.metrics.trace_breakdown import main_device, timeline_of
from aorta.metrics.trace_passes import PassTable, no_passes, passes_of
from aorta.metrics.trace_steps import StepWindows, steps_of

if TYPE_CHECKING:
    from aorta.metrics.collectives import MatchedCollectives as CollectiveSet

_NO_GROUP = ""
_OF_ALL = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
_CLOCK_ERROR_NS = 100_000
_LATEST = np.iinfo(np.int64).max


class CallTable(ColumnTable, frozen=True, eq=False):
    """The collectives of a rank's whole steps, in order of launch; codes are of `GpuWork.names`."""

    step: Column
    group: Column
    order: Column
    """Within step and group."""
    sequence: Column
    """ABSENT: the trace has none."""
    op: Column
    entry_ns: Column
    end_ns: Column
    size: Column
    """Bytes of the larger of what goes in and what comes out; ABSENT: the trace has none."""
    sent: Column
    """Code of the bytes that an all-to-all sends to each member of its group; ABSENT: not known."""


class GpuWork(Struct, frozen=True, eq=False):
    """One rank's work by step, ns on its trace's clock."""

    steps: StepWindows
    """Windows on the GPU, whole ones only."""
    compute: Intervals
    communication: Intervals
    data: Intervals
    """The GPU idle while the host was in its loader."""
    names: tuple[str, ...]
    calls: CallTable
    seen: frozenset[str]
    """Groups that occur in the trace, in its whole steps or not."""
    numbered: frozenset[str]
    """Groups whose every collective has a sequence number of its own."""
    edge_calls: int
    """Communication kernels of no whole step: launched before the capture, or in its last step or later."""
    passes: PassTable = field(default_factory=no_passes)
    """Forward and backward passes between sends and receives."""


class _Attributed(Struct, frozen=True, eq=False):
    """A trace, and when each of its GPU events was launched; ABSENT: not in the trace."""

    trace: Trace
    host: StepWindows
    launched: Column
    joined: bool


_WORK = (Kind.COMPUTE, Kind.GRAPH)


def gpu_work(trace: Trace) -> GpuWork | None:
    """The work of a trace; None where it has no GPU events or no steps."""
    trace, host = with_rings(_with_own_rank(trace)), steps_of(trace)
    if len(trace.gpu) == 0 or len(host) == 0:
        return None
    item, line = _attribute(trace, host), timeline_of(trace)
    windows = _gpu_windows(item) if item.joined else item.host
    names, calls, edge = _calls(item)
    seen, numbered = _groups(trace)
    whole = np.isin(calls.step, windows.number)
    passes = passes_of(trace, item.launched, item.host, _sends(trace)) if item.joined else no_passes()
    return GpuWork(
        steps=windows,
        compute=union(np.concatenate((line.compute, line.graphs))),
        communication=union(line.communication),
        data=subtract(line.loader, line.covered),
        names=names,
        calls=take(calls, whole),
        seen=seen,
        numbered=numbered,
        edge_calls=edge + int((~whole).sum()),
        passes=take(passes, np.isin(passes.step, windows.number)),
    )


def _sends(trace: Trace) -> Column:
    """Returns the rows of the GPU events that send or receive."""
    table = _of_main_device(trace)
    codes = [code for code, name in enumerate(trace.names) if name == SEND_RECV]
    return np.unique(table.event[np.isin(table.op, codes)])


def _with_own_rank(trace: Trace) -> Trace:
    """Returns the trace with its rank in the names of the pairs that send to each other."""
    if trace.rank is None or not any(f" {OWN}>" in name or f">{OWN}" in name for name in trace.names):
        return trace
    rank = str(trace.rank)
    names = [name.replace(f" {OWN}>", f" {rank}>").replace(f">{OWN}", f">{rank}") for name in trace.names]
    return replace(trace, names=tuple(names))


def timelines(work: Mapping[int, GpuWork]) -> dict[int, RankTimeline]:
    """The timeline of each rank, by which waits are charged.

    Collectives are numbered by their sequence numbers in the groups in which every rank's trace has them,
    otherwise by their order within step and group.
    """
    seen = frozenset[str]().union(*(item.seen for item in work.values()))
    numbered = frozenset(
        name for name in seen if all(name in item.numbered for item in work.values() if name in item.seen)
    )
    return {rank: _timeline(item, numbered) for rank, item in work.items()}


def _timeline(item: GpuWork, numbered: frozenset[str]) -> RankTimeline:
    table, steps = item.calls, item.steps
    by_sequence = np.array([name in numbered for name in item.names], dtype=np.bool_)
    number = np.where(by_sequence[table.group], table.sequence, table.order) if len(table) else table.order
    size = np.where(table.size == ABSENT, NOT_RECORDED, table.size)
    span = table.entry_ns, table.end_ns
    return RankTimeline(
        starts=TimesByStep(steps.number, steps.windows[:, 0]),
        ends=TimesByStep(steps.number, steps.windows[:, 1]),
        compute=item.compute,
        data=item.data,
        communication=item.communication,
        calls=Calls.of(item.names, (table.step, table.group, number), table.op, span, size),
    )


def common_steps(work: Mapping[int, GpuWork]) -> tuple[int, ...]:
    """The numbers of the steps that are whole on every rank, ascending."""
    sets = [set(item.steps.number.tolist()) for item in work.values()]
    return tuple(sorted(set.intersection(*sets) - {ABSENT})) if sets else ()


def impossible_share(collectives: CollectiveSet) -> float:
    """Share of the matched collectives that ended on one member before another one had come to it.

    No member leaves an exchange of all with all before the last one is there, but for the clocks' error. A
    large share says that calls of different groups were taken for one.
    """
    of_all = [item for item in collectives.matched if item.op in _OF_ALL]
    bad = sum(int(item.end.min()) + _CLOCK_ERROR_NS < int(item.entry.max()) for item in of_all)
    return bad / len(of_all) if of_all else 0.0


def _attribute(trace: Trace, host: StepWindows) -> _Attributed:
    launched = launched_at(trace)
    # A capture without steps is taken as a whole, whatever was launched before it.
    joined = bool((launched[among(trace.gpu.kind, _WORK)] != ABSENT).any()) and not host.whole_capture
    numbers = host.number if (host.number != ABSENT).all() else np.arange(len(host))
    return _Attributed(
        trace, replace(host, number=numbers), launched if joined else trace.gpu.start_ns, joined
    )


def _groups(trace: Trace) -> tuple[frozenset[str], frozenset[str]]:
    """The groups of a trace, and those whose every collective has a sequence number of its own."""
    table = trace.collectives
    seen, numbered = set(), set()
    for code in np.unique(table.group[table.group != ABSENT]).tolist():
        sequence = table.sequence[table.group == code]
        seen.add(trace.names[code])
        if bool((sequence != ABSENT).all()) and len(np.unique(sequence)) == len(sequence):
            numbered.add(trace.names[code])
    return frozenset(seen), frozenset(numbered)


def _gpu_windows(item: _Attributed) -> StepWindows:
    """Each step from the start of its first compute kernel to that of the next step.

    The last one counts where the capture shows that another step followed. If no step counts, all steps are
    one window to the end of what they launched.
    """
    gpu, host = item.trace.gpu, item.host
    compute = np.flatnonzero(among(gpu.kind, _WORK) & (item.launched != ABSENT))
    order = compute[np.argsort(item.launched[compute], kind="stable")]
    launched = item.launched[order]
    # The first to run of all that were launched at a time or later.
    earliest = np.minimum.accumulate(gpu.start_ns[order][::-1])[::-1]
    earliest = np.append(earliest, _LATEST)
    start, end = (earliest[np.searchsorted(launched, host.windows[:, side], side="left")] for side in (0, 1))
    marks = item.trace.host.start_ns[item.trace.host.role == RangeRole.STEP]
    followed = np.isin(host.windows[:, 1], np.concatenate((host.windows[1:, 0], marks)))
    if host.closed:
        followed[-1] = True
    kept = followed & (end < _LATEST) & (start < end)
    if not kept.any():
        return _one_window(item)
    basis = f"{host.basis}, on the GPU from a step's first compute kernel to the next step's"
    return StepWindows(host.number[kept], np.stack((start, end), axis=1)[kept], basis)


def _one_window(item: _Attributed) -> StepWindows:
    """All steps as one: from the first event that they launched to the end of the last one."""
    gpu, windows = item.trace.gpu, item.host.windows
    mine = (item.launched >= windows[:, 0].min()) & (item.launched < windows[:, 1].max())
    if not mine.any():
        return StepWindows(item.host.number[:0], windows[:0], item.host.basis)
    span = as_intervals([(int(gpu.start_ns[mine].min()), int(gpu.end_ns[mine].max()))])
    basis = f"{item.host.basis}, from the first to the last event on the GPU that they launched"
    return StepWindows(np.zeros(1, dtype=np.int64), span, basis, whole_capture=True)


def _calls(item: _Attributed) -> tuple[tuple[str, ...], CallTable, int]:
    """Names, the collectives of each step, and how many kernels belong to none."""
    trace = item.trace
    table = _of_main_device(trace)
    when = item.launched[table.event]
    place = np.searchsorted(item.host.windows[:, 0], when, side="right") - 1
    inside = (place >= 0) & (when < item.host.windows[np.maximum(place, 0), 1]) & (when != ABSENT)
    # Launch order is the program's; of one launch's kernels, the order in which they ran.
    rows = np.lexsort((table.event, when))
    rows = rows[inside[rows]]
    names: dict[str, int] = {}
    group = _codes(trace, table.group[rows], _NO_GROUP, names)
    op = _codes(trace, table.op[rows], "?", names)
    step = item.host.number[place[rows]]
    event = table.event[rows]
    calls = CallTable(
        step=step,
        group=group,
        order=order_within(step, group),
        sequence=table.sequence[rows],
        op=op,
        entry_ns=trace.gpu.start_ns[event],
        end_ns=trace.gpu.end_ns[event],
        size=np.maximum(table.bytes_in, table.bytes_out)[rows],
        sent=_codes(trace, table.sent[rows], None, names),
    )
    return tuple(names), calls, int((~inside).sum())


def _codes(trace: Trace, codes: Column, absent: str | None, names: dict[str, int]) -> Column:
    """Codes of a trace's names as codes of `names`, which grows; for `absent` of None, ABSENT stays."""
    values, inverse = np.unique(codes, return_inverse=True)
    texts = [absent if value == ABSENT else trace.names[value] for value in values.tolist()]
    made = np.array(
        [ABSENT if text is None else names.setdefault(text, len(names)) for text in texts], dtype=np.int64
    )
    return made[inverse.reshape(-1)] if len(codes) else codes


def _of_main_device(trace: Trace) -> TracedCollectives:
    device = main_device(trace.gpu).device[0]
    mine: NDArray[np.bool_] = trace.gpu.device[trace.collectives.event] == device
    return take(trace.collectives, mine)
