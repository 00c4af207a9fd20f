"""The panels of a run's figure. Each takes axes and records, and says so where there is nothing to show."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import SubFigure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from aorta.artefacts.measured import Throughput
from aorta.artefacts.page import (
    Doing,
    Excerpt,
    HeatMap,
    StepPart,
    StepTimeSeries,
    Strip,
    UtilizationCurve,
    UtilizationOverTime,
)
from aorta.report import palette, style
from aorta.report.parts import HEAT_GROUPS, HEAT_NOTE, heat_columns, loading_words, shown_parts
from aorta.report.step_scale import ceiling
from aorta.report.text import host, number, short

NO_BREAKDOWN = "not measured: no rank has a steady step with a breakdown"
LOSS = LinearSegmentedColormap.from_list("loss", ["#FFFFFF", "#F6D9A8", "#E69F00", "#B04A00", "#5E2600"])
"""From nothing to much: its lightness falls all the way, so that it reads without colours too."""
FULL_PCT = 97.0
"""A curve that never falls below it is full: one line of text says as much."""
FLAT_SAMPLES = 5
"""Samples of such a curve: fewer may have missed a change."""
EFFECT = LinearSegmentedColormap.from_list("effect", ["#FFFFFF", "#D0D0D0"])


def waterfall_panel(axes: Axes, parts: Sequence[StepPart], note: str) -> None:
    """Draws the parts of the mean step.

    Each part begins where the one above it ends; together they are 100 %.
    """
    style.title(axes, "Where the time in a step goes", note, *loading_words(parts).split(": "))
    shown = [(part, part.ms or 0.0, part.pct or 0.0) for part in shown_parts(parts)]
    if not shown:
        style.absent(axes, NO_BREAKDOWN)
        return
    left = 0.0
    for place, (part, ms, pct) in enumerate(shown):
        axes.barh(place, pct, left=left, height=0.66, color=palette.part_colour(part.key))
        if place:
            axes.plot([left, left], [place - 1, place], color="#BBBBBB", linewidth=0.8, zorder=0)
        words = f"{number(ms)} ms · {pct:.1f} %"
        if left + pct <= 64:  # words take about a third of the axis
            axes.text(left + pct + 1.2, place, words, va="center", fontsize=8.5)
        elif left >= 36:
            axes.text(left - 1.2, place, words, va="center", ha="right", fontsize=8.5)
        else:
            style.label_bar(axes, left + pct / 2, place, words, palette.part_colour(part.key))
        left += pct
    axes.set_yticks(range(len(shown)), [part.name for part, _, _ in shown])
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_xlim(0, 100)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x")
    axes.set_xlabel("% of the step")


def heat_panel(axes: Axes, found: HeatMap) -> None:
    """Rank × cause: each rank's own time, and the waits of others that are charged to it, % of the step."""
    style.title(axes, "Time by rank and cause", *(found.note or HEAT_NOTE).split("\n"))
    values = np.array([[np.nan if v is None else v for v in row] for row in found.values], dtype=float)
    top = max(float(np.nanmax(values)), 30.0)  # what costs little stays pale
    effect = np.array(
        [name == palette.EXPOSED for name in found.columns]
    )  # waits are an effect, so they stay grey
    shades = [(LOSS, np.where(effect, np.nan, values)), (EFFECT, np.where(effect, values, np.nan))]
    for colours, cells in shades:
        axes.imshow(cells, cmap=colours, vmin=0, vmax=top, aspect="auto", interpolation="nearest")
    small = len(found.rows) > 12
    for (row, column), value in np.ndenumerate(values):
        axes.text(
            column,
            row,
            "—" if np.isnan(value) else f"{value:.0f}" if value >= 0.5 or value == 0 else "<1",
            ha="center",
            va="center",
            fontsize=7 if small else 8.5,
            color="white" if value > 0.55 * top and not effect[column] else palette.INK,
        )
    own, charged = found.groups
    names = [
        "\n".join(name.rsplit(" ", 1) if name.startswith("for its ") else name.split(" ", 1))
        for name in heat_columns(found)
    ]
    axes.set_xticks(range(len(names)), names)
    axes.set_yticks(range(len(found.rows)), found.rows, fontsize=6.5 if small else 8.5)
    axes.tick_params(length=0)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.set_xticks(np.arange(0.5, len(found.columns) - 1), minor=True)
    axes.set_yticks(np.arange(0.5, len(found.rows) - 1), minor=True)
    axes.grid(which="minor", color="white", linewidth=0.6 if small else 2)
    axes.tick_params(which="minor", length=0)
    room = 0.14 * len(found.rows)  # above the first row, for the heads of the groups
    axes.set_ylim(len(found.rows) - 0.5, -0.5 - room)
    for count, middle, name in (
        (own, (own - 1) / 2, HEAT_GROUPS[0]),
        (charged, own + (charged - 1) / 2, HEAT_GROUPS[1].replace(" wait", "\nwait", 1)),
    ):
        if count:
            axes.text(
                middle, -0.5 - room / 2, name, ha="center", va="center", fontsize=8, color=palette.FAINT
            )
    if charged:
        axes.axvline(own - 0.5, color=palette.INK, linewidth=1.2)


