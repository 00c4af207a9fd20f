"""A run with traces: breakdown, waits and verdict from what ran on the GPUs, the rest from its records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from aorta.artefacts.analysis import (
    Analysis,
    BreakdownTable,
    DataQuality,
    Problem,
    RankBreakdown,
)
from aorta.artefacts.step_columns import StepColumns
from aorta.artefacts.traced import TraceTable
from aorta.diagnosis.context import Context
from aorta.diagnosis.model import modelled
from aorta.diagnosis.policy import MIN_TRACED_STEPS, TRACED_STRAGGLER_PCT
from aorta.diagnosis.rank import rank_words
from aorta.diagnosis.run_traces import RunTraces
from aorta.diagnosis.traced_steps import Numbered, numbered
from aorta.diagnosis.traces import (
    Capture,
    breakdown_rows,
    capture,
    captures,
    charges,
    collectives_of,
    notes_of,
    table,
    traced_context,
    with_waits,
)
from aorta.metrics.blame import BlameTable
from aorta.metrics.utilization import effective_gpu_utilization
from aorta.units import plural

_DIFFERENT_PCT = 10.0
"""Points of the step by which two sources of one part may differ before a note says so."""
_PARTS: Mapping[str, Callable[[RankBreakdown], float]] = {
    "compute": lambda row: row.compute_ms,
    "exposed communication": lambda row: row.exposed_comm_ms,
    "loading": lambda row: row.data_wait_ms,
}


@dataclass(frozen=True, slots=True)
class Stands:
    """What is concluded from where traces stand for a run."""

    context: Context
    waits: BlameTable | None


@dataclass(frozen=True, slots=True)
class TracedRun:
    """The traces of a run, as far as they can stand for it."""

    table: TraceTable | None
    stands: Stands | None
    """None where the step records must do: `notes` says why."""
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]
    source: str | None
    """In words, for `DataQuality.sources`."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a run's records and agents say, as far as its traces need it."""

    by_rank: Mapping[int, StepColumns]
    expected: int | None
    """Ranks."""
    nodes: Mapping[int, str]
    """Each rank's."""
    boots: Mapping[int, int]
    """Wall-clock ns of the boot of each rank's machine."""


def traced_run(traces: RunTraces, context: Context, recorded: Recorded) -> TracedRun | None:
    """What the traces say of a run; None where there are none.

    Args:
        traces: of the run's ranks.
        context: the run by its step records.
        recorded: the rest of what it left.

    They stand for the run where every rank has enough whole steps of a known breakdown that are steady by
    the records. A part of the ranks would leave the others' waits unknown.
    """
    if not traces.summaries:
        return TracedRun(None, None, traces.problems, (), None) if traces.problems else None
    expected = recorded.expected
    found, steps = _steady(captures(traces.summaries)[0], recorded)
    said = [*traces.notes, *steps.notes]
    shown = msgspec.structs.replace(table(found), from_summaries=traces.from_summaries)
    own = [problem for summary in found.ranks for problem in summary.problems]
    rows, unusable = breakdown_rows(found)
    problems = tuple(dict.fromkeys((*traces.problems, *own, *found.problems, *unusable)))
    source = found.words() + (", reduced in the job" if traces.from_summaries else "")
    reason = _unfit(found, rows, expected)
    if reason is not None:
        note = f"the breakdown is of the step records, not of the {found.format} traces: {reason}"
        return TracedRun(shown, None, problems, (*said, note), source)
    collectives = collectives_of(found, expected)
    charged = charges(collectives, found)
    waits = charged if isinstance(charged, BlameTable) else None
    rows = [
        row if row.host else msgspec.structs.replace(row, host=context.hosts.get(row.rank))
        for row in with_waits(rows, waits)
    ]
    step_ms = [row.step_ms for row in rows]
    model = modelled(collectives, found.steps, step_ms, recorded.nodes, found.host_ns())
    notes = [*said, *notes_of(found, charged, expected), *_differences(context.breakdown, rows)]
    stands = Stands(replace(_context(context, found, rows, charged), model=model), waits)
    shown = msgspec.structs.replace(shown, stands=True)
    return TracedRun(shown, stands, problems, tuple(notes), source)


