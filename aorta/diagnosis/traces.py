"""Raw traces and samples to an `Analysis`: the same rules as for a run, on the GPU's own timeline."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import msgspec

from aorta.artefacts.analysis import (
    Analysis,
    BreakdownTable,
    DataQuality,
    Problem,
    RankBreakdown,
    Utilization,
)
from aorta.artefacts.reduction import TraceSummary
from aorta.artefacts.traced import TraceTable
from aorta.diagnosis.context import Context, HostIdle
from aorta.diagnosis.model import modelled
from aorta.diagnosis.policy import Policy
from aorta.diagnosis.rank import blame_list, rank_costs, rank_words
from aorta.diagnosis.rules import RULES
from aorta.diagnosis.trace_samples import capture_utilization
from aorta.diagnosis.traced_weight import profiler_weight
from aorta.diagnosis.verdict import conclude
from aorta.errors import ArtefactError
from aorta.metrics.blame import BlameTable, blame
from aorta.metrics.collectives import Collectives as CollectiveSet
from aorta.metrics.collectives import match_timelines
from aorta.metrics.trace_summary import breakdown_row, counted, mean_ms, rank_trace, work_of
from aorta.metrics.trace_work import GpuWork, common_steps, impossible_share, timelines
from aorta.metrics.utilization import effective_gpu_utilization
from aorta.readers.sample_files import SampleFile
from aorta.units import NS_PER_MS, plural

_RECORDS = "usable traces"
_CLAUSE = re.compile(r"; |, (?=on the GPU )")
"""Between what is said of where steps come from."""
_IMPOSSIBLE = 0.1
"""Share of matches that cannot be true above which none is believed."""


@dataclass(frozen=True, slots=True)
class Capture:
    """The summaries of one format: one run of the job."""

    format: str
    ranks: tuple[TraceSummary, ...]
    work: Mapping[int, GpuWork]
    """Of the ranks with whole steps."""
    steps: tuple[int, ...]
    """Whole steps common to all ranks."""
    problems: tuple[Problem, ...]

    def words(self) -> str:
        """Format, ranks and steps."""
        ranks, steps = plural(len(self.ranks), "rank"), plural(len(self.steps), "whole step")
        return f"{self.format} ({ranks}, {steps})"

    def host_ns(self) -> dict[int, float]:
        """What each rank's host works in a step, the mean over the common steps; ranks whose trace does not
        tell are not in it.
        """
        found = {}
        for summary in self.ranks:
            own = [step.host_work_ns for step in summary.steps if step.number in self.steps]
            known = [ns for ns in own if ns is not None]
            if known and len(known) == len(own):
                found[summary.rank] = fmean(known)
        return found


def analyse_traces(
    summaries: Sequence[TraceSummary],
    samples: Sequence[SampleFile] = (),
    problems: Sequence[Problem] = (),
) -> Analysis:
    """Metrics, findings and verdict of the ranks' traces.

    Args:
        summaries: of each format and rank one.
        samples: of GPUs and hosts while they were made.
        problems: what was wrong with other traces and with the samples.

    Traces of several formats are of several runs of one job: the format with the most ranks, then the most
    steps, is analysed; if another one leads to a different verdict, a note says so.
    """
    found = captures(summaries)
    every = [problem for summary in summaries for problem in summary.problems]
    chosen, *others = [_analyse(item, samples, [*every, *problems]) for item in found]
    notes = [_beside(found[0], item, chosen, other) for item, other in zip(found[1:], others, strict=True)]
    quality = msgspec.structs.replace(chosen.data_quality, notes=[*notes, *chosen.data_quality.notes])
    return msgspec.structs.replace(chosen, data_quality=quality)


def captures(summaries: Sequence[TraceSummary]) -> list[Capture]:
    """The summaries by format, the one with the most ranks, then the most steps, first."""
    formats = sorted({summary.format for summary in summaries})
    found = [capture([item for item in summaries if item.format == name]) for name in formats]
    return sorted(found, key=lambda item: (-len(item.work), -len(item.steps), item.format))


def capture(summaries: Sequence[TraceSummary]) -> Capture:
    """The summaries of one format; one that contradicts itself is a problem."""
    good, work, problems = [], {}, []
    for summary in sorted(summaries, key=lambda item: item.rank):
        try:
            mine = work_of(summary)
        except ArtefactError as error:
            problems.append(Problem(file=summary.source, reason=error.message))
            continue
        good.append(summary)
        if mine is not None:
            work[summary.rank] = mine
    return Capture(summaries[0].format, tuple(good), work, common_steps(work), tuple(problems))


def _beside(used: Capture, other: Capture, chosen: Analysis, analysed: Analysis) -> str:
    text = f"the breakdown is of {used.words()}, not of {other.words()}: they are different runs"
    mine, its = chosen.verdict, analysed.verdict
    if its.kind == "insufficient_data" or (mine.kind, mine.ranks) == (its.kind, its.ranks):
        return text
    whose = f" on {rank_words(its.ranks)}" if its.ranks else ""
    return f"{text}; they contradict each other: {other.format} alone gives {its.kind}{whose}"


def _analyse(found: Capture, samples: Sequence[SampleFile], problems: Sequence[Problem]) -> Analysis:
    seen = sorted(found.work)
    expected, assumed = _expected(found)
    rows, unusable = breakdown_rows(found)
    collectives = collectives_of(found, expected)
    charged = charges(collectives, found)
    waits = charged if isinstance(charged, BlameTable) else None
    rows = with_waits(rows, waits)
    hosts = {item.rank: item.host for item in found.ranks if item.host and item.rank in found.work}
    usage, said = _utilization(found, samples, rows)
    model = modelled(collectives, found.steps, [row.step_ms for row in rows], hosts, found.host_ns())
    context = replace(
        traced_context(found, rows, charged, expected),
        utilization=usage,
        hosts=hosts,
        sample_files=tuple(str(item.path) for item in samples if item.kind == "gpu"),
        model=model,
    )
    quality = DataQuality(
        ranks_expected=expected,
        ranks_seen=len(seen),
        sources=_sources(found, samples),
        problems=[*problems, *found.problems, *unusable, *_missing(seen, expected)],
        nodes_expected=None,
        nodes_seen=len(set(hosts.values())),
        steady_steps=len(found.steps),
        notes=[*_size_note(found, expected, assumed=assumed), *notes_of(found, charged, expected), *said],
        ranks_assumed=assumed,
    )
    made = conclude(RULES, context, quality)
    return Analysis(
        scenario=None,
        job_id=None,
        nodes=len(set(hosts.values())) if len(hosts) == len(seen) and seen else None,
        world_size=expected,
        verdict=made.verdict,
        findings=made.findings,
        measured=made.measured,
        breakdown=context.breakdown,
        blame=blame_list(waits),
        throughput=None,
        utilization=usage,
        data_quality=quality,
        thresholds=context.policy.as_dict(),
        device="cuda",
        traces=table(found),
        profiler_weight=profiler_weight(found.ranks, expected),
        replay=model.record(made.predictions),
        pop=model.pop(context.breakdown.per_rank, cuda=True),
        lateness=model.lateness,
        clocks=list(model.clocks),
    )


def traced_context(
    found: Capture, rows: list[RankBreakdown], charged: BlameTable | str, expected: int | None
) -> Context:
    """What the rules look at, as far as traces alone tell it."""
    ranks = len(found.work)
    costs = rank_costs(rows, charged if isinstance(charged, BlameTable) else None)
    rows = [
        row
        if row.host_work_ms is None or row.wait_ms is None
        else msgspec.structs.replace(row, own_host_wait_ms=item.own_host_wait_ms)
        for row, item in zip(rows, costs, strict=True)
    ]
    return Context(
        policy=Policy.of_traces(),
        config=None,
        cuda=True,
        world_size=expected or max(ranks, 2),
        breakdown=BreakdownTable(steps=len(found.steps), per_rank=rows, timing=found.format),
        costs=costs,
        blame_absent=charged if isinstance(charged, str) else None,
        utilization=None,
        allocator=None,
        memory_estimate=None,
        hosts={},
        cpus_usable=None,
        records=_RECORDS,
        files=sources(found),
        loader_marked=loader_marked(found),
        idle=host_idle(found),
        ranks_missing=expected is None or ranks < expected,
    )


def sources(found: Capture) -> tuple[str, ...]:
    """The files of the ranks with whole steps."""
    return tuple(dict.fromkeys(item.source for item in found.ranks if item.rank in found.work))


def table(found: Capture) -> TraceTable:
    """What the analysis shows of each rank beside its breakdown."""
    rows = [row for item in found.ranks if (row := rank_trace(item, found.steps)) is not None]
    return TraceTable(format=found.format, per_rank=rows)


def _expected(found: Capture) -> tuple[int | None, bool]:
    """How many ranks there are, and whether that is only assumed."""
    ranks = [item.rank for item in found.ranks]
    if not ranks:
        return None, False
    size = max((item.world_size for item in found.ranks if item.world_size), default=0)
    if size:
        return max(size, ranks[-1] + 1), False
    alone = not any(item.communication_events for item in found.ranks)
    if alone and ranks == [0]:
        return 1, False
    if len(ranks) > 1 and ranks == list(range(len(ranks))):
        return len(ranks), True
    return None, False


def _size_note(found: Capture, expected: int | None, *, assumed: bool) -> list[str]:
    if assumed:
        last = found.ranks[-1].rank
        return [f"the traces do not say how many ranks there are: 0 to {last} count as all"]
    return ["the traces do not say how many ranks there are"] if found.ranks and expected is None else []


def breakdown_rows(found: Capture) -> tuple[list[RankBreakdown], list[Problem]]:
    """The breakdown of each rank over the common steps, of its own steps where there are none; and why some
    ranks have none.
    """
    rows, problems, hosts = [], [], found.host_ns()
    for summary in found.ranks:
        row = breakdown_row(summary, found.steps)
        if row is not None:
            works = hosts.get(summary.rank)
            work_ms = None if works is None else works / NS_PER_MS
            rows.append(msgspec.structs.replace(row, host_work_ms=work_ms))
            continue
        reason = "it has no GPU events and steps that could be broken down"
        if summary.steps and summary.unknown is not None:
            reason = summary.unknown
        problems.append(Problem(file=summary.source, reason=reason))
    return rows, problems


def charges(collectives: CollectiveSet | str, found: Capture) -> BlameTable | str:
    """Waits charged to ranks, or why they cannot be."""
    if isinstance(collectives, str):
        return collectives
    if len(collectives.timelines) < 2:
        return "fewer than two ranks have whole steps in common"
    return blame(collectives, found.steps)


def collectives_of(found: Capture, expected: int | None) -> CollectiveSet | str:
    """All ranks on one clock with their collectives, or why they cannot be."""
    work, steps = found.work, found.steps
    if expected is None or len(work) < expected:
        return "traces of ranks are missing, and waiting for those cannot be told from transfer"
    if not work or not steps:
        return "fewer than two ranks have whole steps in common"
    # Clocks of one file are one; whether two files' are cannot be told.
    collectives = match_timelines(timelines(work), {item.rank: item.source for item in found.ranks})
    if isinstance(collectives, str):
        return collectives
    if impossible_share(collectives) > _IMPOSSIBLE:
        return (
            "collectives of one place in their steps do not overlap in time: they are of several groups, "
            "which the traces do not name"
        )
    return collectives


def with_waits(rows: Sequence[RankBreakdown], waits: BlameTable | None) -> list[RankBreakdown]:
    """The rows with each rank's wait and transfer, where they are known."""
    return [_with_waits(row, waits) for row in rows]


