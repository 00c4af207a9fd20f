"""One step of several ranks side by side, as it ran on their GPUs: the longest one that their traces hold.

Records time a step's parts by windows; of a GPU that waits for its host, they are of the waiting.
"""

from __future__ import annotations

import statistics
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
from aorta.report.excerpt import FEW_OF_MANY, MAX_TIMELINE, Did, finest, segments, waits_of
from aorta.report.selection import shown_ranks
from aorta.units import NS_PER_MS


def traced_excerpt(traces: RunTraces, data: RunData, analysis: Analysis) -> Excerpt | None:
    """The longest traced step on one clock; None where the breakdown is not of the traces."""
    table = analysis.traces
    if table is None or not table.stands:
        return None
    rows, note = _shown(analysis)
    mine = [item for item in traces.summaries if item.rank in rows and item.format == table.format]
    steps = numbered(mine, data.records.by_rank, boot_epochs(data))
    whole = capture(steps.summaries)
    return _longest(whole, steps.kept(whole.steps), rows, note)


def capture_excerpt(summaries: Sequence[TraceSummary], analysis: Analysis) -> Excerpt | None:
    """The longest step of raw traces on one clock; None where they have no step in common."""
    rows, note = _shown(analysis)
    if not rows:
        return None
    found = captures(summaries)[0]
    whole = capture([item for item in found.ranks if item.rank in rows])
    return _longest(whole, whole.steps, rows, note)


def _shown(analysis: Analysis) -> tuple[dict[int, str | None], str]:
    """The ranks to show with their hosts, and which they are where not all are shown."""
    ranks = analysis.breakdown.per_rank
    limit = FEW_OF_MANY if len(ranks) > MAX_TIMELINE else MAX_TIMELINE
    rows, note = shown_ranks(ranks, analysis.verdict.ranks, limit)
    return {row.rank: row.host for row in rows}, note


def _longest(
    whole: TraceCapture, steps: tuple[int, ...], hosts: dict[int, str | None], note: str
) -> Excerpt | None:
    lengths = _lengths(whole, steps)
    if not lengths:
        return None
    number = max(lengths, key=lambda step: (lengths[step], -step))
    found = capture([latest(item, {number}) for item in whole.ranks if item.rank in whole.work])
    lanes, alone = _lanes(found, number, hosts)
    return Excerpt(
        global_step=number,
        step_ms=lengths[number] / NS_PER_MS,
        median_ms=statistics.median(lengths.values()) / NS_PER_MS,
        lanes=lanes,
        note="; ".join(part for part in (note, alone) if part),
        traced=True,
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
