"""The figure of a run: where a step goes, which rank and cause, the longest step, and what is over time."""

from __future__ import annotations

import textwrap

from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec

from aorta.artefacts.analysis import Analysis
from aorta.artefacts.clean import plain
from aorta.artefacts.page import RunPage
from aorta.report import panels, style
from aorta.report.content import counted_steps, heading


def run_figure(analysis: Analysis, page: RunPage) -> Figure:
    """Four or five panels in three rows; call inside `style.styled()`."""
    lanes = len(page.excerpt.lanes) if page.excerpt is not None else 3
    tall = max(3.4, 0.17 * len(page.heat_map.rows)) if page.heat_map is not None else 3.4
    heights = [tall, 1.75 + 0.24 * max(lanes, 2), 3.3]
    figure = style.new_figure(11, 0.9 + sum(heights))
    statement = textwrap.shorten(plain(analysis.verdict.statement), 230, placeholder=" …")
    figure.suptitle(heading(analysis), x=0.012, ha="left", fontsize=11.5, fontweight="bold")
    body = figure.add_subfigure(GridSpec(1, 1, figure=figure)[0])
    body.suptitle(textwrap.fill(statement, 140), x=0.012, ha="left", fontsize=9.5)
    upper, middle, lower = body.subfigures(3, 1, height_ratios=heights)
    mean = f"mean of {counted_steps(analysis)}" + (f" and {page.ranks:,} ranks" if page.ranks > 1 else "")
    if page.heat_map is None:
        panels.waterfall_panel(upper.subplots(), page.parts, mean)
    else:
        left, right = upper.subfigures(1, 2)
        panels.waterfall_panel(left.subplots(), page.parts, mean)
        panels.heat_panel(right.subplots(), page.heat_map)
    panels.excerpt_panel(middle.subplots(), page.excerpt, page.excerpt_absent)
    left, right = lower.subfigures(1, 2)
    panels.steps_panel(left.subplots(), page.steps, analysis.throughput)
    panels.utilization_panel(right, page.utilization)
    return figure