def _with_waits(row: RankBreakdown, waits: BlameTable | None) -> RankBreakdown:
    if waits is None:
        return row
    wait = min(waits.wait_ns[row.rank] / waits.steps / NS_PER_MS, row.comm_ms)
    return msgspec.structs.replace(row, wait_ms=wait, transfer_ms=row.comm_ms - wait)


def loader_marked(found: Capture) -> bool:
    """Whether any rank's trace names a loader or data range: without one, its time is the host's."""
    return any(item.loader_marked for item in found.ranks if item.rank in found.work)


def host_idle(found: Capture) -> HostIdle | None:
    """Means over the ranks that have whole steps."""
    if not found.steps:
        return None
    used = [item for item in found.ranks if item.rank in found.work]
    steps = [counted(item, found.steps) for item in used]
    gaps = [mean_ms(mine, lambda step: step.short_gaps_ns + step.long_gaps_ns) for mine in steps]
    # Behind a wait for another rank every queue is full: the ranks whose GPUs idle tell how launches come.
    empty = [
        (item.queue_depth.empty_share, idle)
        for item, idle in zip(used, gaps, strict=True)
        if item.queue_depth is not None
    ]
    return HostIdle(
        short_gaps_ms=fmean(mean_ms(mine, lambda step: step.short_gaps_ns) for mine in steps),
        long_gaps_ms=fmean(mean_ms(mine, lambda step: step.long_gaps_ns) for mine in steps),
        sync_ms=fmean(mean_ms(mine, lambda step: step.idle_sync_ns) for mine in steps),
        launches=fmean(fmean(step.launches for step in mine) for mine in steps),
        empty_share=_weighted(empty),
    )


