"""The figures over scenarios: parts of a step side by side, throughput, efficiency, efficiency tree."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FixedLocator, LogLocator, NullLocator

from aorta.artefacts.aggregate import Scaling
from aorta.artefacts.clean import plain
from aorta.artefacts.measured import Interval
from aorta.artefacts.page import StepPart
from aorta.report import palette, style
from aorta.report.efficiency import tree, tree_panel
from aorta.report.parts import loading_words, shown_parts
from aorta.report.text import number

LABELS = {
    "strong": "strong scaling: the same batch over all ranks",
    "weak": "weak scaling: the same batch on each rank",
    "mixed": "batches differ, so neither strong nor weak",
}
"""Meaning of each label."""


def parts_figure(scenarios: Sequence[tuple[str, Sequence[StepPart]]], ranks: int) -> Figure:
    """Draws where the time in a step goes, one bar per scenario.

    Call inside `style.styled()`.

    Args:
        scenarios: names and parts.
        ranks: of the scenario that has the most.
    """
    figure = style.new_figure(11, 1.7 + 0.5 * max(len(scenarios), 1))
    axes = figure.subplots()
    style.title(
        axes,
        "Where the time in a step goes",
        f"{_mean_words(ranks)}labels: % of the step",
        loading_words(scenarios[0][1]) if len(scenarios) == 1 else "",
    )
    shown = [(name, shown_parts(parts)) for name, parts in scenarios]
    if not any(parts for _, parts in shown):
        style.absent(axes, "not measured: no scenario has a steady step with a breakdown")
        return figure
    top = max(sum(part.ms or 0.0 for part in parts) for _, parts in shown)
    named: set[str] = set()
    for place, (_, parts) in enumerate(shown):
        left = 0.0
        for part in parts:
            width, colour = part.ms or 0.0, palette.part_colour(part.key)
            label = None if part.name in named else part.name
            named.add(part.name)
            axes.barh(
                place,
                width,
                left=left,
                height=0.66,
                color=colour,
                label=label,
                edgecolor="white",
                linewidth=0.6,
            )
            if width >= 0.045 * top:
                style.label_bar(axes, left + width / 2, place, f"{part.pct:.0f} %", colour)
            left += width
        words = f"{number(left)} ms" if parts else "not measured"
        axes.text(left + 0.01 * top, place, words, va="center", fontsize=8.5, color=palette.FAINT)
    axes.set_yticks(range(len(shown)), [plain(name) for name, _ in shown])
    axes.set_ylim(len(shown) - 0.45, -0.55)
    axes.set_xlim(0, 1.1 * top)
    style.thousands(axes.xaxis)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("ms per step")
    axes.grid(axis="x")
    figure.legend(loc="outside lower center", ncols=4, handlelength=1, columnspacing=1.2, fontsize=8.5)
    return figure


def _mean_words(ranks: int) -> str:
    """Says how the mean over ranks shows time on one of them; empty for a single rank."""
    if ranks < 2:
        return ""
    if ranks == 2:
        return "mean over both ranks, so time spent on only one rank is drawn at half its length; "
    return f"mean over all {ranks:,} ranks, so time spent on only one is drawn at 1/{ranks:,} of its length; "


def scaling_figure(scaling: Scaling, *, shared: bool) -> Figure:
    """Throughput, efficiency and the efficiency tree of a family; call inside `style.styled()`."""
    factors = len(tree(scaling.points))
    heights = [3.9, 0.9 + 0.27 * factors] if factors else [3.9]
    figure = style.new_figure(11, sum(heights))
    upper, *lower = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False).ravel()
    speed, efficiency = upper.subplots(1, 2, width_ratios=[1.3, 1])
    _speed(speed, scaling)
    _efficiency(efficiency, scaling, shared)
    for place in lower:
        tree_panel(place.subplots(), scaling.points)
    return figure


def _bars(
    axes: Axes, places: Sequence[float], values: Sequence[float], found: Sequence[Interval | None]
) -> None:
    """Error bars of the points whose interval is known."""
    for x, y, interval in zip(places, values, found, strict=True):
        if interval is not None:
            low, high = max(y - interval.low, 0.0), max(interval.high - y, 0.0)
            axes.errorbar(
                [x], [y], yerr=[[low], [high]], fmt="none", ecolor=palette.INK, elinewidth=1.1, capsize=3.5
            )


def _interval_note(found: Sequence[Interval | None]) -> str:
    known = [item.confidence for item in found if item is not None]
    surest = [confidence for confidence in known if confidence is not None]
    words = [f"{100 * surest[0]:.0f} % intervals"] if surest else []
    if len(surest) < len(known):
        words.append("the range of two runs")
    return f"bars: {' or '.join(words)}" if words else ""


def _speed(axes: Axes, scaling: Scaling) -> None:
    points = [point for point in scaling.points if point.world_size > 0]
    intervals = [point.samples_per_s_interval for point in points]
    style.title(axes, "Throughput", LABELS.get(scaling.label or "", ""), _interval_note(intervals))
    if not points:
        style.absent(axes, scaling.reason or "not measured: no valid scenario")
        return
    ranks = np.array([point.world_size for point in points], dtype=float)
    rates = np.array([point.samples_per_s for point in points])
    first = next((point for point in points if point.scenario == scaling.reference), points[0])
    ideal = first.samples_per_s / first.world_size * ranks
    axes.plot(
        ranks,
        ideal,
        color=palette.FAINT,
        linestyle="--",
        linewidth=1.2,
        label=f"ideal, from {plain(first.scenario)}",
    )
    axes.plot(ranks, rates, color=palette.COMPUTE, linewidth=2, marker="o", markersize=6, label="measured")
    _bars(axes, ranks.tolist(), rates.tolist(), intervals)
    for point, x, y in zip(points, ranks, rates, strict=True):
        axes.annotate(
            number(point.samples_per_s), (x, y), (5, -12), textcoords="offset points", fontsize=8
        ).set_path_effects([withStroke(linewidth=2.5, foreground="white")])
    wide = ranks.max() > 8 * ranks.min()
    if wide:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.set_ylim(min(rates.min(), ideal.min()) / 1.6, 1.5 * max(rates.max(), ideal.max()))
    else:
        axes.set_ylim(0, 1.12 * max(rates.max(), ideal.max()))
    axes.margins(x=0.16)
    axes.xaxis.set_major_locator(FixedLocator(ranks.tolist()))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_locator(NullLocator())
    style.thousands(axes.xaxis)
    style.thousands(axes.yaxis)
    axes.set_xlabel("ranks")
    axes.set_ylabel("samples/s, all ranks")
    axes.grid(axis="y")
    axes.legend(loc="upper left", handlelength=1.8)


def _efficiency(axes: Axes, scaling: Scaling, shared: bool) -> None:
    style.title(
        axes, "Parallel efficiency", "of one machine shared by all nodes" if shared else "throughput per rank"
    )
    points = scaling.points
    if len(points) < 2:
        reason = scaling.reason or "needs two valid scenarios"
        style.absent(axes, reason if reason.startswith("not ") else f"not measured: {reason}")
        return
    places = np.arange(len(points))
    values = np.array([100 * point.efficiency for point in points])
    axes.bar(
        places,
        values,
        width=0.6,
        color=[palette.GPU if point.flag is None else palette.DATA_WAIT for point in points],
    )
    axes.axhline(100, color=palette.FAINT, linestyle="--", linewidth=1.2)
    intervals = [
        None
        if (item := point.efficiency_interval) is None
        else Interval(low=100 * item.low, high=100 * item.high, confidence=item.confidence)
        for point in points
    ]
    _bars(axes, places.tolist(), values.tolist(), intervals)
    tops = [max(value, item.high if item else 0.0) for value, item in zip(values, intervals, strict=True)]
    for point, x, y, top in zip(points, places.tolist(), values.tolist(), tops, strict=True):
        flag = f"\n{plain(point.flag)}" if point.flag else ""
        axes.annotate(
            f"{y:.0f} %{flag}", (x, top), (0, 3), textcoords="offset points", ha="center", fontsize=8.5
        )
    axes.set_xticks(places, [str(point.nodes) for point in points])
    axes.set_xlabel("nodes")
    axes.tick_params(axis="x", length=0)
    axes.set_ylim(0, max(122, 1.2 * max(tops)))
    axes.set_ylabel("%")
    axes.grid(axis="y")
