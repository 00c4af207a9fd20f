"""Traces made of a few integer events."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from aorta.artefacts.events import (
    ABSENT,
    GpuEvents,
    Kind,
    RangeRole,
    Trace,
    TracedCollectives,
    TraceRanges,
    build,
    empty_trace,
)

Gpu = tuple[int, int, Kind]
Host = tuple[int, int, RangeRole]


def trace(
    gpu: Sequence[Gpu],
    host: Sequence[Host] = (),
    *,
    steps: Sequence[tuple[int, int, str]] = (),
    names: Sequence[str] | None = None,
    rank: int | None = 0,
    device: Sequence[int] | int = 0,
) -> Trace:
    """A trace with these GPU events (start, end, kind), host ranges and named step ranges, in any order.

    `names` gives each GPU event's name (all `k` by default); the i-th event has correlation i.
    """
    kernels = list(names) if names is not None else ["k"] * len(gpu)
    texts = list(dict.fromkeys([*kernels, "range", *(name for _, _, name in steps)]))
    order = np.argsort([start for start, _, _ in gpu], kind="stable") if gpu else np.empty(0, dtype=np.intp)
    ranges = [(start, end, int(role), texts.index("range")) for start, end, role in host]
    ranges += [(start, end, int(RangeRole.STEP), texts.index(name)) for start, end, name in steps]
    ranges.sort()
    events = build(
        GpuEvents,
        len(gpu),
        start_ns=[gpu[i][0] for i in order],
        end_ns=[gpu[i][1] for i in order],
        kind=[int(gpu[i][2]) for i in order],
        device=device if isinstance(device, int) else [device[i] for i in order],
        stream=7,
        name=[texts.index(kernels[i]) for i in order],
        correlation=[int(i) for i in order],
    )
    communication = np.flatnonzero(events.kind == Kind.COMMUNICATION)
    return replace(
        empty_trace("made", "kineto"),
        rank=rank,
        names=tuple(texts),
        gpu=events,
        collectives=build(TracedCollectives, len(communication), event=communication, op=ABSENT),
        host=build(
            TraceRanges,
            len(ranges),
            start_ns=[r[0] for r in ranges],
            end_ns=[r[1] for r in ranges],
            role=[r[2] for r in ranges],
            name=[r[3] for r in ranges],
            lane=1,
        ),
    )
