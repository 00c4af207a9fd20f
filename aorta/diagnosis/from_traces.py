"""Traces of one job to an observation: alone, or in place of what a run's records say of the step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from aorta.artefacts.analysis import BreakdownTable, DataQuality, Problem, RankBreakdown
from aorta.artefacts.step_columns import StepColumns
from aorta.artefacts.traced import TraceTable
from aorta.diagnosis.model import Modelled, modelled
from aorta.diagnosis.observation import (
    Observation,
    ObservedDevices,
    ObservedHost,
    ObservedJob,
    ObservedSteps,
    RunFacts,
)
from aorta.diagnosis.policy import Policy
from aorta.diagnosis.rank import rank_costs
from aorta.diagnosis.trace_samples import sampled_beside
from aorta.diagnosis.traced_weight import replayed, undisturbed, weighed
from aorta.metrics.blame import BlameTable
from aorta.metrics.trace_capture import (
    TraceCapture,
    breakdown_rows,
    capture,
    captures,
    charges,
    collectives_of,
    host_idle,
    loader_marked,
    ranks_expected,
    sources,
    table,
    unseen_times,
    with_waits,
)
from aorta.metrics.trace_notes import differences, notes_of, size_notes
from aorta.metrics.traced_steps import Numbered, numbered
from aorta.metrics.utilization import effective_gpu_utilization
from aorta.readers.run_traces import RunTraces
from aorta.readers.sample_files import SampleFile
from aorta.units import plural, rank_words

_SOURCE = "usable traces"


@dataclass(frozen=True, slots=True)
class Recorded:
    """Facts from a run's records and agents that its traces need."""

    by_rank: Mapping[int, StepColumns]
    expected: int | None
    """Ranks."""
    nodes: Mapping[int, str]
    """Each rank's."""
    boots: Mapping[int, int]
    """Wall-clock ns of the boot of each rank's machine."""


def from_traces(
    found: TraceCapture, samples: Sequence[SampleFile] = (), problems: Sequence[Problem] = ()
) -> Observation:
    """Returns what the traces of one format show, as an observation.

    Args:
        found: one run of the job.
        samples: of GPUs and hosts while it ran.
        problems: what was wrong with other traces and with the samples.
    """
    seen = sorted(found.work)
    expected, assumed = ranks_expected(found)
    hosts = {item.rank: item.host for item in found.ranks if item.host and item.rank in found.work}
    lines = replayed(found.ranks, expected, None)
    undone, weighs, uncertain = undisturbed(found, lines)
    steps, host, model, unusable = _step_parts(undone, expected, hosts)
    host = replace(host, uncertain_ms=uncertain)
    usage, said = sampled_beside(found, samples, steps.breakdown.per_rank)
    lost = [rank for rank in range(expected or 0) if rank not in seen]
    missing = [Problem(file=None, reason=f"{rank_words(lost)} left no {_SOURCE}")] if lost and seen else []
    files = [f"{item.path.name} ({plural(len(item.table), 'sample')})" for item in samples]
    quality = DataQuality(
        ranks_expected=expected,
        ranks_seen=len(seen),
        sources=[found.words(), *files],
        problems=[*problems, *found.problems, *unusable, *missing],
        nodes_expected=None,
        nodes_seen=len(set(hosts.values())),
        steady_steps=len(found.steps),
        notes=[*size_notes(found, expected, assumed=assumed), *weighs, *steps.notes, *said],
        ranks_assumed=assumed,
    )
    nodes = len(set(hosts.values())) if len(hosts) == len(seen) and seen else None
    return Observation(
        job=ObservedJob(
            cuda=True,
            world_size=expected or max(len(seen), 2),
            hosts=hosts,
            ranks_missing=expected is None or len(seen) < expected,
        ),
        steps=steps,
        host=host,
        monitored=ObservedDevices(
            utilization=usage,
            sample_files=tuple(str(item.path) for item in samples if item.kind == "gpu"),
        ),
        model=model,
        facts=RunFacts(
            nodes=nodes,
            world_size=expected,
            device="cuda",
            traces=table(found),
            **weighed(lines),
        ),
        quality=quality,
    )


