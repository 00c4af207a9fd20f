"""The efficiency tree of a curve: POP factors by scenario, as rows of a table and as a panel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap

from aorta.artefacts.aggregate import ScalingPoint
from aorta.artefacts.clean import plain
from aorta.artefacts.replayed import DevicePop, Pop
from aorta.report import palette, style
from aorta.report.tables import Table
from aorta.report.text import ABSENT

_SHADES = LinearSegmentedColormap.from_list("efficiency", ["#B04A00", "#E69F00", "#F6D9A8", "#FFFFFF"])
"""From low to 100 %: darker is lost more, also without colours."""


NOT_COMPUTE = "communication efficiency (lowered by all but compute)"
"""POP's communication efficiency, which also falls with loading and host work."""
WAITING = "serialisation efficiency (lowered by waiting)"
TRANSFERRING = "transfer efficiency (lowered by transferring data)"
ORCHESTRATION = "orchestration efficiency (lowered by launching, loading)"


@dataclass(frozen=True, slots=True)
class EfficiencyRow:
    """One factor: its depth in the tree, its name, and its value (0 to 1, None: absent) by point."""

    depth: int
    name: str
    values: tuple[float | None, ...]


def tree(points: Sequence[ScalingPoint]) -> list[EfficiencyRow]:
    """The factors of every point; a row is the product of the rows right below it. Empty without any.

    The branch of the devices is there where any point has one.
    """
    if not any(point.pop for point in points):
        return []

    def pop(value: Callable[[Pop], float | None]) -> tuple[float | None, ...]:
        return tuple(None if point.pop is None else value(point.pop) for point in points)

    def device(value: Callable[[DevicePop], float]) -> tuple[float | None, ...]:
        return pop(lambda item: None if item.device is None else value(item.device))

    rows = [
        EfficiencyRow(0, "global efficiency", tuple(point.global_efficiency for point in points)),
        EfficiencyRow(1, "computation scalability", tuple(point.computation_scalability for point in points)),
        EfficiencyRow(1, "parallel efficiency", pop(lambda item: item.parallel)),
        EfficiencyRow(2, "load balance", pop(lambda item: item.load_balance)),
        EfficiencyRow(3, "between nodes", pop(lambda item: item.load_balance_inter_node)),
        EfficiencyRow(3, "within nodes", pop(lambda item: item.load_balance_intra_node)),
        EfficiencyRow(2, NOT_COMPUTE, pop(lambda item: item.communication)),
        EfficiencyRow(3, WAITING, pop(lambda item: item.serialisation)),
        EfficiencyRow(3, TRANSFERRING, pop(lambda item: item.transfer)),
    ]
    if any(point.pop is not None and point.pop.device is not None for point in points):
        rows += [
            EfficiencyRow(1, "parallel efficiency of the GPUs", device(lambda item: item.parallel)),
            EfficiencyRow(2, "load balance of the GPUs", device(lambda item: item.load_balance)),
            EfficiencyRow(2, "communication efficiency of the GPUs", device(lambda item: item.communication)),
            EfficiencyRow(
                2,
                ORCHESTRATION,
                device(lambda item: item.orchestration),
            ),
        ]
    return rows


def tree_table(points: Sequence[ScalingPoint]) -> Table | None:
    """The tree as a table, depth as dots before the name; None without factors."""
    rows = tree(points)
    if not rows:
        return None
    cells = tuple(
        (f"{'· ' * row.depth}{row.name}", *(_percent(value) for value in row.values)) for row in rows
    )
    return Table(
        ("efficiency factor (100 %: nothing lost)", *(f">{plain(point.scenario)}" for point in points)), cells
    )


def tree_note(points: Sequence[ScalingPoint]) -> str:
    """Explains the tree."""
    only = f" (here {plain(points[0].scenario)}, the only one)" if len(points) == 1 else ""
    return (
        "These are the efficiency factors of the POP Centre of Excellence (Performance Optimisation and "
        "Productivity). Each factor is the product of the factors below it. Only compute counts as useful "
        "time: slow data loading or host work on one rank lowers serialisation efficiency, not load balance. "
        "Computation scalability compares each scenario with the reference scenario"
        f"{only}, where it is 100 % by definition."
    )


def reasons(points: Sequence[ScalingPoint]) -> list[str]:
    """Why factors are absent, and where the numbers of a point disagree with each other."""
    found = [f"{point.scenario}: {point.pop.reason}" for point in points if point.pop and point.pop.reason]
    return found + [f"{point.scenario}: {point.self_check}" for point in points if point.self_check]


def _percent(value: float | None) -> str:
    return ABSENT if value is None else f"{100 * value:.1f} %"


def tree_panel(axes: Axes, points: Sequence[ScalingPoint]) -> None:
    """The tree as a map: scenarios side by side, each factor under the one that it is part of."""
    style.title(
        axes,
        "Efficiency tree",
        "each factor is the product of the factors below it; darker means more is lost",
    )
    rows = tree(points)
    if not rows:
        style.absent(axes, "not measured: no scenario has a breakdown of its steps")
        return
    values = np.array([[np.nan if v is None else 100 * v for v in row.values] for row in rows], dtype=float)
    axes.imshow(values, cmap=_SHADES, vmin=30, vmax=100, aspect="auto", interpolation="nearest")
    for (row, column), value in np.ndenumerate(values):
        axes.text(
            column,
            row,
            ABSENT if np.isnan(value) else f"{value:.0f} %",
            ha="center",
            va="center",
            fontsize=8.5,
            color="white" if value < 45 else palette.INK,
            fontweight="bold" if rows[row].depth == 0 else "normal",
        )
    axes.set_xticks(range(len(points)), [plain(point.scenario) for point in points])
    axes.set_yticks(range(len(rows)), ["      " * row.depth + row.name for row in rows], ha="left")
    axes.tick_params(length=0)
    axes.tick_params(axis="y", pad=285)  # the longest name, from its left edge
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.set_xticks(np.arange(0.5, len(points) - 1), minor=True)
    axes.set_yticks(np.arange(0.5, len(rows) - 1), minor=True)
    axes.grid(which="minor", color="white", linewidth=2)
    axes.tick_params(which="minor", length=0)
