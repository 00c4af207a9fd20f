"""A run's page: everything that its figure and its section show, as one record."""

from __future__ import annotations

import msgspec

from aorta.artefacts.analysis import Analysis
from aorta.artefacts.page import Excerpt, Page
from aorta.readers.run import RunData
from aorta.readers.run_identity import clocks
from aorta.report import series
from aorta.report.bare import bare_page
from aorta.report.excerpt import excerpt, worst_step


def run_page(analysis: Analysis, data: RunData, traced: Excerpt | None = None) -> Page:
    """What the report shows of a run, from its analysis, step records and samples.

    Args:
        analysis: of the run.
        data: what it is of.
        traced: the longest traced step, by `traced_excerpt`; None: there is none.
    """
    by_rank = data.records.by_rank
    times = series.step_times(by_rank)
    shown, absent = traced, ""
    if shown is None:
        shown, absent = excerpt(by_rank, clocks(data, by_rank), worst_step(times), analysis.verdict.ranks)
    return msgspec.structs.replace(
        bare_page(analysis),
        excerpt=shown,
        excerpt_absent=absent,
        steps=series.thinned(times) if times is not None else None,
        utilization=series.utilization_over_time(data),
    )