def _weighted(pairs: Sequence[tuple[float, float]]) -> float | None:
    """The mean of values with weights, of equal ones where all are 0; None of nothing."""
    if not pairs:
        return None
    whole = sum(weight for _, weight in pairs)
    if not whole:
        return fmean(value for value, _ in pairs)
    return sum(value * weight for value, weight in pairs) / whole


def _utilization(
    found: Capture, samples: Sequence[SampleFile], rows: list[RankBreakdown]
) -> tuple[Utilization | None, list[str]]:
    effective = effective_gpu_utilization(rows)
    spans = [
        (step.start_ns + item.epoch_ns, step.end_ns + item.epoch_ns)
        for item in found.ranks
        if item.rank in found.work and item.epoch_ns is not None
        for step in counted(item, found.steps)
    ]
    window = None
    if found.steps and all(item.epoch_ns is not None for item in found.ranks if item.rank in found.work):
        window = min(start for start, _ in spans), max(end for _, end in spans)
    return capture_utilization(samples, window, effective, len(found.work))


def _missing(seen: Sequence[int], expected: int | None) -> list[Problem]:
    lost = [rank for rank in range(expected or 0) if rank not in seen]
    return [Problem(file=None, reason=f"{rank_words(lost)} left no {_RECORDS}")] if lost and seen else []


