"""A rank's trace to its summary, and back to what the analysis needs of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from aorta.artefacts.events import ABSENT, Column, Kind, RangeRole, Trace, take
from aorta.artefacts.measured import RankBreakdown
from aorta.artefacts.packed import Packed, pack, unpack, unpack_intervals
from aorta.artefacts.reduction import (
    Reducer,
    TracedCalls,
    TracedPasses,
    TracedTimeline,
    TraceStep,
    TraceSummary,
    UnseenReason,
)
from aorta.artefacts.traced import RankTrace
from aorta.errors import ArtefactError
from aorta.intervals import Intervals, clip
from aorta.metrics.host_line import host_line
from aorta.metrics.trace_between import between_steps
from aorta.metrics.trace_breakdown import break_down, unknown_communication
from aorta.metrics.trace_checks import MOST, contradiction
from aorta.metrics.trace_idle import (
    contention,
    host_work,
    idle_causes,
    idle_gaps,
    launches_in,
    queue_depth,
)
from aorta.metrics.trace_passes import PassTable, no_passes
from aorta.metrics.trace_steps import StepWindows, steps_of
from aorta.metrics.trace_tops import top_collectives, top_kernels
from aorta.metrics.trace_work import CallTable, GpuWork, gpu_work
from aorta.units import NS_PER_MS

KEPT = 50
"""Number of kernels and collectives that a summary keeps, by total time."""
SHOWN = 10
"""Number of kernels and collectives that an analysis names."""


def summarise(trace: Trace) -> TraceSummary:
    """Everything that the analysis needs of a trace. Its rank must be known."""
    return _joined([part(trace) for part in _PARTS])


def _joined(parts: Sequence[Any]) -> TraceSummary:
    """Returns the summary of a trace from the results of `_PARTS`."""
    summary: TraceSummary
    summary, line = parts
    return replace(summary, line=line)


def _all_but_line(trace: Trace) -> TraceSummary:
    assert trace.rank is not None
    work = gpu_work(trace)
    whole = work is not None and len(work.steps) > 0
    steps = work.steps if work is not None and whole else steps_of(trace)
    recorded = (trace.world_size or 0, int(trace.collectives.group_size.max(initial=0)))
    return TraceSummary(
        rank=trace.rank,
        rank_basis=trace.rank_basis,
        format=trace.format,
        source=trace.source,
        host=trace.host_name,
        world_size=max(recorded) if max(recorded) > 0 else None,
        epoch_ns=trace.epoch_ns,
        gpu_events=len(trace.gpu),
        communication_events=int((trace.gpu.kind == Kind.COMMUNICATION).sum()),
        steps=_steps(trace, steps),
        steps_basis=steps.basis,
        whole=whole,
        unknown=unknown_communication(trace),
        loader_marked=len(trace.host.intervals(RangeRole.LOADER, RangeRole.DATA)) > 0,
        edge_calls=work.edge_calls if work is not None else 0,
        kernels=top_kernels(trace, KEPT),
        collectives=top_collectives(trace, KEPT),
        queue_depth=queue_depth(trace),
        contention=contention(trace, steps),
        timeline=_timeline(work) if work is not None and whole else None,
        unseen=[UnseenReason(reason=item.reason, remedy=item.remedy) for item in trace.unseen],
        problems=list(trace.problems),
        notes=list(trace.notes),
    )


_PARTS: tuple[Callable[[Trace], Any], ...] = (_all_but_line, host_line)
"""Parts of the work on a trace that take about as long; none needs another."""


def _steps(trace: Trace, steps: StepWindows) -> list[TraceStep]:
    made, causes = break_down(trace, steps), idle_causes(trace, steps)
    if made is None or causes is None:
        return []
    gaps = idle_gaps(trace, steps)
    columns: dict[str, Column] = {
        "number": steps.number,
        "start_ns": steps.windows[:, 0],
        "end_ns": steps.windows[:, 1],
        "compute_ns": made.compute_ns,
        "exposed_comm_ns": made.exposed_comm_ns,
        "exposed_copy_ns": made.exposed_copy_ns,
        "unclassified_ns": made.unclassified_ns,
        "unseen_ns": made.unseen_ns,
        "data_wait_ns": made.data_wait_ns,
        "host_ns": made.host_ns,
        "comm_ns": made.comm_ns,
        "hidden_comm_ns": made.hidden_comm_ns,
        "idle_loader_ns": causes.loader_ns,
        "idle_sync_ns": causes.sync_ns,
        "idle_launch_ns": causes.launch_ns,
        "idle_elsewhere_ns": causes.elsewhere_ns,
        "short_gaps_ns": gaps.short_ns,
        "long_gaps_ns": gaps.long_ns,
        "launches": launches_in(trace, steps),
    }
    work = host_work(trace, steps)
    if work is not None:
        columns["host_work_ns"] = work
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    by_reason = [list(row) for row in zip(*(column.tolist() for column in made.unseen_by), strict=True)]
    between = between_steps(trace, steps)
    return [
        TraceStep(
            **dict(zip(columns, row, strict=True)),
            unseen_by=by_reason[place] if by_reason else [],
            between_ns={phase: int(ns[place]) for phase, ns in between.items()} if between else None,
        )
        for place, row in enumerate(rows)
    ]


def _timeline(work: GpuWork) -> TracedTimeline:
    calls = {name: pack(getattr(work.calls, name)) for name in CallTable.__struct_fields__}
    return TracedTimeline(
        compute=pack(work.compute),
        communication=pack(work.communication),
        data=pack(work.data),
        calls=TracedCalls(
            names=list(work.names), seen=sorted(work.seen), numbered=sorted(work.numbered), **calls
        ),
        passes=TracedPasses(
            **{name: pack(getattr(work.passes, name)) for name in PassTable.__struct_fields__}
        )
        if len(work.passes)
        else None,
    )


def work_of(summary: TraceSummary) -> GpuWork | None:
    """Work that `gpu_work` found in the trace; None where its steps are not whole.

    Raises:
        ArtefactError: the summary contradicts itself.
    """
    wrong, line = contradiction(summary), summary.timeline
    if wrong is not None:
        raise ArtefactError(f"summary of rank {summary.rank}: {wrong}")
    if line is None:
        return None
    try:
        columns = {
            name: unpack(packed)
            for name in CallTable.__struct_fields__
            if (packed := getattr(line.calls, name)) is not None
        }
        absent = np.full(len(columns["step"]), ABSENT, dtype=np.int64)
        calls = CallTable(**{"size": absent, "sent": absent, **columns})
    except ValueError as error:
        raise ArtefactError(f"summary of rank {summary.rank}: {error}") from error
    for codes in (calls.group, calls.op, calls.sent[calls.sent != ABSENT]):
        if len(codes) and not 0 <= int(codes.min()) <= int(codes.max()) < len(line.calls.names):
            raise ArtefactError(
                f"summary of rank {summary.rank}: a collective refers to a name that is missing"
            )
    steps = windows(summary)
    lost = np.setdiff1d(calls.step, steps.number)
    if len(lost):
        raise ArtefactError(
            f"summary of rank {summary.rank}: a collective belongs to step {lost[0]}, which is missing"
        )
    return GpuWork(
        steps=steps,
        compute=_spans(line.compute, summary),
        communication=_spans(line.communication, summary),
        data=_spans(line.data, summary),
        names=tuple(line.calls.names),
        calls=calls,
        seen=frozenset(line.calls.seen),
        numbered=frozenset(line.calls.numbered),
        edge_calls=summary.edge_calls,
        passes=_passes(line.passes),
    )


def _passes(packed: TracedPasses | None) -> PassTable:
    if packed is None:
        return no_passes()
    return PassTable(**{name: unpack(getattr(packed, name)) for name in PassTable.__struct_fields__})


def latest(summary: TraceSummary, numbers: Collection[int]) -> TraceSummary:
    """The summary of those of its steps that have one of `numbers`, without the timeline outside of them.

    What is of the capture as a whole stays: kernels, collectives, queue depth, contention. A summary without
    whole steps, or without one of these, stays as it is.

    Args:
        summary: of a rank.
        numbers: of steps that follow one another.

    Raises:
        ArtefactError: as `work_of`.
    """
    work = work_of(summary)
    steps = [step for step in summary.steps if step.number in numbers]
    if work is None or not steps:
        return summary
    calls = take(work.calls, np.isin(work.calls.step, [step.number for step in steps]))
    # The last collectives of a step may end in the next one.
    first = min(step.start_ns for step in steps)
    last = max([step.end_ns for step in steps] + calls.end_ns.tolist())
    cut = replace(
        work,
        calls=calls,
        compute=clip(work.compute, first, last),
        communication=clip(work.communication, first, last),
        data=clip(work.data, first, last),
    )
    return msgspec.structs.replace(summary, steps=steps, timeline=_timeline(cut))


def _spans(packed: Packed, summary: TraceSummary) -> Intervals:
    """Sorted intervals that do not overlap.

    Raises:
        ArtefactError: as `unpack_intervals`, or they are not.
    """
    spans = unpack_intervals(packed)
    if (np.diff(spans.reshape(-1)) < 0).any() or (len(spans) and int(np.abs(spans).max()) >= MOST):
        raise ArtefactError(f"summary of rank {summary.rank}: its timeline goes back in time")
    return spans


def windows(summary: TraceSummary) -> StepWindows:
    """The steps of a summary."""
    spans: Intervals = np.array([(s.start_ns, s.end_ns) for s in summary.steps], dtype=np.int64).reshape(
        -1, 2
    )
    number = np.array([step.number for step in summary.steps], dtype=np.int64)
    return StepWindows(number, spans, summary.steps_basis)


def counted(summary: TraceSummary, numbers: Sequence[int]) -> list[TraceStep]:
    """The steps of these numbers; all of them where none is asked for."""
    wanted = set(numbers)
    return [step for step in summary.steps if step.number in wanted] if wanted else summary.steps


def mean_ms(steps: Sequence[TraceStep], part: Callable[[TraceStep], int]) -> float:
    """Mean of a part over steps, of which there is at least one."""
    return sum(part(step) for step in steps) / len(steps) / NS_PER_MS


def breakdown_row(summary: TraceSummary, numbers: Sequence[int]) -> RankBreakdown | None:
    """Means over steps, in ms; None where there are no steps or communication is not known."""
    steps = counted(summary, numbers)
    if not steps or summary.unknown is not None:
        return None
    comm = sum(step.comm_ns for step in steps)
    hidden = sum(step.hidden_comm_ns for step in steps)
    return RankBreakdown(
        rank=summary.rank,
        host=summary.host,
        steps=len(steps),
        step_ms=mean_ms(steps, lambda step: step.end_ns - step.start_ns),
        compute_ms=mean_ms(steps, lambda step: step.compute_ns),
        exposed_comm_ms=mean_ms(steps, lambda step: step.exposed_comm_ns),
        exposed_copy_ms=mean_ms(steps, lambda step: step.exposed_copy_ns),
        data_wait_ms=mean_ms(steps, lambda step: step.data_wait_ns),
        host_ms=mean_ms(steps, lambda step: step.host_ns),
        comm_ms=mean_ms(steps, lambda step: step.comm_ns),
        overlap_ratio=hidden / comm if comm else None,
        unclassified_ms=mean_ms(steps, lambda step: step.unclassified_ns),
        unseen_ms=mean_ms(steps, lambda step: step.unseen_ns),
    )


def rank_trace(summary: TraceSummary, numbers: Sequence[int]) -> RankTrace | None:
    """Row of an analysis for a summary, beside its breakdown; None where it has no steps."""
    steps = counted(summary, numbers)
    if not steps:
        return None
    return RankTrace(
        rank=summary.rank,
        source=summary.source,
        steps=len(steps),
        idle_loader_ms=mean_ms(steps, lambda step: step.idle_loader_ns),
        idle_sync_ms=mean_ms(steps, lambda step: step.idle_sync_ns),
        idle_launch_ms=mean_ms(steps, lambda step: step.idle_launch_ns),
        idle_elsewhere_ms=mean_ms(steps, lambda step: step.idle_elsewhere_ns),
        queue_depth=summary.queue_depth,
        contention=summary.contention,
        kernels=summary.kernels[:SHOWN],
        collectives=summary.collectives[:SHOWN],
    )


REDUCER = Reducer(summarise, latest, work_of, _PARTS, _joined)
"""The functions that readers of a run's traces are given."""