def with_traces(seen: Observation, traces: RunTraces, recorded: Recorded, policy: Policy) -> Observation:
    """Returns a run's observation with what its traces add.

    They stand for its breakdown, waits and host where every rank has enough whole steps of a known breakdown
    that are steady by the records: a part of the ranks would leave the others' waits unknown. Throughput is
    always the records'. Otherwise a note says why the breakdown is of the records.

    Args:
        seen: the run by its step records.
        traces: of the run's ranks.
        recorded: the rest of what the run left.
        policy: for traces.
    """
    if not traces.summaries:
        return _noted(seen, [], list(traces.problems), [], None)
    expected = recorded.expected
    found, counted_steps = _steady(captures(traces.summaries)[0], recorded)
    said = [*traces.notes, *counted_steps.notes]
    shown = msgspec.structs.replace(table(found), from_summaries=traces.from_summaries)
    steps, host, model, unusable = _step_parts(found, expected, recorded.nodes, names=seen.job.hosts)
    own = [problem for summary in found.ranks for problem in summary.problems]
    problems = list(dict.fromkeys((*traces.problems, *own, *found.problems, *unusable)))
    source = [found.words() + (", reduced in the job" if traces.from_summaries else "")]
    rows = steps.breakdown.per_rank
    reason = _unfit(found, rows, expected, policy)
    if reason is not None:
        note = f"the breakdown is of the step records, not of the {found.format} traces: {reason}"
        return _noted(seen, source, problems, [*said, note], shown)
    notes = [*said, *steps.notes, *differences(seen.steps.breakdown, rows)]
    usage = seen.monitored.utilization
    if usage is not None:
        effective = effective_gpu_utilization(rows)
        usage = msgspec.structs.replace(usage, effective_gpu_util_pct=effective)
    left = [note for note in seen.quality.notes if note not in seen.steps.notes]
    quality: DataQuality = msgspec.structs.replace(seen.quality, notes=left)
    outside = seen.facts.profiler_overhead
    # An attached nsys slows the steps outside of its capture, too.
    untraced = outside.outside_ms if outside is not None and found.format == "kineto" else None
    intended = seen.job.config.profiling.intended_mistakes if seen.job.config is not None else ()
    lines = replayed(found.ranks, expected, untraced)
    weight = weighed(lines, intended=intended, untraced_ms=untraced)
    made = replace(
        seen,
        facts=replace(seen.facts, **weight),
        steps=replace(steps, source="step records and traces", between_share=seen.steps.between_share),
        host=replace(seen.host, idle=host.idle),
        monitored=replace(seen.monitored, utilization=usage),
        model=model,
        quality=quality,
    )
    return _noted(made, source, problems, notes, msgspec.structs.replace(shown, stands=True))


def _noted(
    seen: Observation,
    source: Sequence[str],
    problems: Sequence[Problem],
    notes: Sequence[str],
    shown: TraceTable | None,
) -> Observation:
    """Returns the observation with what is to be said of the traces."""
    before = seen.quality
    quality: DataQuality = msgspec.structs.replace(
        before,
        sources=[*before.sources, *source],
        problems=[*before.problems, *problems],
        notes=[*before.notes, *notes],
    )
    return replace(seen, quality=quality, facts=replace(seen.facts, traces=shown))


def _step_parts(
    found: TraceCapture,
    expected: int | None,
    nodes: Mapping[int, str],
    names: Mapping[int, str] | None = None,
) -> tuple[ObservedSteps, ObservedHost, Modelled, list[Problem]]:
    """Returns where the traced step goes, what tells of its host, its replay, and why ranks have none.

    Args:
        found: the traces.
        expected: ranks of the job.
        nodes: each rank's node.
        names: each rank's host by the records, for traces that do not name it.
    """
    rows, unusable = breakdown_rows(found)
    collectives = collectives_of(found, expected)
    charged = charges(collectives, found)
    waits = charged if isinstance(charged, BlameTable) else None
    rows = [
        row if row.host else msgspec.structs.replace(row, host=(names or {}).get(row.rank))
        for row in with_waits(rows, waits)
    ]
    costs = rank_costs(rows, waits)
    shown = [
        row
        if row.host_work_ms is None or row.wait_ms is None
        else msgspec.structs.replace(row, own_host_wait_ms=item.own_host_wait_ms)
        for row, item in zip(rows, costs, strict=True)
    ]
    steps = ObservedSteps(
        breakdown=BreakdownTable(steps=len(found.steps), per_rank=shown, timing=found.format),
        costs=costs,
        waits=waits,
        blame_absent=charged if isinstance(charged, str) else None,
        unseen=tuple(unseen_times(found)),
        of_capture=found.short,
        traced=True,
        loader_marked=loader_marked(found),
        source=_SOURCE,
        files=sources(found),
        notes=tuple(notes_of(found, charged, expected)),
    )
    model = modelled(collectives, found.steps, [row.step_ms for row in rows], nodes, found.host_ns())
    return steps, ObservedHost(idle=host_idle(found)), model, unusable


def _steady(found: TraceCapture, recorded: Recorded) -> tuple[TraceCapture, Numbered]:
    """Returns the capture with the records' step numbers, only its steady steps to be counted."""
    steps = numbered(found.ranks, recorded.by_rank, recorded.boots)
    made = capture(steps.summaries) if steps.counted is not None else found
    return replace(made, steps=steps.kept(made.steps), problems=found.problems), steps


def _unfit(
    found: TraceCapture, rows: Sequence[RankBreakdown], expected: int | None, policy: Policy
) -> str | None:
    """Returns why the traces cannot stand for the run; None if they can."""
    lost = sorted(set(range(expected or 0)) - set(found.work))
    blind = {item.rank for item in found.ranks if not item.gpu_events}
    if lost and blind.issuperset(lost):
        return f"the traces of {rank_words(lost)} hold nothing that ran on a GPU"
    if expected is None or lost:
        return f"{rank_words(lost)} left no trace with whole steps" if lost else "ranks are missing"
    if len(rows) < len(found.ranks):
        return "communication is not classified on some ranks"
    if len(found.steps) < policy.min_steady_steps:
        common = plural(len(found.steps), "whole step")
        return f"all ranks have {common} in common that count, {policy.min_steady_steps} are needed"
    return None
