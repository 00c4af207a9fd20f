"""Where the time of each step of a traced rank went: parts that exclude each other and sum to the step.

On the GPU's timeline, in this order, each part without those before it: compute (kernels) · exposed
communication · exposed copy (copies and memsets) · unclassified · data wait (GPU idle while the host is in
the loader) · host (the rest).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from aorta.artefacts.events import Column, GpuEvents, Kind, Role, Trace, take
from aorta.intervals import Intervals, intersection, lengths_in, subtract, union
from aorta.metrics.trace_steps import Steps, steps_of

NOT_CLASSIFIED = "communication not classified: collectives are called, but no GPU event belongs to one"


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """What one GPU did, as disjoint intervals."""

    compute: Intervals
    communication: Intervals
    copy: Intervals
    unclassified: Intervals
    loader: Intervals
    """The host in its loader."""
    busy: Intervals
    """The GPU doing anything."""


@dataclass(frozen=True, slots=True, eq=False)
class TraceBreakdown:
    """One value a step in each column; the first six after `steps` sum to the step."""

    rank: int | None
    source: str
    steps: Steps
    compute_ns: Column
    exposed_comm_ns: Column
    exposed_copy_ns: Column
    unclassified_ns: Column
    data_wait_ns: Column
    host_ns: Column
    comm_ns: Column
    hidden_comm_ns: Column
    reason: str | None
    """Why the communication part is not known; None: it is."""

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


def timeline_of(trace: Trace) -> Timeline:
    """The timeline of a trace's main device."""
    gpu = main_device(trace.gpu)
    loader = union(trace.host.intervals(Role.LOADER, Role.DATA))
    return Timeline(
        compute=union(gpu.intervals(Kind.COMPUTE)),
        communication=union(gpu.intervals(Kind.COMMUNICATION)),
        copy=union(gpu.intervals(Kind.COPY, Kind.MEMSET)),
        unclassified=union(gpu.intervals(Kind.UNCLASSIFIED)),
        loader=loader,
        busy=union(gpu.intervals(*Kind)),
    )


def break_down(trace: Trace, steps: Steps | None = None) -> TraceBreakdown | None:
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
    waiting = subtract(line.loader, line.busy)
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
        data_wait_ns=data_ns,
        host_ns=step_ns - lengths_in(line.busy, windows) - data_ns,
        comm_ns=comm_ns,
        hidden_comm_ns=lengths_in(intersection(line.communication, line.compute), windows),
        reason=unknown_communication(trace),
    )
    total = (
        made.compute_ns + exposed_ns + made.exposed_copy_ns + made.unclassified_ns + data_ns + made.host_ns
    )
    assert (total == step_ns).all()
    assert (made.host_ns >= 0).all()
    assert (exposed_ns + made.hidden_comm_ns == comm_ns).all()
    return made


def unknown_communication(trace: Trace) -> str | None:
    """Why the communication part is not known; None where it is."""
    if (trace.gpu.kind == Kind.COMMUNICATION).any():
        return None
    called = (trace.host.role == Role.COLLECTIVE).any() or (trace.gpu_ranges.role == Role.COLLECTIVE).any()
    return NOT_CLASSIFIED if called else None
