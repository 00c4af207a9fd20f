"""The figures of a sweep: scaling curves against their ideal, and what depends on a key.

Bands are 95 %; of two repeats, their range.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator
from numpy.typing import NDArray

from aorta.artefacts.clean import plain
from aorta.artefacts.sweep import (
    RepeatedMean,
    ScalingCurve,
    Sensitivity,
    SettingResult,
    SweepAnalysis,
    SweepSeries,
    words,
)
from aorta.report import palette, style
from aorta.report.overview import LABELS

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#222222", "#8C6BB1")
MAX_SERIES = len(COLOURS)
"""Lines in a panel; the tables have all."""

PANELS: tuple[tuple[str, str, Callable[[SettingResult], RepeatedMean | None], float], ...] = (
    ("Step time", "ms, median step", lambda item: item.step_ms, 1.0),
    ("Throughput", "samples/s, all ranks", lambda item: item.samples_per_s, 1.0),
    ("Exposed communication", "ms per step, mean over ranks", lambda item: item.exposed_comm_ms, 1.0),
    ("Overlap", "% of communication hidden", lambda item: item.overlap_ratio, 100.0),
)
"""Title, unit, quantity and factor of each panel of a key's figure."""

Line = tuple[str, list[float], list[RepeatedMean | None]]
"""Name, x, and what was measured there."""


def scaling_figure(curves: Sequence[ScalingCurve], shared: bool) -> Figure:
    """Speed-up on the left, efficiency on the right; call inside `style.styled()`."""
    drawn = [curve for curve in curves if curve.points][:MAX_SERIES]
    rows = -(-len(drawn) // 4)
    figure = style.new_figure(10, 4.0 + 0.2 * rows)
    if not drawn:
        axes = figure.subplots()
        style.title(axes, "Speed-up and efficiency")
        style.absent(axes, "not measured: no valid run")
        return figure
    speed, efficiency = figure.subplots(1, 2)
    labels = {curve.label for curve in drawn if curve.label}
    style.title(speed, "Speed-up", LABELS[labels.pop()] if len(labels) == 1 else "throughput over reference")
    style.title(
        efficiency,
        "Parallel efficiency",
        "of one machine shared by all nodes" if shared else "throughput a rank",
    )
    ranks = sorted({float(point.world_size) for curve in drawn for point in curve.points})
    for axes in (speed, efficiency):
        _ranks_axis(axes, ranks)
    lines = [_curve_lines(curve) for curve in drawn]
    # Each curve starts at its own reference: one ideal line where all start at the same number of ranks.
    for start in sorted({curve.points[0].world_size for curve in drawn}):
        beyond = [rank for rank in ranks if rank >= start]
        speed.plot(beyond, [rank / start for rank in beyond], "--", color=palette.FAINT, linewidth=1.2)
    efficiency.axhline(100, linestyle="--", color=palette.FAINT, linewidth=1.2)
    _lines(speed, [speedups for speedups, _ in lines], 1.0, floor=ranks[-1] / ranks[0])
    _lines(efficiency, [efficiencies for _, efficiencies in lines], 100.0, floor=100.0)
    speed.set_ylabel("× reference, dashed: ideal")
    efficiency.set_ylabel("%, dashed: ideal")
    _legend(figure, speed)
    return figure


def _curve_lines(curve: ScalingCurve) -> tuple[Line, Line]:
    name = words(curve.values) or "measured"
    ranks = [float(point.world_size) for point in curve.points]
    speedups: list[RepeatedMean | None] = [point.speedup for point in curve.points]
    efficiencies: list[RepeatedMean | None] = [point.efficiency for point in curve.points]
    return (name, ranks, speedups), (name, ranks, efficiencies)


def _ranks_axis(axes: Axes, ranks: Sequence[float]) -> None:
    if ranks[-1] > 8 * ranks[0]:
        axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(list(ranks)))
    axes.xaxis.set_minor_locator(NullLocator())
    style.thousands(axes.xaxis)
    axes.set_xlabel("ranks")
    axes.margins(x=0.08)