def excerpt_panel(axes: Axes, found: Excerpt | None, absent: str) -> None:
    """The longest steady step, or of those traced or timed part by part, rank by rank on one clock."""
    if found is None:
        style.title(axes, "The slowest steady step")
        style.absent(axes, absent)
        return
    which = " traced" if found.traced else ""
    times = f"{number(found.step_ms)} ms; the median{which} step takes {number(found.median_ms)} ms"
    note = f"{times}; {found.note}" if found.note else times
    steady = "steady step" if found.all_detailed else "detailed step"
    longest = f"The slowest {'traced step' if found.traced else steady}"
    style.title(axes, f"{longest}: step {found.global_step:,}", note)
    used: set[Doing] = set()
    for place, lane in enumerate(found.lanes):
        for doing in palette.DOING:
            spans = [
                (item.start_ms, item.end_ms - item.start_ms) for item in lane.segments if item.doing == doing
            ]
            if spans:
                used.add(doing)
                band = (place + 0.2, 0.16) if doing == "hidden" else (place - 0.36, 0.72)
                axes.broken_barh(spans, band, facecolors=palette.DOING[doing][1])
    hosts = len({lane.host for lane in found.lanes}) > 1
    names = [
        f"rank {lane.rank}" + (f" · {host(lane.host, 14)}" if hosts and lane.host else "")
        for lane in found.lanes
    ]
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.45, -0.55)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.margins(x=0.005)
    axes.grid(axis="x")
    style.thousands(axes.xaxis)
    axes.set_xlabel("ms since the first rank began the step")
    axes.figure.legend(
        handles=[
            Patch(color=colour, label=name)
            for doing, (name, colour) in palette.DOING.items()
            if doing in used
        ],
        loc="outside lower center",
        ncols=6,
        handlelength=1,
        columnspacing=1.2,
    )


def steps_panel(axes: Axes, times: StepTimeSeries | None, throughput: Throughput | None) -> None:
    """(b) Time of each step (its slowest rank), the steady window, its median and p95."""
    if times is None:
        style.title(axes, "Step time")
        style.absent(axes, "not measured: no step records")
        return
    ms, steps, steady = np.array(times.ms), np.array(times.global_step), np.array(times.steady)
    top = ceiling(times)
    beyond = ms > top
    each = f"; the longest of each {times.steps_a_point} steps" if times.steps_a_point > 1 else ""
    style.title(axes, "Step time", f"step time of the slowest rank{each}")
    if steady.any():
        first, last = steps[steady][0], steps[steady][-1]
        axes.axvspan(first - 0.5, last + 0.5, color=palette.STEADY, linewidth=0, label="steady steps")
    if times.whole:
        detailed = steps[np.array(times.detailed)]
        bottom = np.full(len(detailed), 0.015 * top)
        axes.plot(detailed, bottom, "|", color=palette.HIDDEN_COMM, markersize=5, label="timed in detail")
    shown = np.where(beyond, np.nan, ms)
    axes.plot(steps, shown, color=palette.COMPUTE, linewidth=1.0, label="step time")
    other = ~steady & ~beyond
    axes.plot(
        steps[other],
        ms[other],
        "o",
        color="white",
        markeredgecolor=palette.FAINT,
        markersize=3.5,
        label="warm-up etc. (not in averages)",
    )
    if beyond.any():
        axes.plot(
            steps[beyond],
            np.full(int(beyond.sum()), 0.985 * top),
            "^",
            color=palette.EXPOSED_COMM,
            markersize=5,
            label=f"longer, up to {number(float(ms.max()))} ms",
        )
    if throughput is not None:
        for value, name, dash in (
            (throughput.slowest_rank_ms_median, "median", "-"),
            (throughput.slowest_rank_ms_p95, "p95", "--"),
        ):
            if value is None:
                continue
            axes.axhline(
                value, color=palette.INK, linewidth=1.0, linestyle=dash, label=f"{name} {number(value)} ms"
            )
    axes.set_ylim(0, top)
    axes.set_xlim(steps[0] - 0.5, max(steps[-1], steps[0] + 1) + 0.5)
    axes.grid(axis="y")
    style.thousands(axes.yaxis)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.set_ylabel("ms")
    axes.set_xlabel("optimizer step")
    axes.figure.legend(loc="outside lower center", ncols=3, handlelength=1.4, columnspacing=1.2)