def _steady(found: Capture, recorded: Recorded) -> tuple[Capture, Numbered]:
    """The capture with the records' step numbers, only its steady steps to be counted."""
    steps = numbered(found.ranks, recorded.by_rank, recorded.boots)
    made = capture(steps.summaries) if steps.counted is not None else found
    return replace(made, steps=steps.kept(made.steps), problems=found.problems), steps


def _unfit(found: Capture, rows: Sequence[RankBreakdown], expected: int | None) -> str | None:
    """Why the traces cannot stand for the run; None if they can."""
    lost = sorted(set(range(expected or 0)) - set(found.work))
    blind = {item.rank for item in found.ranks if not item.gpu_events}
    if lost and blind.issuperset(lost):
        return f"the traces of {rank_words(lost)} hold nothing that ran on a GPU"
    if expected is None or lost:
        return f"{rank_words(lost)} left no trace with whole steps" if lost else "ranks are missing"
    if len(rows) < len(found.ranks):
        return "communication is not classified on some ranks"
    if len(found.steps) < MIN_TRACED_STEPS:
        common = plural(len(found.steps), "whole step")
        return f"all ranks have {common} in common that count, {MIN_TRACED_STEPS} are needed"
    return None


def _context(
    context: Context,
    found: Capture,
    rows: list[RankBreakdown],
    charged: BlameTable | str,
) -> Context:
    policy = replace(
        context.policy,
        min_steady_steps=MIN_TRACED_STEPS,
        straggler_pct=min(context.policy.straggler_pct, TRACED_STRAGGLER_PCT),
    )
    usage = context.utilization
    if usage is not None:
        effective = effective_gpu_utilization(rows)
        usage = msgspec.structs.replace(usage, effective_gpu_util_pct=effective)
    traced = traced_context(found, rows, charged, context.world_size)
    return replace(
        context,
        policy=policy,
        breakdown=traced.breakdown,
        steady_steps=None,
        costs=traced.costs,
        blame_absent=traced.blame_absent,
        utilization=usage,
        records="step records and traces",
        files=traced.files,
        loader_marked=traced.loader_marked,
        idle=traced.idle,
    )


def _differences(records: BreakdownTable, rows: Sequence[RankBreakdown]) -> list[str]:
    """Parts of the step that records and traces put far apart, the largest difference of each part."""
    by_rank: Mapping[int, RankBreakdown] = {row.rank: row for row in records.per_rank}
    notes = []
    for name, part in _PARTS.items():
        pairs = [
            (
                row.rank,
                100.0 * part(by_rank[row.rank]) / by_rank[row.rank].step_ms,
                100.0 * part(row) / row.step_ms,
            )
            for row in rows
            if row.rank in by_rank and by_rank[row.rank].step_ms > 0 and row.step_ms > 0
        ]
        rank, by_records, by_traces = max(
            pairs, key=lambda item: abs(item[1] - item[2]), default=(0, 0.0, 0.0)
        )
        if abs(by_records - by_traces) > _DIFFERENT_PCT:
            notes.append(
                f"sources differ: {name} of rank {rank} is {by_records:.0f} % of a step by its records "
                f"and {by_traces:.0f} % by its trace, which the breakdown is of"
            )
    return notes


def joined(made: Analysis, by_records: Analysis, run: TracedRun) -> Analysis:
    """`made` with what the traces add, and a note where the records alone lead to another verdict."""
    quality = made.data_quality
    notes = [*run.notes]
    mine, its = made.verdict, by_records.verdict
    if (
        run.stands is not None
        and its.kind != "insufficient_data"
        and (mine.kind, mine.ranks)
        != (
            its.kind,
            its.ranks,
        )
    ):
        whose = f" on {rank_words(its.ranks)}" if its.ranks else ""
        notes.append(f"sources contradict each other: the step records alone give {its.kind}{whose}")
    joined_quality: DataQuality = msgspec.structs.replace(
        quality,
        sources=[*quality.sources, *([run.source] if run.source else [])],
        problems=[*quality.problems, *run.problems],
        notes=[*quality.notes, *notes],
    )
    return msgspec.structs.replace(made, data_quality=joined_quality, traces=run.table)
