"""Describes what every trace reader does last: classify, attribute collectives, sort."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from aorta.artefacts.events import (
    ABSENT,
    Column,
    GpuEvents,
    Kind,
    RangeRole,
    Trace,
    TracedCollectives,
    TraceRanges,
    build,
    concatenate,
    take,
)
from aorta.readers.kernels import kinds_of, operation
from aorta.readers.lost import with_unseen
from aorta.readers.possible import without_impossible
from aorta.units import plural

Call: TypeAlias = tuple[int, int]
"""A range on the host: its lane and start."""
SENT = "aorta.sent "
"""Beginnings of the name of a range that is the call of a send or receive. The group and the pair follow."""
_NO_SIZES: Mapping[Call, int] = {}
_FILE_RANK = re.compile(r"(?:rank|worker)[-_.]?(\d+)", re.IGNORECASE)


def file_rank(path: Path) -> int | None:
    """The rank in a file's name (`rank3`, `rank_3`, `worker3`); None for no number or several.

    Never from a folder's name: a folder `data_rank1` may hold every rank.
    """
    numbers = {int(number) for number in _FILE_RANK.findall(path.name)}
    return numbers.pop() if len(numbers) == 1 else None


def finish(trace: Trace, sizes: Mapping[Call, int] = _NO_SIZES) -> Trace:
    """The trace with kinds by name, a row in `collectives` for each communication event, all sorted by start.

    Kernels must come in with kind COMPUTE. Where no kernel has a communication library's name, kernels that
    ran in or were launched from a collective's range (`nccl:all_reduce`) are communication.

    Args:
        trace: as read.
        sizes: bytes of what collectives were given, where their ranges on the host say so.
    """
    trace = without_impossible(joined_launches(trace))
    gpu = trace.gpu
    named = kinds_of(trace.names, gpu.name)
    kind = np.where(gpu.kind == Kind.COMPUTE, named, gpu.kind)
    kind = np.where(kind == ABSENT, int(Kind.UNCLASSIFIED), kind)
    notes = trace.notes
    if not (kind == Kind.COMMUNICATION).any():
        inside = _in_collective_ranges(trace) & (kind == Kind.COMPUTE)
        if inside.any():
            kind = np.where(inside, int(Kind.COMMUNICATION), kind)
            notes = (
                *notes,
                f"{plural(int(inside.sum()), 'kernel counts', 'kernels count')} as communication, because a "
                "collective launched them",
            )
    gpu, known = replace(gpu, kind=kind), trace.collectives
    if not is_sorted(gpu.start_ns):
        order = np.argsort(gpu.start_ns, kind="stable")
        position = np.empty(len(order), dtype=np.int64)
        position[order] = np.arange(len(order))
        known = replace(known, event=position[known.event])
        gpu = take(gpu, order)
    names, collectives = _complete(trace, known, gpu, sizes)
    return with_unseen(
        replace(
            trace,
            gpu=gpu,
            names=names,
            collectives=collectives,
            host=_sorted(trace.host),
            gpu_ranges=_sorted(trace.gpu_ranges),
            notes=notes,
        )
    )


def joined_launches(trace: Trace) -> Trace:
    """Returns the trace with those driver calls as launches that a GPU event is joined to."""
    host = trace.host
    other = (host.role == RangeRole.API) & (host.correlation != ABSENT)
    if not other.any():
        return trace
    events = trace.gpu.correlation[trace.gpu.correlation > 0]
    launching = other & np.isin(host.correlation, events)
    role = np.where(launching, int(RangeRole.LAUNCH), host.role)
    return replace(trace, host=replace(host, role=role)) if launching.any() else trace


def is_sorted(column: Column) -> bool:
    """True if no value is below the one before it."""
    return bool((column[1:] >= column[:-1]).all())


def _sorted(ranges: TraceRanges) -> TraceRanges:
    if is_sorted(ranges.start_ns):
        return ranges
    return take(ranges, np.argsort(ranges.start_ns, kind="stable"))


def _complete(
    trace: Trace, known: TracedCollectives, gpu: GpuEvents, sizes: Mapping[Call, int]
) -> tuple[tuple[str, ...], TracedCollectives]:
    """Adds the communication events that metadata says nothing about.

    The operation is that in the kernel's name or, if that tells nothing or only that ranks send to each
    other, in the name of the range that launched it, which may know the size as well.
    """
    known = take(known, gpu.kind[known.event] == Kind.COMMUNICATION)
    trace, sent = _sent(trace, known, gpu, sizes)
    known = concatenate(TracedCollectives, [known, sent])
    missing = np.setdiff1d(np.flatnonzero(gpu.kind == Kind.COMMUNICATION), known.event)
    codes = {text: code for code, text in enumerate(trace.names)}
    op = _operations(trace.names, codes, gpu.name[missing])
    size: Column = np.full(len(missing), ABSENT, dtype=np.int64)
    vague = (op == ABSENT) | (op == codes.get("send_recv"))
    if vague.any() or (sizes and len(missing)):
        calls = take(trace.host, trace.host.role == RangeRole.COLLECTIVE)
        call = _launching(trace.host, calls, gpu.correlation[missing])  # ABSENT takes what is appended
        said = np.append(_operations(trace.names, codes, calls.name), ABSENT)[call]
        op = np.where(vague & (said != ABSENT), said, op)
        given = zip(calls.lane.tolist(), calls.start_ns.tolist(), strict=True)
        size = np.array([*(sizes.get(pair, ABSENT) for pair in given), ABSENT], dtype=np.int64)[call]
        # Of what is gathered, a rank gives only a part.
        size[np.isin(op, [codes.get(gathering, ABSENT) for gathering in ("all_gather", "gather")])] = ABSENT
    rest = build(TracedCollectives, len(missing), event=missing, op=op, bytes_in=size)
    both = concatenate(TracedCollectives, [known, rest])
    return tuple(codes), take(both, np.argsort(both.event, kind="stable"))


def _sent(
    trace: Trace, known: TracedCollectives, gpu: GpuEvents, sizes: Mapping[Call, int]
) -> tuple[Trace, TracedCollectives]:
    """Returns the trace with names of pairs, and rows for kernels that carry several sends and receives.

    Such a kernel says nothing of them. Their calls come before its launch, and behind the one before it.
    """
    called = [code for code, name in enumerate(trace.names) if name.startswith(SENT)]
    calls = take(trace.host, np.isin(trace.host.name, called))
    if not len(calls):
        return trace, build(TracedCollectives, 0)
    names = dict.fromkeys(trace.names)
    pairs = {code: trace.names[code].removeprefix(SENT) for code in called}
    every = (*names, *dict.fromkeys(text for text in (*pairs.values(), "send_recv") if text not in names))
    place = {text: code for code, text in enumerate(every)}
    kernels = np.flatnonzero(_operations(trace.names, dict(place), gpu.name) == place["send_recv"])
    kernels = kernels[gpu.kind[kernels] == Kind.COMMUNICATION]
    launches = take(trace.host, trace.host.role == RangeRole.LAUNCH)
    correlation, first = np.unique(launches.correlation, return_index=True)
    event, group, size = [], [], []
    for lane in np.unique(calls.lane).tolist():
        own = first[launches.lane[first] == lane]
        mine = kernels[np.isin(gpu.correlation[kernels], launches.correlation[own])]
        at = launches.start_ns[first[np.searchsorted(correlation, gpu.correlation[mine])]]
        mine, at = mine[np.argsort(at, kind="stable")], np.sort(at)
        here = np.flatnonzero(calls.lane == lane)
        follows = np.searchsorted(at, calls.start_ns[here])
        for row, number in zip(here.tolist(), follows.tolist(), strict=True):
            if number < len(mine):
                event.append(int(mine[number]))
                group.append(place[pairs[int(calls.name[row])]])
                size.append(sizes.get((lane, int(calls.start_ns[row])), ABSENT))
    made = build(
        TracedCollectives,
        len(event),
        event=np.array(event, dtype=np.int64),
        op=place["send_recv"],
        group=np.array(group, dtype=np.int64),
        bytes_in=np.array(size, dtype=np.int64),
    )
    return replace(trace, names=every), take(made, ~np.isin(made.event, known.event))


def _operations(names: tuple[str, ...], codes: dict[str, int], name: Column) -> Column:
    """The code of the operation in each name; `codes` grows."""
    by_name = np.full(len(names) + 1, ABSENT, dtype=np.int64)
    for code in np.unique(name).tolist():
        found = operation(names[code]) if code >= 0 else None
        if found is not None:
            by_name[code] = codes.setdefault(found, len(codes))
    return by_name[name]


def _launching(host: TraceRanges, calls: TraceRanges, correlation: Column) -> Column:
    """For each correlation, which of `calls` the launch was made in; ABSENT for none."""
    launches = take(host, host.role == RangeRole.LAUNCH)
    launches = take(launches, np.isin(launches.correlation, correlation))
    launches = take(launches, np.argsort(launches.correlation, kind="stable"))
    within = np.append(_enclosing(calls, launches.lane, launches.start_ns), ABSENT)
    place = np.searchsorted(launches.correlation, correlation)
    found = np.append(launches.correlation, ABSENT)[place] == correlation
    return np.where(found & (correlation != ABSENT), within[place], ABSENT)


def _enclosing(ranges: TraceRanges, lane: Column, time: Column) -> Column:
    """For each (lane, time), the range of the lane that began last, if it has not ended; else ABSENT."""
    row = np.full(len(time), ABSENT, dtype=np.int64)
    for number in np.unique(ranges.lane):
        own = np.flatnonzero(ranges.lane == number)
        own = own[np.argsort(ranges.start_ns[own], kind="stable")]
        mine = np.flatnonzero(lane == number)
        index = np.searchsorted(ranges.start_ns[own], time[mine], side="right") - 1
        last = own[np.maximum(index, 0)]
        row[mine] = np.where((index >= 0) & (time[mine] < ranges.end_ns[last]), last, ABSENT)
    return row


def _in_collective_ranges(trace: Trace) -> NDArray[np.bool_]:
    """Returns which GPU events ran, or were launched, within a collective's annotation."""
    gpu, host, projected = trace.gpu, trace.host, trace.gpu_ranges
    on_stream = _within(take(projected, projected.role == RangeRole.COLLECTIVE), gpu.stream, gpu.start_ns)
    calls = take(host, (host.role == RangeRole.LAUNCH) & (host.correlation != ABSENT))
    launched = _within(take(host, host.role == RangeRole.COLLECTIVE), calls.lane, calls.start_ns)
    return on_stream | np.isin(gpu.correlation, calls.correlation[launched])


def _within(ranges: TraceRanges, lane: NDArray[np.int64], time: NDArray[np.int64]) -> NDArray[np.bool_]:
    """True for each (lane, time) that lies in a range of the same lane."""
    inside = np.zeros(len(time), dtype=np.bool_)
    for number in np.unique(ranges.lane):
        own = ranges.lane == number
        start, end = ranges.start_ns[own], ranges.end_ns[own]
        order = np.argsort(start, kind="stable")
        reach = np.maximum.accumulate(end[order])
        mine = np.flatnonzero(lane == number)
        index = np.searchsorted(start[order], time[mine], side="right") - 1
        inside[mine] = (index >= 0) & (time[mine] < reach[np.maximum(index, 0)])
    return inside
