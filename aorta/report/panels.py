"""The panels of a run's figure. Each takes axes and data, and says so where there is nothing to show."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import SubFigure
from matplotlib.ticker import MaxNLocator

from aorta.artefacts.analysis import Analysis, RankBreakdown, Throughput
from aorta.report import style
from aorta.report.content import TIMINGS
from aorta.report.selection import shown_ranks
from aorta.report.series import NodeSeries, RunSeries, Series, StepSeries, Window
from aorta.report.text import host, number, short

MAX_NODES = 4
"""Nodes that get a strip of their own; more are shown as one band."""


def breakdown_panel(axes: Axes, analysis: Analysis) -> None:
    """(a) Where a step goes, by rank: exclusive parts that sum to 100 %."""
    rows, note = shown_ranks(analysis.breakdown.per_rank, analysis.verdict.ranks)
    rows = [row for row in rows if row.step_ms > 0]
    style.title(axes, "Where a step goes", note or f"mean of {analysis.breakdown.steps} steady steps")
    if not rows:
        style.absent(axes, "not measured: no rank has a steady step with a breakdown")
        return
    positions = np.arange(len(rows))
    left = np.zeros(len(rows))
    for name, field, color in style.PARTS:
        values = [getattr(row, field) for row in rows]
        if all(value is None for value in values):
            continue
        shares = np.array(
            [100 * (value or 0.0) / row.step_ms for value, row in zip(values, rows, strict=True)]
        )
        axes.barh(
            positions,
            shares,
            left=left,
            height=0.72,
            color=color,
            label=name,
            edgecolor="white",
            linewidth=0.6,
        )
        for y, x, part in zip(positions.tolist(), left.tolist(), shares.tolist(), strict=True):
            if part >= 9:
                style.label_bar(axes, x + part / 2, y, f"{part:.0f} %", small=len(rows) > 10)
        left += shares
    for y, row in zip(positions.tolist(), rows, strict=True):
        axes.text(101.5, y, f"{number(row.step_ms)} ms", va="center", fontsize=8, color=style.FAINT)
    _rank_axis(axes, rows)
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of the step")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3, handlelength=1, columnspacing=1.2)


def communication_panel(axes: Axes, analysis: Analysis) -> None:
    """(d) Communication by rank: hidden under compute, and exposed."""
    rows, note = shown_ranks(analysis.breakdown.per_rank, analysis.verdict.ranks)
    timing = TIMINGS.get(analysis.breakdown.timing or "", "")
    style.title(axes, "Communication, hidden and exposed", note or timing)
    if not rows:
        style.absent(axes, "not measured: no rank has a steady step with a breakdown")
        return
    if not any(row.comm_ms for row in rows):
        one = analysis.world_size == 1
        style.absent(
            axes, "none: a single rank talks to nobody" if one else "no communication in any steady step"
        )
        return
    positions = np.arange(len(rows))
    exposed = np.array([row.exposed_comm_ms for row in rows])
    hidden = np.array([max(row.comm_ms - row.exposed_comm_ms, 0.0) for row in rows])
    axes.barh(positions, hidden, height=0.72, color=style.HIDDEN_COMM, label="hidden under compute")
    axes.barh(positions, exposed, left=hidden, height=0.72, color=style.EXPOSED_COMM, label="exposed")
    top = float((hidden + exposed).max())
    for y, row in zip(positions.tolist(), rows, strict=True):
        text = "none" if row.overlap_ratio is None else f"{100 * row.overlap_ratio:.0f} % hidden"
        axes.text(row.comm_ms + 0.015 * top, y, text, va="center", fontsize=8, color=style.FAINT)
    _rank_axis(axes, rows)
    axes.set_xlim(0, 1.22 * top)
    style.thousands(axes.xaxis)
    axes.set_xlabel("ms a step")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, handlelength=1)


def steps_panel(axes: Axes, series: StepSeries | None, throughput: Throughput | None) -> None:
    """(b) Time of each step (its slowest rank), the steady window, its median and p95."""
    if series is None or len(series.ms) == 0:
        style.title(axes, "Step time")
        style.absent(axes, "not measured: no step records")
        return
    ms, steps, steady = series.ms, series.steps, series.steady
    reference = ms[steady] if steady.any() else ms
    top = 1.3 * float(np.quantile(reference, 0.98))
    ceiling = top if float(ms.max()) > top else 1.08 * float(ms.max())
    beyond = ms > ceiling
    style.title(axes, "Step time", "slowest rank of each step")
    if steady.any():
        first, last = steps[steady][0], steps[steady][-1]
        axes.axvspan(first - 0.5, last + 0.5, color=style.STEADY, linewidth=0, label="steady window")
    shown = np.where(beyond, np.nan, ms)
    axes.plot(steps, shown, color=style.COMPUTE, linewidth=1.0, label="a step")
    other = ~steady & ~beyond
    axes.plot(
        steps[other],
        ms[other],
        "o",
        color="white",
        markeredgecolor=style.FAINT,
        markersize=3.5,
        label="not counted",
    )
    if beyond.any():
        axes.plot(
            steps[beyond],
            np.full(int(beyond.sum()), 0.985 * ceiling),
            "^",
            color=style.EXPOSED_COMM,
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
                value, color=style.INK, linewidth=1.0, linestyle=dash, label=f"{name} {number(value)} ms"
            )
    axes.set_ylim(0, ceiling)
    axes.set_xlim(steps[0] - 0.5, max(steps[-1], steps[0] + 1) + 0.5)
    axes.grid(axis="y")
    style.thousands(axes.yaxis)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.set_ylabel("ms")
    axes.set_xlabel("optimizer step")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3, handlelength=1.4, columnspacing=1.2)


def utilization_panel(figure: SubFigure, series: RunSeries) -> None:
    """(c) CPU of the host and of the job, and the GPUs' driver counter, over time.

    A strip a node; more than `MAX_NODES` nodes become one strip of medians and ranges.
    """
    heading = "Utilisation over time"
    kinds = [
        ("GPU, driver counter", "gpu", style.GPU),
        ("CPU, job's share of its CPUs", "job", style.JOB_CPU),
        ("CPU, whole host", "cpu", style.HOST_CPU),
    ]
    nodes = [node for node in series.nodes if any(getattr(node, field) is not None for _, field, _ in kinds)]
    if not nodes:
        axes = figure.subplots()
        style.title(axes, heading)
        style.absent(axes, series.no_samples)
        return
    strips = [[node] for node in nodes] if len(nodes) <= MAX_NODES else [list(nodes)]
    many = len(strips) == 1 and len(nodes) > 1
    columns = 1 if len(strips) <= 2 else 2
    grid = figure.subplots(
        -(-len(strips) // columns), columns, sharex=True, sharey=True, squeeze=False
    ).ravel()
    style.title(
        grid[0], heading, _missing(series, nodes) or "the driver's counter says busy while a kernel waits"
    )
    found: dict[str, Artist] = {}
    for axes, members in zip(grid, strips, strict=False):
        _strip(axes, members, kinds, series.window)
        name = f"median and range of {len(nodes)} nodes" if many else short(members[0].name, 28)
        axes.text(0.995, 0.985, name, transform=axes.transAxes, ha="right", va="top", fontsize=8)
        handles, labels = axes.get_legend_handles_labels()
        found.update(zip(labels, handles, strict=True))
    for axes in grid[len(strips) :]:
        axes.set_axis_off()
    for axes in grid[-columns:]:
        axes.set_xlabel("seconds since the start" if columns == 1 else "seconds")
    figure.legend(
        list(found.values()),
        list(found),
        loc="outside lower center",
        ncols=2,
        handlelength=1.4,
        columnspacing=1.2,
    )


def _missing(series: RunSeries, nodes: Sequence[NodeSeries]) -> str:
    """What no node has samples of, with the reasons."""
    absent = [] if any(node.gpu for node in nodes) else [f"GPU ({series.no_gpu})"]
    if not any(node.job for node in nodes):
        absent.append("CPU of the job (no cgroup of its own)")
    return f"not measured: {', '.join(absent)}" if absent else ""


def _strip(
    axes: Axes, members: Sequence[NodeSeries], kinds: Collection[tuple[str, str, str]], window: Window | None
) -> None:
    if window is not None:
        axes.axvspan(window.start_s, window.end_s, color=style.STEADY, linewidth=0, label="steady window")
    for label, field, color in kinds:
        found: list[Series] = [getattr(node, field) for node in members if getattr(node, field) is not None]
        if not found:
            continue
        if len(found) == 1:
            axes.plot(found[0].seconds, found[0].values, color=color, linewidth=1.3, label=label)
            continue
        seconds = np.linspace(min(s.seconds[0] for s in found), max(s.seconds[-1] for s in found), 240)
        table = np.array([np.interp(seconds, s.seconds, s.values, left=np.nan, right=np.nan) for s in found])
        kept = ~np.isnan(table).all(axis=0)
        low, mid, high = np.nanquantile(table[:, kept], [0.0, 0.5, 1.0], axis=0)
        axes.fill_between(seconds[kept], low, high, color=color, alpha=0.2, linewidth=0)
        axes.plot(seconds[kept], mid, color=color, linewidth=1.3, label=label)
    axes.set_ylim(0, 132)  # room for the name above 100 %
    axes.set_yticks([0, 50, 100], ["0", "50", "100 %"])
    axes.grid(axis="y")
    axes.margins(x=0.01)


def _rank_axis(axes: Axes, rows: Sequence[RankBreakdown]) -> None:
    hosts = {row.host for row in rows}
    named = len(hosts) > 1 and len(rows) <= 16
    labels = [f"rank {row.rank}" + (f" · {host(row.host, 14)}" if named and row.host else "") for row in rows]
    axes.set_yticks(np.arange(len(rows)), labels, fontsize=8.5 if len(rows) <= 10 else 7.5)
    spare = max(3 - len(rows), 0) / 2
    axes.set_ylim(len(rows) - 0.4 + spare, -0.6 - spare)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x")
