"""A run's page: everything that its figure and its section show, as one record."""

from __future__ import annotations

import msgspec

from aorta.artefacts.analysis import Analysis
from aorta.artefacts.page import Excerpt, RunPage
from aorta.readers.run import RunData
from aorta.readers.run_identity import clocks
from aorta.report import series
from aorta.report.bare import bare_page
from aorta.report.excerpt import cut, excerpt, worst_step


def run_timeline(
    analysis: Analysis, data: RunData, traced: Excerpt | None = None
) -> tuple[Excerpt | None, str]:
    """The longest step of all ranks, from traces if there are any; None and the reason where there is none.

    Args:
        analysis: of the run.
        data: the records of the run.
        traced: the longest traced step, by `traced_excerpt`; None: there is none.
    """
    if traced is not None:
        return traced, ""
    by_rank = data.records.by_rank
    worst = worst_step(series.step_times(by_rank))
    return excerpt(by_rank, clocks(data, by_rank), worst, analysis.verdict.ranks)


def run_page(
    analysis: Analysis, data: RunData, timeline: tuple[Excerpt | None, str] | None = None
) -> RunPage:
    """The page of a run, from its analysis, step records and samples.

    Args:
        analysis: of the run.
        data: the records and samples of the run.
        timeline: as `run_timeline` returns it; None: of the records.
    """
    times = series.step_times(data.records.by_rank)
    shown, absent = timeline or run_timeline(analysis, data)
    return msgspec.structs.replace(
        bare_page(analysis),
        excerpt=cut(shown, analysis.verdict.ranks) if shown is not None else None,
        excerpt_absent=absent,
        steps=series.thinned(times) if times is not None else None,
        utilization=series.utilization_over_time(data),
    )
