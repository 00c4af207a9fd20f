"""A run's page: everything that its figure and its section show, as one record."""

from __future__ import annotations

import msgspec

from aorta.artefacts.analysis import Analysis
from aorta.artefacts.page import Excerpt, Page, UtilizationOverTime
from aorta.diagnosis.analyse import clocks
from aorta.readers.run import RunData
from aorta.report import content, parts, series
from aorta.report.confidence import confidence
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


def bare_page(analysis: Analysis) -> Page:
    """The page of an analysis that has no run directory behind it, such as that of raw traces."""
    main = content.main_finding(analysis)
    worst, costly = parts.worst_ranks(analysis)
    price = content.cost(analysis, main) if main is not None else None
    return Page(
        scenario=analysis.scenario,
        job_id=analysis.job_id,
        step_ms=content.step_ms(analysis),
        cost_ms=price[0] if price is not None else None,
        cost_pct=price[1] if price is not None else None,
        confidence=confidence(analysis, main, shared=content.spreads_one_machine(analysis)),
        parts=parts.step_parts(analysis),
        ranks=len(analysis.breakdown.per_rank),
        heat_map=parts.heat_map(analysis),
        worst_ranks=worst,
        costly_ranks=costly,
        excerpt=None,
        excerpt_absent="not measured: no step records",
        steps=None,
        utilization=UtilizationOverTime(strips=[], window_s=None, absent="not measured: no monitor samples"),
    )
