"""Raw traces and samples to an `Analysis`: the same rules as for a run, on the GPU's own timeline."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import msgspec
import numpy as np

from aorta.artefacts.analysis import (
    Analysis,
    BreakdownTable,
    DataQuality,
    Problem,
    RankBreakdown,
    Utilization,
)
from aorta.artefacts.events import Kind, Role, Trace
from aorta.diagnosis.context import Context, HostIdle
from aorta.diagnosis.policy import Policy
from aorta.diagnosis.rank import blame_list, rank_costs, rank_words
from aorta.diagnosis.rules import TRACE_RULES
from aorta.diagnosis.trace_samples import capture_utilization
from aorta.diagnosis.verdict import conclude
from aorta.metrics.blame import BlameTable, blame
from aorta.metrics.collectives import match_timelines
from aorta.metrics.trace_breakdown import break_down, rank_record
from aorta.metrics.trace_idle import idle_causes, idle_gaps, launches_in, queue_depth
from aorta.metrics.trace_work import GpuWork, common_steps, gpu_work, impossible_share, only
from aorta.metrics.utilization import effective_gpu_utilization
from aorta.readers.sample_files import SampleFile
from aorta.readers.traces import TraceSet
from aorta.units import NS_PER_MS

_RECORDS = "usable traces"
_IMPOSSIBLE = 0.1
"""Share of matches that cannot be true above which none is believed."""


@dataclass(frozen=True, slots=True)
class _Capture:
    """The traces of one format: one run of the job."""

    format: str
    traces: tuple[Trace, ...]
    work: Mapping[int, GpuWork]
    steps: tuple[int, ...]
    """Whole steps common to all ranks."""

    def words(self) -> str:
        ranks = "1 rank" if len(self.traces) == 1 else f"{len(self.traces)} ranks"
        steps = "1 whole step" if len(self.steps) == 1 else f"{len(self.steps)} whole steps"
        return f"{self.format} ({ranks}, {steps})"


def analyse_traces(
    found: TraceSet, samples: Sequence[SampleFile] = (), problems: Sequence[Problem] = ()
) -> Analysis:
    """Metrics, findings and verdict of the ranks' traces.

    Args:
        found: traces by format and rank.
        samples: of GPUs and hosts while they were made.
        problems: what was wrong with the samples.

    Traces of several formats are of several runs of one job: the format with the most ranks, then the most
    steps, is analysed; if another one leads to a different verdict, a note says so.
    """
    formats = sorted({trace.format for trace in found.traces})
    captures = [_capture(name, found.of_format(name)) for name in formats]
    captures.sort(key=lambda item: (-len(item.work), -len(item.steps), item.format))
    all_problems = (*found.problems, *problems)
    chosen, *others = [_analyse(item, samples, all_problems) for item in captures]
    notes = [
        _beside(captures[0], item, chosen, other) for item, other in zip(captures[1:], others, strict=True)
    ]
    quality = msgspec.structs.replace(chosen.data_quality, notes=[*notes, *chosen.data_quality.notes])
    return msgspec.structs.replace(chosen, data_quality=quality)


def _capture(name: str, traces: tuple[Trace, ...]) -> _Capture:
    work = gpu_work(traces)
    return _Capture(name, traces, work, common_steps(work))


def _beside(used: _Capture, other: _Capture, chosen: Analysis, analysed: Analysis) -> str:
    text = f"the breakdown is of {used.words()}, not of {other.words()}: they are different runs"
    mine, its = chosen.verdict, analysed.verdict
    if its.kind == "insufficient_data" or (mine.kind, mine.ranks) == (its.kind, its.ranks):
        return text
    whose = f" on {rank_words(its.ranks)}" if its.ranks else ""
    return f"{text}; they contradict each other: {other.format} alone gives {its.kind}{whose}"


def _analyse(capture: _Capture, samples: Sequence[SampleFile], problems: Sequence[Problem]) -> Analysis:
    policy, seen = Policy.of_traces(), sorted(capture.work)
    expected, basis = _expected(capture)
    missing = expected is None or len(seen) < expected
    rows, unusable = _rows(capture)
    charged = _blame(capture, expected)
    waits = charged if isinstance(charged, BlameTable) else None
    rows = [_with_waits(row, waits) for row in rows]
    breakdown = BreakdownTable(steps=len(capture.steps), per_rank=rows, timing=capture.format)
    hosts = {rank: item.trace.host_name for rank, item in capture.work.items() if item.trace.host_name}
    usage, said = _utilization(capture, samples, rows)
    context = Context(
        policy=policy,
        config=None,
        cuda=True,
        world_size=expected or max(len(seen), 2),
        breakdown=breakdown,
        costs=rank_costs(rows, waits),
        blame_absent=charged if isinstance(charged, str) else None,
        utilization=usage,
        allocator_peak_pct=None,
        memory_estimate=None,
        hosts=hosts,
        cpus_usable=None,
        records=_RECORDS,
        files=tuple(dict.fromkeys(item.trace.source for item in capture.work.values())),
        sample_files=tuple(str(item.path) for item in samples if item.kind == "gpu"),
        loader_marked=_loader_marked(capture),
        idle=_host_idle(capture),
        ranks_missing=missing,
    )
    quality = DataQuality(
        ranks_expected=expected,
        ranks_seen=len(seen),
        sources=_sources(capture, samples),
        problems=[*problems, *unusable, *_missing(seen, expected)],
        nodes_expected=None,
        nodes_seen=len(set(hosts.values())),
        steady_steps=len(capture.steps),
        notes=[*basis, *_notes(capture, charged, expected), *said],
    )
    verdict, findings, measured = conclude(TRACE_RULES, context, quality)
    return Analysis(
        scenario=None,
        job_id=None,
        nodes=len(set(hosts.values())) if len(hosts) == len(seen) and seen else None,
        world_size=expected,
        verdict=verdict,
        findings=findings,
        measured=measured,
        breakdown=breakdown,
        blame=blame_list(waits),
        throughput=None,
        utilization=usage,
        data_quality=quality,
        thresholds=policy.as_dict(),
        device="cuda",
    )


def _expected(capture: _Capture) -> tuple[int | None, list[str]]:
    """How many ranks there are, and what a reader must know about that number."""
    ranks = sorted(trace.rank for trace in capture.traces if trace.rank is not None)
    recorded = [trace.world_size for trace in capture.traces if trace.world_size]
    recorded += [int(trace.collectives.group_size.max(initial=0)) for trace in capture.traces]
    size = max(recorded, default=0)
    if size:
        return max(size, ranks[-1] + 1), []
    alone = not any((trace.gpu.kind == Kind.COMMUNICATION).any() for trace in capture.traces)
    if alone and ranks == [0]:
        return 1, []
    if len(ranks) > 1 and ranks == list(range(len(ranks))):
        return len(ranks), [f"the traces do not say how many ranks there are: 0 to {ranks[-1]} count as all"]
    return None, ["the traces do not say how many ranks there are"]


def _rows(capture: _Capture) -> tuple[list[RankBreakdown], list[Problem]]:
    """The breakdown of each rank over the common steps; of the whole capture where there are none."""
    rows, problems = [], []
    for trace in capture.traces:
        item = capture.work.get(trace.rank) if trace.rank is not None else None
        made = break_down(trace, only(item.steps, capture.steps) if item and capture.steps else None)
        if item is None or made is None:
            reason = "it has no GPU events and steps that could be broken down"
        else:
            row = rank_record(made, trace.host_name)
            if row is not None:
                rows.append(row)
                continue
            reason = made.reason or "its rank is not known"
        problems.append(Problem(file=trace.source, reason=reason))
    return rows, problems


def _blame(capture: _Capture, expected: int | None) -> BlameTable | str:
    """Waits charged to ranks, or why they cannot be."""
    work, steps = capture.work, capture.steps
    if expected is None or len(work) < expected:
        return "traces of ranks are missing, and waiting for those cannot be told from transfer"
    if len(work) < 2 or not steps:
        return "fewer than two ranks have whole steps in common"
    lines = {rank: item.timeline for rank, item in work.items()}
    # Clocks of one file are one; whether two files' are cannot be told.
    collectives = match_timelines(lines, {rank: item.trace.source for rank, item in work.items()})
    if isinstance(collectives, str):
        return collectives
    if impossible_share(collectives) > _IMPOSSIBLE:
        return (
            "collectives of one place in their steps do not overlap in time: they are of several groups, "
            "which the traces do not name"
        )
    return blame(collectives, steps)


def _with_waits(row: RankBreakdown, waits: BlameTable | None) -> RankBreakdown:
    if waits is None:
        return row
    wait = min(waits.wait_ns[row.rank] / waits.steps / NS_PER_MS, row.comm_ms)
    return msgspec.structs.replace(row, wait_ms=wait, transfer_ms=row.comm_ms - wait)


def _loader_marked(capture: _Capture) -> bool:
    """Whether any rank's trace names a loader or data range: without one, its time is the host's."""
    return any(len(item.trace.host.intervals(Role.LOADER, Role.DATA)) for item in capture.work.values())


def _host_idle(capture: _Capture) -> HostIdle | None:
    """Means over the ranks that have whole steps."""
    if not capture.steps:
        return None
    sums: list[tuple[float, float, float, float]] = []
    empty: list[float] = []
    for item in capture.work.values():
        steps = only(item.steps, capture.steps)
        gaps, causes, depth = (
            idle_gaps(item.trace, steps),
            idle_causes(item.trace, steps),
            queue_depth(item.trace),
        )
        sums.append(
            (
                float(gaps.short_ns.mean()) / NS_PER_MS,
                float(gaps.long_ns.mean()) / NS_PER_MS,
                float(causes.sync_ns.mean()) / NS_PER_MS if causes is not None else 0.0,
                float(launches_in(item.trace, steps).mean()),
            )
        )
        if depth is not None:
            empty.append(depth.empty_share)
    short, long, sync, launches = (fmean(column) for column in zip(*sums, strict=True))
    return HostIdle(short, long, sync, launches, fmean(empty) if empty else None)


def _utilization(
    capture: _Capture, samples: Sequence[SampleFile], rows: list[RankBreakdown]
) -> tuple[Utilization | None, list[str]]:
    effective = effective_gpu_utilization(rows)
    spans = []
    for item in capture.work.values():
        windows = only(item.steps, capture.steps).windows
        if len(windows) and item.trace.epoch_ns is not None:
            spans.append(windows + item.trace.epoch_ns)
    window = None
    if spans and len(spans) == len(capture.work):
        joined = np.concatenate(spans)
        window = int(joined[:, 0].min()), int(joined[:, 1].max())
    return capture_utilization(samples, window, effective, len(capture.work))


def _missing(seen: Sequence[int], expected: int | None) -> list[Problem]:
    lost = [rank for rank in range(expected or 0) if rank not in seen]
    return [Problem(file=None, reason=f"{rank_words(lost)} left no {_RECORDS}")] if lost and seen else []


def _notes(capture: _Capture, charged: BlameTable | str, expected: int | None) -> list[str]:
    alike: dict[str, list[str]] = {}
    for trace in capture.traces:
        for note in trace.notes:
            alike.setdefault(re.sub(r"\d+", "#", note), []).append(note)
    notes = [
        same[0] + (f" (and {len(same) - 1} more like this)" if len(same) > 1 else "")
        for same in alike.values()
    ]
    bases = dict.fromkeys(item.steps.basis for item in capture.work.values())
    notes += [f"steps are {basis}" for basis in bases]
    if isinstance(charged, str):
        if expected != 1:
            notes.append(f"waits are not charged to ranks: {charged}")
        return notes
    if charged.unmatched:
        notes.append(f"{charged.unmatched} collectives have no partner on another rank: not blamed")
    edges = sum(item.edge_calls for item in capture.work.values())
    if edges:
        notes.append(
            f"{edges} communication kernels at the edges of the captures belong to no whole step: not blamed"
        )
    return notes


def _sources(capture: _Capture, samples: Sequence[SampleFile]) -> list[str]:
    return [capture.words(), *(f"{item.path.name} ({len(item.table)} samples)" for item in samples)]
