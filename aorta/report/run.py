"""The report of one run: `profiling_report.txt`, `profiling_analysis.png` and `.svg`."""

from __future__ import annotations

from aorta.artefacts.analysis import Analysis
from aorta.artefacts.io import write_text
from aorta.artefacts.layout import RunDir
from aorta.readers.run import RunData
from aorta.report import content, style
from aorta.report.figure import run_figure
from aorta.report.render import render
from aorta.report.series import run_series


def write_run_report(run: RunDir, analysis: Analysis, data: RunData) -> None:
    """Write the text report and the figure beside the run's data; the same inputs give the same bytes."""
    write_text(run.report, run_text(analysis))
    with style.styled():
        style.save(run_figure(analysis, run_series(data)), run.plot_png, run.plot_svg)


def run_text(analysis: Analysis) -> str:
    """The report in plain text, at most 100 columns where the data's own words allow it."""
    table, note = content.breakdown_table(analysis)
    finding = content.main_finding(analysis)
    return render(
        "profiling_report.txt.j2",
        analysis=analysis,
        heading=content.heading(analysis),
        main=finding,
        cost=content.cost(analysis, finding) if finding is not None else None,
        quality=content.quality_table(analysis.data_quality),
        breakdown=table,
        breakdown_note=note,
        timing=content.TIMINGS.get(analysis.breakdown.timing or "", ""),
        measured=content.measured_table(analysis.measured),
        blame=content.blame_table(analysis),
        utilization=content.utilization_rows(analysis),
        definitions=content.DEFINITIONS,
    )
