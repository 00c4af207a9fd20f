"""The step time of each scenario over its runs, as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure

from aorta.artefacts.clean import plain
from aorta.artefacts.measured import Interval
from aorta.report import palette, style
from aorta.report.sweep_plots import COLOURS, MAX_SERIES

_NS_PER_DAY = 86_400 * 10**9
_HOUR = 1 / 24
_ROOM = 1.1
"""Height of the picture over the longest step."""


class Point(NamedTuple):
    """One run."""

    wall_ns: int
    step_ms: float
    interval: Interval | None


def trend_figure(scenarios: Mapping[str, Sequence[Point]]) -> Figure:
    """A line per scenario; call inside `style.styled()`.

    Args:
        scenarios: the runs of each scenario, the oldest first; of many, those with the most runs are drawn.
    """
    figure = style.new_figure(11, 4.2)
    axes = figure.subplots()
    drawn = sorted(scenarios, key=lambda name: -len(scenarios[name]))[:MAX_SERIES]
    note = "" if len(drawn) == len(scenarios) else f"{len(drawn)} of {len(scenarios)} scenarios"
    style.title(axes, "Step time of each run", "mean over steady steps; bars: 95 % intervals", note)
    if not drawn:
        style.absent(axes, "not measured: no run has an analysis with a step time")
        return figure
    for name, colour in zip(drawn, COLOURS, strict=False):
        points = scenarios[name]
        when = [point.wall_ns / _NS_PER_DAY for point in points]  # days since 1970, as dates are drawn
        values = [point.step_ms for point in points]
        axes.plot(when, values, "o-", color=colour, markersize=4, linewidth=1.2, label=plain(name))
        for moment, point in zip(when, points, strict=True):
            if point.interval is not None:
                axes.vlines(moment, point.interval.low, point.interval.high, color=colour, linewidth=1.2)
    shown = [point for name in drawn for point in scenarios[name]]
    axes.set_ylim(0, _ROOM * max(point.interval.high if point.interval else point.step_ms for point in shown))
    days = [point.wall_ns / _NS_PER_DAY for point in shown]
    if max(days) - min(days) < _HOUR:  # the locator would choose years for a single run
        axes.set_xlim(min(days) - _HOUR, max(days) + _HOUR)
    axes.set_ylabel("ms per step")
    axes.set_xlabel("start of the run (UTC)")
    axes.xaxis_date()
    locator = AutoDateLocator()  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    axes.tick_params(colors=palette.INK)
    axes.grid(axis="y")
    style.thousands(axes.yaxis)
    figure.legend(loc="outside lower center", ncols=6)
    return figure
