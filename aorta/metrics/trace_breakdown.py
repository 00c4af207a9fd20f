"""Finds where the time of each step of a traced rank went: parts that exclude each other and sum to the step.

On the GPU's timeline, in this order, each part without those before it: compute (kernels) · exposed
communication · exposed copy (copies and memsets) · unclassified · unseen (inside CUDA graphs recorded as a
whole, or where work that was not recorded may have run) · data wait (GPU idle while the host is in the
loader) · host (the rest).
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from aorta.artefacts.events import Column, GpuEvents, Kind, RangeRole, Trace, take
from aorta.intervals import Intervals, intersection, lengths_in, subtract, union
from aorta.metrics.trace_steps import StepWindows, steps_of

NOT_CLASSIFIED = (
    "communication not classified: the trace contains calls of collectives, but no GPU events that match them"
)


class GpuActivity(Struct, frozen=True, eq=False):
    """The activity of one GPU, as disjoint intervals."""

    compute: Intervals
    communication: Intervals
    copy: Intervals
    unclassified: Intervals
    graphs: Intervals
    """CUDA graphs recorded as a whole."""
    loader: Intervals
    """The host in its loader."""
    busy: Intervals
    """The GPU doing anything."""
    covered: Intervals
    """The GPU doing anything, or perhaps something that was not recorded."""


class TraceBreakdown(Struct, frozen=True, eq=False):
    """One value per step in each column; the first seven after `steps` sum to the step."""

    rank: int | None
    source: str
    steps: StepWindows
    compute_ns: Column
    exposed_comm_ns: Column
    exposed_copy_ns: Column
    unclassified_ns: Column
    unseen_ns: Column
    data_wait_ns: Column
    host_ns: Column
    comm_ns: Column
    hidden_comm_ns: Column
    unseen_by: tuple[Column, ...]
    """`unseen_ns` by reason, in the order of `Trace.unseen`."""
    reason: str | None
    """Why the communication part is not known. None if it is."""

    @property
    def step_ns(self) -> Column:
        """Length of each step."""
        return self.steps.windows[:, 1] - self.steps.windows[:, 0]

    @property
    def overlap_ratio(self) -> float | None:
        """Hidden over all communication of all steps; None without communication or where it is not known."""
        total = int(self.comm_ns.sum())
        return None if total == 0 or self.reason else int(self.hidden_comm_ns.sum()) / total


def main_device(gpu: GpuEvents) -> GpuEvents:
    """The events of the device that has most of them: a rank's own GPU."""
    if len(gpu) == 0:
        return gpu
    devices, counts = np.unique(gpu.device, return_counts=True)
    return gpu if len(devices) == 1 else take(gpu, gpu.device == devices[np.argmax(counts)])


def timeline_of(trace: Trace) -> GpuActivity:
    """The timeline of a trace's main device."""
    gpu = main_device(trace.gpu)
    loader = union(trace.host.intervals(RangeRole.LOADER, RangeRole.DATA))
    busy = union(gpu.intervals(*Kind))
    return GpuActivity(
        compute=union(gpu.intervals(Kind.COMPUTE)),
        communication=union(gpu.intervals(Kind.COMMUNICATION)),
        copy=union(gpu.intervals(Kind.COPY, Kind.MEMSET)),
        unclassified=union(gpu.intervals(Kind.UNCLASSIFIED)),
        graphs=union(gpu.intervals(Kind.GRAPH)),
        loader=loader,
        busy=busy,
        covered=union(np.concatenate((busy, *(item.spans for item in trace.unseen)))),
    )


def break_down(trace: Trace, steps: StepWindows | None = None) -> TraceBreakdown | None:
    """The breakdown of each step (of `steps_of(trace)` by default); None without GPU events or steps."""
    steps = steps_of(trace) if steps is None else steps
    if len(trace.gpu) == 0 or len(steps) == 0:
        return None
    line = timeline_of(trace)
    windows = steps.windows
    exposed = subtract(line.communication, line.compute)
    kernels = union(np.concatenate((line.compute, line.communication)))
    copy = subtract(line.copy, kernels)
    unclassified = subtract(line.unclassified, union(np.concatenate((kernels, line.copy))))
    waiting = subtract(line.loader, line.covered)
    seen = union(np.concatenate((kernels, line.copy, line.unclassified)))
    unseen_ns = lengths_in(line.covered, windows) - lengths_in(seen, windows)
    step_ns = windows[:, 1] - windows[:, 0]
    comm_ns = lengths_in(line.communication, windows)
    exposed_ns = lengths_in(exposed, windows)
    data_ns = lengths_in(waiting, windows)
    made = TraceBreakdown(
        rank=trace.rank,
        source=trace.source,
        steps=steps,
        compute_ns=lengths_in(line.compute, windows),
        exposed_comm_ns=exposed_ns,
        exposed_copy_ns=lengths_in(copy, windows),
        unclassified_ns=lengths_in(unclassified, windows),
        unseen_ns=unseen_ns,
        unseen_by=_unseen(trace, seen, windows),
        data_wait_ns=data_ns,
        host_ns=step_ns - lengths_in(line.covered, windows) - data_ns,
        comm_ns=comm_ns,
        hidden_comm_ns=lengths_in(intersection(line.communication, line.compute), windows),
        reason=unknown_communication(trace),
    )
    busy_ns = made.compute_ns + exposed_ns + made.exposed_copy_ns + made.unclassified_ns
    total = busy_ns + unseen_ns + data_ns + made.host_ns
    assert (total == step_ns).all()
    assert (made.host_ns >= 0).all()
    assert (exposed_ns + made.hidden_comm_ns == comm_ns).all()
    return made


def _unseen(trace: Trace, seen: Intervals, windows: Intervals) -> tuple[Column, ...]:
    """Time per window by reason in which nothing that was recorded ran; of several reasons the first."""
    found = []
    for item in trace.unseen:
        rest = subtract(item.spans, seen)
        found.append(lengths_in(rest, windows))
        seen = union(np.concatenate((seen, rest)))
    return tuple(found)


def unknown_communication(trace: Trace) -> str | None:
    """Why the communication part is not known; None where it is."""
    alone = trace.world_size == 1 or bool(trace.collectives.group_size.max(initial=0) == 1)
    if alone or (trace.gpu.kind == Kind.COMMUNICATION).any():
        return None
    called = (trace.host.role == RangeRole.COLLECTIVE).any() or (
        trace.gpu_ranges.role == RangeRole.COLLECTIVE
    ).any()
    return NOT_CLASSIFIED if called else None
