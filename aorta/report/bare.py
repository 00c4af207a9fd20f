"""The page of an analysis alone. It imports neither pandas nor what reads a run: raw traces have none."""

from __future__ import annotations

from aorta.artefacts.analysis import Analysis
from aorta.artefacts.page import RunPage, UtilizationOverTime
from aorta.report import content, parts
from aorta.report.confidence import confidence
from aorta.report.mesh import worker_heat


def bare_page(analysis: Analysis) -> RunPage:
    """The page of an analysis that has no run directory behind it, such as that of raw traces."""
    main = content.main_finding(analysis)
    worst, costly = parts.worst_ranks(analysis)
    price = content.cost(analysis, main) if main is not None else None
    return RunPage(
        scenario=analysis.scenario,
        job_id=analysis.job_id,
        step_ms=content.step_ms(analysis),
        cost_ms=price[0] if price is not None else None,
        cost_pct=price[1] if price is not None else None,
        confidence=confidence(analysis, main, shared=content.spreads_one_machine(analysis)),
        parts=parts.step_parts(analysis),
        ranks=len(analysis.breakdown.per_rank),
        heat_map=parts.heat_map(analysis),
        workers=worker_heat(analysis.slowdown),
        worst_ranks=worst,
        costly_ranks=costly,
        excerpt=None,
        excerpt_absent="not measured: no step records",
        steps=None,
        utilization=UtilizationOverTime(strips=[], window_s=None, absent="not measured: no monitor samples"),
    )