def notes_of(found: Capture, charged: BlameTable | str, expected: int | None) -> list[str]:
    """What a reader must know of the traces."""
    alike: dict[str, list[str]] = {}
    for summary in found.ranks:
        for note in summary.notes:
            alike.setdefault(re.sub(r"\d+", "#", note), []).append(note)
    notes = [
        same[0] + (f" (and {len(same) - 1} more like this)" if len(same) > 1 else "")
        for same in alike.values()
    ]
    notes += _basis_note({rank: item.steps.basis for rank, item in sorted(found.work.items())})
    if isinstance(charged, str):
        if expected != 1:
            notes.append(f"waits are not charged to ranks: {charged}")
        return notes
    if charged.unmatched:
        lost = plural(charged.unmatched, "collective")
        notes.append(f"{lost} without a partner on another rank: not blamed")
    edges = sum(item.edge_calls for item in found.work.values())
    if edges:
        kernels = plural(edges, "communication kernel")
        notes.append(f"{kernels} at the edges of the captures, of no whole step: not blamed")
    return notes


def _basis_note(bases: Mapping[int, str]) -> list[str]:
    """What the ranks' steps are; what is said of some ranks alone comes last, with those."""
    clauses = {rank: _CLAUSE.split(basis) for rank, basis in bases.items()}
    if not clauses:
        return []
    every = dict.fromkeys(clause for mine in clauses.values() for clause in mine)
    of = {clause: [rank for rank, mine in clauses.items() if clause in mine] for clause in every}
    common = [clause for clause in every if len(of[clause]) == len(clauses)]
    some: dict[tuple[int, ...], list[str]] = {}
    for clause in every:
        if clause not in common:
            some.setdefault(tuple(of[clause]), []).append(clause)
    said = [", ".join(common)] if common else []
    said += [f"of {rank_words(list(ranks))}: {', '.join(words)}" for ranks, words in some.items()]
    return [f"steps are {'; '.join(said)}"]


def _sources(found: Capture, samples: Sequence[SampleFile]) -> list[str]:
    return [found.words(), *(f"{item.path.name} ({plural(len(item.table), 'sample')})" for item in samples)]
