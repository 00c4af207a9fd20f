"""The figure of a run: four panels."""

from __future__ import annotations

import textwrap

from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec

from aorta.artefacts.analysis import Analysis
from aorta.report import panels, style
from aorta.report.content import heading
from aorta.report.series import RunSeries
from aorta.report.text import plain


def run_figure(analysis: Analysis, series: RunSeries) -> Figure:
    """Breakdown and communication by rank on the left, step time and utilisation on the right.

    Call inside `style.styled()`.
    """
    figure = style.new_figure(11, 8.2)
    statement = textwrap.shorten(plain(analysis.verdict.statement), 230, placeholder=" …")
    figure.suptitle(heading(analysis), x=0.012, ha="left", fontsize=11.5, fontweight="bold")
    body = figure.add_subfigure(GridSpec(1, 1, figure=figure)[0])
    body.suptitle(textwrap.fill(statement, 140), x=0.012, ha="left", fontsize=9.5)
    left, right = body.subfigures(1, 2)
    upper, lower = left.subfigures(2, 1)
    panels.breakdown_panel(upper.subplots(), analysis)
    panels.communication_panel(lower.subplots(), analysis)
    upper, lower = right.subfigures(2, 1)
    panels.steps_panel(upper.subplots(), series.steps, analysis.throughput)
    panels.utilization_panel(lower, series)
    return figure
