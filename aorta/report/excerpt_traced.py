"""One step of several ranks side by side, as it ran on their GPUs: the longest traced one or a typical one.

Records time the parts of a step by windows. If a GPU waits for its host, the windows contain that waiting.
"""

from __future__ import annotations

from collections.abc import Sequence

from aorta.artefacts.analysis import Analysis
from aorta.artefacts.page import Excerpt, ExcerptLane
from aorta.artefacts.reduction import TraceSummary
from aorta.metrics.trace_capture import TraceCapture, capture, captures
from aorta.metrics.trace_summary import latest
from aorta.metrics.trace_work import timelines
from aorta.metrics.traced_steps import numbered
from aorta.readers.run import RunData
from aorta.readers.run_identity import boot_epochs
from aorta.readers.run_traces import RunTraces
from aorta.report.excerpt import (
    FEW_OF_MANY,
    MAX_TIMELINE,
    ChosenStep,
    Did,
    chosen_steps,
    finest,
    segments,
    waits_of,
)
from aorta.report.selection import shown_ranks
from aorta.units import NS_PER_MS


def traced_excerpts(traces: RunTraces, data: RunData, analysis: Analysis) -> list[Excerpt]:
    """The longest traced step and a typical one, on one clock; empty if the breakdown is not of traces."""
    table = analysis.traces
    if table is None or not table.stands:
        return []
    rows, note = _shown(analysis)
    mine = [item for item in traces.summaries if item.rank in rows and item.format == table.format]
    steps = numbered(mine, data.records.by_rank, boot_epochs(data))
    whole = capture(steps.summaries)
    return _excerpts(whole, steps.kept(whole.steps), rows, note)


def capture_excerpts(summaries: Sequence[TraceSummary], analysis: Analysis) -> list[Excerpt]:
    """The longest step of raw traces and a typical one, each on one clock; empty without a step in common."""
    rows, note = _shown(analysis)
    if not rows:
        return []
    found = captures(summaries)[0]
    whole = capture([item for item in found.ranks if item.rank in rows])
    return _excerpts(whole, whole.steps, rows, note)


def _shown(analysis: Analysis) -> tuple[dict[int, str | None], str]:
    """The ranks to show with their hosts, and which they are where not all are shown."""
    ranks = analysis.breakdown.per_rank
    limit = FEW_OF_MANY if len(ranks) > MAX_TIMELINE else MAX_TIMELINE
    rows, note = shown_ranks(ranks, analysis.verdict.ranks, limit)
    return {row.rank: row.host for row in rows}, note


def _excerpts(
    whole: TraceCapture, steps: tuple[int, ...], hosts: dict[int, str | None], note: str
) -> list[Excerpt]:
    lengths = {step: ns / NS_PER_MS for step, ns in _lengths(whole, steps).items()}
    return [_excerpt(whole, chosen, hosts, note) for chosen in chosen_steps(lengths)]


def _excerpt(whole: TraceCapture, chosen: ChosenStep, hosts: dict[int, str | None], note: str) -> Excerpt:
    ranks = [item for item in whole.ranks if item.rank in whole.work]
    found = capture([latest(item, {chosen.number}) for item in ranks])
    lanes, alone = _lanes(found, chosen.number, hosts)
    return Excerpt(
        global_step=chosen.number,
        step_ms=chosen.ms,
        median_ms=chosen.median_ms,
        lanes=lanes,
        note="; ".join(part for part in (note, alone) if part),
        traced=True,
        typical=chosen.typical,
    )


def _lengths(found: TraceCapture, steps: tuple[int, ...]) -> dict[int, int]:
    """The ns that the slowest of these ranks took for each of `steps`."""
    lengths = dict.fromkeys(steps, 0)
    for summary in found.ranks:
        for step in summary.steps:
            if step.number in lengths and summary.rank in found.work:
                lengths[step.number] = max(lengths[step.number], step.end_ns - step.start_ns)
    return lengths


def _lanes(found: TraceCapture, number: int, hosts: dict[int, str | None]) -> tuple[list[ExcerptLane], str]:
    """The ranks in that step, from the first one's start; or each from its own, and why."""
    placed = found.collectives(len(found.work))
    if isinstance(placed, str):
        lines, waits, reason = timelines(found.work), None, f"each rank from its own start: {placed}"
        zeros = {rank: line.starts[number] for rank, line in lines.items()}
    else:
        lines, reason = dict(placed.timelines), ""
        waits = waits_of(placed, dict.fromkeys(lines, 0))
        zeros = dict.fromkeys(lines, min(line.starts[number] for line in lines.values()))
    lanes = []
    for rank, line in sorted(lines.items()):
        did = Did(
            span=(line.starts[number], line.ends[number]),
            compute=line.compute,
            communication=line.communication,
            data=line.data,
            waits=waits.get(rank) if waits is not None else None,
        )
        lanes.append(
            ExcerptLane(rank=rank, host=hosts[rank], segments=segments(did, zeros[rank], finest(len(lines))))
        )
    return lanes, reason