def utilization_panel(figure: SubFigure, found: UtilizationOverTime) -> None:
    """CPU of the host and of the job, and the GPUs' driver counter, over time, the steady window behind."""
    heading = "Utilisation over time"
    if not found.strips:
        axes = figure.subplots()
        style.title(axes, heading)
        style.absent(axes, found.absent)
        return
    strips, told = _without_flat(found.strips)
    if not strips:
        axes = figure.subplots()
        style.title(axes, heading, found.absent)
        style.absent(axes, "; ".join(told))
        return
    columns = 1 if len(strips) <= 2 else 2
    rows = -(-len(strips) // columns)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    busy = "the driver's counter also counts kernels that only wait"
    style.title(grid[0], heading, found.absent or busy, *told)
    handles: dict[str, Artist] = {}
    for axes, strip in zip(grid, strips, strict=False):
        if found.window_s is not None:
            axes.axvspan(*found.window_s, color=palette.STEADY, linewidth=0, label="steady steps")
        for curve in strip.curves:
            _curve(axes, curve)
        axes.text(
            0.995, 0.985, short(strip.name, 34), transform=axes.transAxes, ha="right", va="top", fontsize=8
        )
        axes.set_ylim(0, 132)  # room for the name above 100 %
        axes.set_yticks([0, 50, 100], ["0", "50", "100 %"])
        axes.grid(axis="y")
        axes.margins(x=0.01)
        handles.update(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    for axes in grid[len(strips) :]:
        axes.set_axis_off()
    for axes in grid[-columns:]:
        axes.set_xlabel("seconds since the start" if columns == 1 else "seconds")
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside lower center",
        ncols=2,
        handlelength=1.4,
        columnspacing=1.2,
    )


def _without_flat(strips: Sequence[Strip]) -> tuple[list[Strip], list[str]]:
    """The strips without the curves that are full throughout, and a sentence for each kind of these."""
    kept: list[Strip] = []
    flat: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
    for strip in strips:
        moving = [curve for curve in strip.curves if _level(curve) is None]
        for curve in strip.curves:
            if (level := _level(curve)) is not None:
                flat[palette.CURVES[curve.what][0], round(level)].append(strip.name)
        if moving:
            kept.append(msgspec.structs.replace(strip, curves=moving))
    told = [
        f"{name}: {level} % throughout" + ("" if len(nodes) == len(strips) else f" on {short(nodes[0], 34)}")
        + (f" and {len(nodes) - 1} more" if 1 < len(nodes) < len(strips) else "")
        for (name, level), nodes in flat.items()
    ]  # fmt: skip
    return kept, told


def _level(curve: UtilizationCurve) -> float | None:
    """The percentage of a curve that is full from first to last; None for any other, or of few samples."""
    low = min(curve.low if curve.low is not None else curve.middle, default=0.0)
    high = max(curve.high if curve.high is not None else curve.middle, default=0.0)
    if len(curve.middle) < FLAT_SAMPLES or low < FULL_PCT:
        return None
    return (low + high) / 2


def _curve(axes: Axes, curve: UtilizationCurve) -> None:
    name, colour = palette.CURVES[curve.what]
    if curve.low is not None and curve.high is not None:
        axes.fill_between(curve.seconds, curve.low, curve.high, color=colour, alpha=0.2, linewidth=0)
    axes.plot(curve.seconds, curve.middle, color=colour, linewidth=1.3, label=name)
