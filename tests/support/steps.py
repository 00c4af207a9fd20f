"""Tiny step records in integer ms, for expectations written as arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

from aorta import intervals
from aorta.artefacts.records import Breakdown
from aorta.artefacts.step_names import Phase
from aorta.artefacts.steps import CollectiveId, DecodedStep, StepRange, StepRanges
from aorta.units import NS_PER_MS

Span = tuple[int, int]
Collective = tuple[int, int] | tuple[int, int, str] | tuple[int, int, str, int | None]
"""Entry, end, group (default `world`), seq (default: its place in the step; None: unknown)."""


def step(
    number: int,
    span: Span,
    *,
    rank: int = 0,
    data: Sequence[Span] = (),
    compute: Sequence[Span] = (),
    collectives: Sequence[Collective] = (),
    phase: Phase = "steady",
    host: str = "node1",
    samples: int = 8,
    world_size: int = 2,
    device: str = "cpu",
    ahead_ms: int = 0,
) -> DecodedStep:
    """One step; all times in ms on a common clock, which the rank's own clock is `ahead_ms` of."""
    start, end = span
    ranges = [_range("host", "data", item, start) for item in data]
    ranges += [_range("compute", "work", item, start) for item in compute]
    for place, item in enumerate(collectives):
        group = item[2] if len(item) > 2 else "world"
        seq = item[3] if len(item) > 3 else place
        name = CollectiveId(op="all_reduce", group=group, seq=seq)
        ranges.append(_range("allreduce", "gradients", (item[0], item[1]), start, name))
    return DecodedStep(
        job_id="7",
        host=host,
        attempt=0,
        rank=rank,
        world_size=world_size,
        device=device,
        global_step=number,
        phase=phase,
        wall_start_ns=(start + ahead_ms) * NS_PER_MS,
        wall_end_ns=(end + ahead_ms) * NS_PER_MS,
        mono_start_ns=(start + ahead_ms) * NS_PER_MS,
        mono_end_ns=(end + ahead_ms) * NS_PER_MS,
        samples=samples,
        timing="host",
        breakdown=_breakdown(span, data, compute, [(item[0], item[1]) for item in collectives]),
        profile=StepRanges(ranges=ranges),
    )


def _range(stream: str, tag: str, span: Span, origin: int, metadata: CollectiveId | None = None) -> StepRange:
    return StepRange(
        stream=stream,
        tag=tag,
        start_ms=float(span[0] - origin),
        end_ms=float(span[1] - origin),
        metadata=metadata,
    )


def _breakdown(span: Span, data: Sequence[Span], compute: Sequence[Span], comm: Sequence[Span]) -> Breakdown:
    busy, talking = intervals.as_intervals(compute), intervals.as_intervals(comm)
    exposed = intervals.length(intervals.subtract(talking, busy))
    waiting = intervals.subtract(intervals.subtract(intervals.as_intervals(data), busy), talking)
    parts = (intervals.length(busy), exposed, intervals.length(waiting))
    total = intervals.length(talking)
    return Breakdown(
        compute_ns=parts[0] * NS_PER_MS,
        exposed_comm_ns=exposed * NS_PER_MS,
        exposed_copy_ns=None,
        data_wait_ns=parts[2] * NS_PER_MS,
        host_ns=(span[1] - span[0] - sum(parts)) * NS_PER_MS,
        comm_ns=total * NS_PER_MS,
        hidden_comm_ns=(total - exposed) * NS_PER_MS,
    )