def key_figure(analysis: SweepAnalysis, sensitivity: Sensitivity) -> Figure | None:
    """A panel for each quantity that was measured over the values of one key. None if nothing was.

    It is drawn inside `style.styled()`.
    """
    drawn = sensitivity.series[:MAX_SERIES]
    places = _places(sensitivity.values)
    several = len({series.scenario for series in sensitivity.series}) > 1
    found = [
        (title, unit, factor, lines)
        for title, unit, quantity, factor in PANELS
        if _measured(lines := [_series_line(analysis, item, places, quantity, several) for item in drawn])
    ]
    if not found:
        return None
    rows = -(-len(found) // 2)
    figure = style.new_figure(10, 0.4 + 3.0 * rows + 0.2 * -(-len(drawn) // 4))
    grid = figure.subplots(rows, min(len(found), 2), squeeze=False).flatten()
    for axes in grid[len(found) :]:
        axes.set_axis_off()
    for axes, (title, unit, factor, lines) in zip(grid, found, strict=False):
        style.title(axes, title, unit)
        _values_axis(axes, sensitivity.values, places)
        axes.set_xlabel(plain(sensitivity.key))
        _lines(axes, lines, factor, floor=100.0 if factor > 1 else 0.0)
    _legend(figure, next((axes for axes in grid if axes.lines), grid[0]))
    return figure


def _measured(lines: Sequence[Line]) -> bool:
    return any(value is not None for _, _, values in lines for value in values)


def _series_line(
    analysis: SweepAnalysis,
    series: SweepSeries,
    places: list[float],
    quantity: Callable[[SettingResult], RepeatedMean | None],
    several: bool,
) -> Line:
    nodes = [series.scenario] if several else []
    name = " ".join([*nodes, words(series.held)]).strip() or "measured"
    return name, places, [quantity(analysis.settings[place]) for place in series.settings]


def _places(values: Sequence[str]) -> list[float]:
    """Returns where the values are on the axis: numbers at themselves, anything else side by side."""
    try:
        numbers = [float(value) for value in values]
    except ValueError:
        numbers = [math.nan]
    if all(math.isfinite(number) for number in numbers):
        return numbers
    return [float(place) for place in range(len(values))]


def _values_axis(axes: Axes, values: Sequence[str], places: list[float]) -> None:
    low, high = min(places), max(places)
    if low > 0 and high > 8 * low:
        axes.set_xscale("log", base=2)
    axes.set_xticks(places, [plain(value) for value in values])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.margins(x=0.08)


def _lines(axes: Axes, lines: Sequence[Line], factor: float, floor: float) -> None:
    """Means as lines from zero up, bands behind them; the axis reaches `floor` at least."""
    top = floor
    for colour, (name, places, values) in zip(COLOURS, lines, strict=False):
        known = [(place, value) for place, value in zip(places, values, strict=True) if value is not None]
        if not known:
            continue
        x = np.array([place for place, _ in known])
        mean = factor * np.array([value.mean for _, value in known])
        axes.plot(x, mean, color=colour, linewidth=1.8, marker="o", markersize=5, label=plain(name))
        _band(axes, x, [value for _, value in known], factor, colour)
        # A band of few repeats can be many times its mean: it may leave the panel, the means may not.
        highs = [factor * value.high for _, value in known if value.high is not None]
        top = max(top, float(mean.max()), min(max(highs, default=0.0), 1.5 * float(mean.max())))
    axes.set_ylim(0, 1.08 * top if top > 0 else 1.0)
    style.thousands(axes.yaxis)
    axes.grid(axis="y")


def _band(
    axes: Axes, x: NDArray[np.float64], values: Sequence[RepeatedMean], factor: float, colour: str
) -> None:
    mean = np.array([factor * value.mean for value in values])
    low = np.array([math.nan if value.low is None else factor * value.low for value in values])
    high = np.array([math.nan if value.high is None else factor * value.high for value in values])
    axes.fill_between(x, low, high, color=colour, alpha=0.14, linewidth=0)
    axes.errorbar(
        x, mean, yerr=np.stack((mean - low, high - mean)), fmt="none", ecolor=colour, elinewidth=1, capsize=3
    )


def _legend(figure: Figure, axes: Axes) -> None:
    handles, names = axes.get_legend_handles_labels()
    if names not in ([], ["measured"]):
        figure.legend(handles, names, loc="outside lower center", ncols=min(len(names), 4))
