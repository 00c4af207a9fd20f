"""Splits one step by a trace of kernel activity: what ran, and why windows are longer than that. Pure.

The trace is the one that torch.profiler has just exported in this process, with CUDA activity only. The
window of a collective runs from *ready* to *done*, by events; its execution is that of its kernel. Each is
window = launch + queue + execution + tail. The launch ends when the host's launch call returns, and the
queue time when the kernel starts. The tail is the time between the kernel's end and the event after it. In
the queue a kernel waits for room on the GPU, or behind another collective of its communicator, wherever that
was launched. Events and kernels are on two clocks; the offset is the smallest tail, which is set to zero.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aorta.artefacts.step_record import Execution, WindowExcess
from aorta.instrument.spans import Spans, clipped, length, shared, union
from aorta.instrument.steps import COMPUTE, Timed
from aorta.units import NS_PER_US, ns_to_ms

OTHER = "other"
"""Communication kernels that are not told apart by name: an all-to-all is made of sends and receives."""

_COLLECTIVE = re.compile(r"^(?:nccl|rccl)\w*Kernel", re.IGNORECASE)
_KINDS = (("allreduce", "allreduce"), ("reducescatter", "reducescatter"), ("allgather", "allgather"))
NAMED = (COMPUTE, *(stream for _, stream in _KINDS))
EARLY_NS = 50 * NS_PER_US
"""Largest lead of the trace's wall clock over the host's."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel of one step, ns of the wall clock."""

    stream: str
    """compute, the name of a stream of communication, or `OTHER`."""
    launched: int
    """Time at which the host's call returned."""
    start: int
    end: int


def stream_of(name: str) -> str:
    """The stream of a record that a kernel belongs to, by its name."""
    if not _COLLECTIVE.match(name):
        return COMPUTE
    folded = name.lower().replace("_", "")
    return next((stream for text, stream in _KINDS if text in folded), OTHER)


def kernels_of(trace: bytes, since_wall_ns: int) -> list[Kernel]:
    """The kernels that were launched at `since_wall_ns` or later, by start; copies are not among them.

    Raises:
        ValueError, TypeError, KeyError: the trace is not the exporter's JSON.
    """
    parsed = json.loads(trace)
    base = int(parsed.get("baseTimeNanoseconds", 0))

    def span(event: dict[str, Any]) -> tuple[int, int]:
        start = base + round(event["ts"] * NS_PER_US)
        return start, start + round(event["dur"] * NS_PER_US)

    launched: dict[int, int] = {}
    kernels = []
    for event in parsed["traceEvents"]:
        correlation = event.get("args", {}).get("correlation")
        if not correlation:
            continue
        kind = event.get("cat")
        if kind == "kernel":
            kernels.append((correlation, event))
        elif kind in ("cuda_runtime", "cuda_driver"):
            called, returned = span(event)
            if called >= since_wall_ns - EARLY_NS:
                launched[correlation] = returned
    found = [
        Kernel(stream_of(event["name"]), launched[correlation], *span(event))
        for correlation, event in kernels
        if correlation in launched
    ]
    return sorted(found, key=lambda kernel: kernel.start)


def execution_of(kernels: Sequence[Kernel], pieces: Sequence[Timed]) -> Execution:
    """Times of what ran in a step.

    Args:
        kernels: of the step, by start.
        pieces: of the step, on the record's clock; those of communication are windows.
    """
    ran: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for kernel in kernels:
        ran[kernel.stream].append((kernel.start, kernel.end))
    compute = union(ran[COMPUTE])
    communication = union(span for name, spans in ran.items() if name != COMPUTE for span in spans)
    comm = length(communication)
    hidden = length(shared(compute, communication))
    pairs, unmatched = _pair(kernels, pieces)
    offset = min((window.end - kernel.end for _, window, kernel in pairs), default=0)
    return Execution(
        per_stream_ms={
            name: ns_to_ms(length(union(spans)))
            for name, spans in sorted({**{key: [] for key in NAMED}, **ran}.items())
        },
        comm_ms=ns_to_ms(comm),
        hidden_comm_ms=ns_to_ms(hidden),
        overlap_ratio=hidden / comm if comm else None,
        kernels=len(kernels),
        window_ms=_windows(pairs),
        excess_ms=_excess(pairs, offset, communication),
        unmatched=unmatched,
    )


_Pair = tuple[str, Timed, Kernel]


def _pair(kernels: Sequence[Kernel], pieces: Sequence[Timed]) -> tuple[list[_Pair], int]:
    """Windows and kernels of each stream in their order; a stream whose counts differ is left out."""
    pairs: list[_Pair] = []
    unmatched = 0
    for _, name in _KINDS:
        ran = [kernel for kernel in kernels if kernel.stream == name]
        windows = sorted((piece for piece in pieces if piece.stream == name), key=lambda piece: piece.end)
        if len(ran) != len(windows):
            unmatched += abs(len(ran) - len(windows))
            continue
        ran.sort(key=lambda kernel: kernel.end)
        pairs += [(name, window, kernel) for window, kernel in zip(windows, ran, strict=True)]
    return pairs, unmatched


def _windows(pairs: Sequence[_Pair]) -> dict[str, float]:
    total: dict[str, int] = defaultdict(int)
    for name, window, _ in pairs:
        total[name] += window.end - window.start
    return {name: ns_to_ms(ns) for name, ns in total.items()}


def _excess(pairs: Sequence[_Pair], offset: int, communication: Spans) -> dict[str, WindowExcess]:
    parts: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for name, window, kernel in pairs:
        ready, done = window.start - offset, window.end - offset
        before = kernel.start - ready
        launch = min(max(kernel.launched - ready, 0), max(before, 0))
        behind = length(clipped(communication, ready + launch, kernel.start)) if before > launch else 0
        for index, part in enumerate((launch, before - launch, done - kernel.end, behind)):
            parts[name][index] += part
    return {
        name: WindowExcess(
            launch_ms=ns_to_ms(launch),
            queue_ms=ns_to_ms(queue),
            tail_ms=ns_to_ms(tail),
            behind_ms=ns_to_ms(behind),
        )
        for name, (launch, queue, tail, behind) in parts.items()
    }
