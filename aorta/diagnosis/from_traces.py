"""Makes an observation from the traces of one job: alone, or in place of what a run's records say of the
step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import structs
from msgspec.structs import replace

from aorta.artefacts.analysis import DataQuality, Problem, RunFacts
from aorta.artefacts.traced import TraceTable
from aorta.diagnosis.findings.between_steps import recorded_gaps
from aorta.diagnosis.observation import Observation, ObservedDevices, ObservedJob
from aorta.diagnosis.policy import Policy
from aorta.diagnosis.trace_samples import sampled_beside
from aorta.diagnosis.traced import SOURCE, traced
from aorta.diagnosis.traced_weight import undisturbed, untraced_ms, weighed
from aorta.metrics.trace_capture import TraceCapture, capture, captures
from aorta.metrics.trace_notes import differences, size_notes
from aorta.metrics.traced_mesh import sends, traced_mesh
from aorta.metrics.utilization import effective_gpu_utilization
from aorta.units import plural, rank_words

if TYPE_CHECKING:
    from aorta.readers.run import RunData
    from aorta.readers.run_traces import RunTraces
    from aorta.readers.sample_files import SampleFile


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
    expected, assumed = found.ranks_expected()
    hosts = {item.rank: item.host for item in found.ranks if item.host and item.rank in found.work}
    lines, (made, unusable), weighs, uncertain = undisturbed(
        found, expected, None, lambda undone: traced(undone, expected, hosts, {})
    )
    mesh, missed = traced_mesh(found, expected)
    usage, said = sampled_beside(found, samples, made.steps.breakdown.per_rank)
    said = [missed, *said] if missed else said
    lost = [rank for rank in range(expected or 0) if rank not in seen]
    missing = [Problem(file=None, reason=f"{rank_words(lost)} left no {SOURCE}")] if lost and seen else []
    files = [f"{item.path.name} ({plural(len(item.table), 'sample')})" for item in samples]
    return replace(
        made,
        mesh=mesh,
        steps=replace(made.steps, replay_missed=missed),
        job=ObservedJob(
            cuda=True,
            world_size=expected or max(len(seen), 2),
            hosts=hosts,
            ranks_missing=expected is None or len(seen) < expected,
        ),
        host=replace(made.host, uncertain_ms=uncertain),
        monitored=ObservedDevices(
            utilization=usage,
            sample_files=tuple(str(item.path) for item in samples if item.kind == "gpu"),
        ),
        facts=RunFacts(
            nodes=len(set(hosts.values())) if len(hosts) == len(seen) and seen else None,
            world_size=expected,
            device="cuda" if seen else None,
            started_wall_ns=found.began_ns(),
            traces=found.table(),
            between_steps=recorded_gaps(made.steps),
            **weighed(lines, found.ranks, expected=expected, staged=sends(found.work)),
        ),
        quality=DataQuality(
            ranks_expected=expected,
            ranks_seen=len(seen),
            sources=[found.words(), *files],
            problems=[*problems, *found.problems, *unusable, *missing],
            nodes_seen=len(set(hosts.values())),
            steady_steps=len(found.steps),
            notes=[*size_notes(found, expected, assumed=assumed), *weighs, *made.steps.notes, *said],
            ranks_assumed=assumed,
        ),
    )


def with_traces(seen: Observation, traces: RunTraces, data: RunData, policy: Policy) -> Observation:
    """Returns a run's observation with what its traces add.

    Traces are used for breakdown, waits and host work if every rank has enough whole steps with a known
    breakdown that are steady according to the records. With traces of only some ranks, the waits of the
    others would be unknown. Throughput is always the records'. Otherwise a note says why the breakdown is of
    the records.

    Args:
        seen: the run by its step records.
        traces: of the run's ranks.
        data: the rest of what the run left.
        policy: for traces.
    """
    # Raw traces need not import what reads a run.
    from aorta.metrics.stalls import longest_stall
    from aorta.metrics.traced_steps import numbered
    from aorta.readers.run_identity import boot_epochs, nodes_of

    if not traces.summaries:
        return _noted(seen, None, seen.quality.adding(problems=traces.problems))
    by_rank, expected, whole = data.records.by_rank, data.ranks_expected, captures(traces.summaries)[0]
    steps = numbered(whole.ranks, by_rank, boot_epochs(data))
    found = whole if steps.counted is None else capture(steps.summaries)
    found = replace(found, steps=steps.kept(found.steps), problems=whole.problems)
    # An attached nsys slows the steps outside of its capture, too.
    outside = seen.facts.profiler_overhead
    untraced = untraced_ms(by_rank, steps.first, outside) if found.format == "kineto" else None
    lines, (made, unusable), weighs, uncertain = undisturbed(
        found, expected, untraced, lambda undone: traced(undone, expected, nodes_of(data), seen.job.hosts)
    )
    said, rows = [*traces.notes, *steps.notes, *weighs], made.steps.breakdown.per_rank
    intended = seen.job.config.profiling.intended_mistakes if seen.job.config is not None else ()
    weight = weighed(
        lines,
        found.ranks,
        expected=expected,
        intended=intended,
        untraced_ms=untraced,
        staged=seen.mesh is not None or sends(found.work),
    )
    stall = longest_stall(by_rank, data.stops, steps.around)
    seen = replace(seen, stall=stall, facts=structs.replace(seen.facts, **weight))
    own = [problem for summary in found.ranks for problem in summary.problems]
    problems = list(dict.fromkeys((*traces.problems, *own, *found.problems, *unusable)))
    source = [found.words() + (", reduced in the job" if traces.from_summaries else "")]
    shown = structs.replace(found.table(), from_summaries=traces.from_summaries)
    reason = found.unfit(len(rows), expected, policy.min_steady_steps)
    if reason is not None:
        note = f"the breakdown uses the step records, not the {found.format} traces: {reason}"
        return _noted(seen, shown, seen.quality.adding(source, problems, [*said, note]))
    left = [note for note in seen.quality.notes if note not in seen.steps.notes]
    notes = [*left, *said, *made.steps.notes, *differences(seen.steps.breakdown, rows)]
    mesh, missed = (seen.mesh, None) if seen.mesh is not None else traced_mesh(found, expected)
    notes += [missed] if missed else []
    joined = _in_place(replace(seen, mesh=mesh), made, missed, uncertain)
    quality = structs.replace(seen.quality, notes=notes).adding(source, problems)
    return _noted(joined, structs.replace(shown, stands=True), quality)


def _in_place(seen: Observation, made: Observation, missed: str | None, uncertain_ms: float) -> Observation:
    """Returns the run with step, waits, host and replay of its traces in place of the records'."""
    usage = seen.monitored.utilization
    if usage is not None:
        busy = effective_gpu_utilization(made.steps.breakdown.per_rank)
        usage = structs.replace(usage, effective_gpu_util_pct=busy)
    return replace(
        seen,
        groups=made.groups or seen.groups,
        steps=replace(
            made.steps,
            replay_missed=missed,
            source="step records and traces",
            between_shares=seen.steps.between_shares,
            between_ms=seen.steps.between_ms,
            between_inside=False,
        ),
        host=replace(seen.host, idle=made.host.idle, uncertain_ms=uncertain_ms),
        monitored=replace(seen.monitored, utilization=usage),
        model=made.model,
    )


def _noted(seen: Observation, shown: TraceTable | None, quality: DataQuality) -> Observation:
    return replace(seen, quality=quality, facts=structs.replace(seen.facts, traces=shown))
