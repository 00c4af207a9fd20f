"""Runs side by side as figures and lines."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure

from aorta.artefacts.clean import plain
from aorta.artefacts.comparison import DatasetComparison, LoggedDataset, OverlapSummary
from aorta.metrics.compare import Values
from aorta.report import palette, style
from aorta.units import plural


def timeline(label: str, steps: list[int], values: Mapping[str, Values]) -> Figure:
    """Compute and communication over the steps: hidden and exposed stacked, the step's time as a line. Call
    inside `style.styled()`.
    """
    figure = style.new_figure(9, 3.6)
    axes = figure.subplots()
    style.title(axes, f"{plain(label)}: compute and communication by step", "steady steps; means over ranks")
    axes.plot(steps, values["step_ms"], color=palette.INK, linewidth=1.1, label="step (slowest rank)")
    axes.plot(steps, values["compute_ms"], color=palette.COMPUTE, linewidth=1.1, label="compute")
    axes.stackplot(
        steps,
        values["hidden_communication_ms"],
        values["exposed_communication_ms"],
        colors=[palette.HIDDEN_COMM, palette.EXPOSED_COMM],
        labels=["hidden communication", "exposed communication"],
        alpha=0.85,
    )
    axes.set_xlabel("global step")
    axes.set_ylabel("ms")
    axes.set_ylim(bottom=0)
    axes.grid(axis="y")
    axes.legend(ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.2))
    return figure


def draw(folder: Path, label: str, steps: list[int], values: Mapping[str, Values]) -> Path:
    """Write `<label>_timeline.png` and `.svg` into `folder`.

    Returns:
        The first of the two.
    """
    png = folder / f"{label}_timeline.png"
    with style.styled():
        style.save(timeline(label, steps, values), png, png.with_suffix(".svg"))
    return png


def lines(summary: OverlapSummary) -> list[str]:
    """The output of `aorta compare`."""
    found = []
    for label, data in summary.datasets.items():
        ratio = "not measured" if data.overlap_ratio is None else f"{data.overlap_ratio:.3f}"
        step = data.metrics["step_ms"].median
        steps = plural(data.steps, "steady step") + _detailed(data)
        found.append(
            f"{label}: {steps} of {plural(len(data.ranks), 'rank')}, step median {_number(step)} ms,"
            f" overlap ratio {ratio}"
        )
        found += [f"  {problem.file}: {problem.reason}" for problem in data.problems]
    for comparison in summary.comparisons:
        found += _compared(comparison)
    return found


def _detailed(data: LoggedDataset) -> str:
    return "" if data.detailed_steps is None else f" ({data.detailed_steps} timed part by part)"


def _compared(comparison: DatasetComparison) -> list[str]:
    found = [f"{comparison.candidate} against {comparison.reference} (ratio of means, 95% interval):"]
    for name, item in comparison.metrics.items():
        if item.finding == "not measurable":
            continue
        ratio = (
            "no ratio"
            if item.ratio is None
            else f"{item.ratio:.3f} [{item.ratio_low:.3f}, {item.ratio_high:.3f}]"
        )
        found.append(f"  {name:<26}{ratio:<26}{item.finding}")
    return found


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.3f}"
