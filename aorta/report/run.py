"""The report of one run: `profiling_report.txt`, `profiling_analysis.png` and `.svg`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aorta.artefacts.analysis import Analysis
from aorta.artefacts.io import write_text
from aorta.artefacts.layout import RunDir
from aorta.artefacts.page import Page
from aorta.report import content, evidence
from aorta.report.bare import bare_page
from aorta.report.render import render

if TYPE_CHECKING:
    from aorta.readers.run import RunData

MAX_PROBLEMS = 40
"""Lines of problems in the text; of a thousand nodes each may have one."""


def write_run_report(run: RunDir, analysis: Analysis, page: Page, data: RunData) -> None:
    """Write the text report and the figure beside the run's data; the same inputs give the same bytes.

    `metrics.csv` of a run that has ended gets its utilisation columns, from the samples.
    """
    from aorta.report import style
    from aorta.report.epochs import fill_epochs
    from aorta.report.figure import run_figure

    write_text(run.report, run_text(analysis, page))
    with style.styled():
        style.save(run_figure(analysis, page), run.plot_png, run.plot_svg)
    fill_epochs(run, analysis, data)


def run_text(analysis: Analysis, page: Page | None = None) -> str:
    """The report in plain text, at most 100 columns where the data's own words allow it.

    Args:
        analysis: of the run, or of raw traces.
        page: what else is known of a run; None for raw traces.
    """
    page = page or bare_page(analysis)
    finding = content.main_finding(analysis)
    problems = analysis.data_quality.problems
    table, note = content.breakdown_table(analysis)
    return render(
        "profiling_report.txt.j2",
        analysis=analysis,
        heading=content.heading(analysis),
        main=finding,
        cost=content.cost_words(analysis, finding),
        confidence=content.confidence_words(page.confidence),
        quality=content.quality_table(analysis),
        problems=problems[:MAX_PROBLEMS],
        steps=content.counted_steps(analysis),
        more_problems=max(len(problems) - MAX_PROBLEMS, 0),
        parts=evidence.parts_table(page.parts),
        breakdown=table,
        breakdown_note=note,
        timing=content.TIMINGS.get(analysis.breakdown.timing or "", ""),
        spread=evidence.spread_table(analysis.breakdown.per_rank) if content.is_cut(analysis) else None,
        worst=evidence.worst_table(page, analysis),
        lateness=evidence.lateness_table(analysis),
        what_if=evidence.what_if_table(analysis),
        replay=evidence.replay_words(analysis),
        traces=evidence.trace_tables(analysis),
        overhead=evidence.overhead_words(analysis),
        measured=content.measured_table(analysis.measured),
        utilization=content.utilization_rows(analysis),
        definitions=content.DEFINITIONS,
    )
