"""The document over a sweep: `docs/SWEEP_ANALYSIS.md`, its JSON twin and its plots."""

from __future__ import annotations

from typing import Any

from aorta.artefacts.io import write_json, write_text
from aorta.artefacts.study_layout import SweepDocs
from aorta.artefacts.sweep import Curve, Estimate, Sensitivity, SettingResult, SweepAnalysis, words
from aorta.metrics.sweep import MIN_BANDED
from aorta.report import style
from aorta.report.overview import LABELS
from aorta.report.render import render
from aorta.report.sweep_plots import MAX_SERIES, key_figure, scaling_figure
from aorta.report.tables import Table
from aorta.report.text import ABSENT, number, plain


def write_sweep(docs: SweepDocs, analysis: SweepAnalysis) -> None:
    """Write the Markdown, the JSON and the plots."""
    with style.styled():
        if analysis.curves:
            style.save(scaling_figure(analysis.curves, analysis.shared_machine), *docs.plot("scaling"))
        for sensitivity in analysis.sensitivities:
            style.save(key_figure(analysis, sensitivity), *docs.plot(sensitivity.key))
    write_text(docs.markdown, _markdown(docs, analysis))
    write_json(docs.json, analysis)


def _markdown(docs: SweepDocs, analysis: SweepAnalysis) -> str:
    sweep = analysis.sweep
    repeats = [setting.repeats_valid for setting in analysis.settings]
    return render(
        "SWEEP_ANALYSIS.md.j2",
        analysis=analysis,
        sweep=sweep,
        asked=Table(("key", "values"), tuple((key, ", ".join(values)) for key, values in sweep.keys.items())),
        banded=max(repeats, default=0) >= MIN_BANDED,
        ranged=2 in repeats,
        scaling_plot=docs.plot("scaling")[0].relative_to(docs.root).as_posix() if analysis.curves else None,
        curves=_curve_table(analysis.curves),
        labels=_labels(analysis.curves),
        curve_notes=[(words(curve.values), curve.reason) for curve in analysis.curves if curve.reason],
        keys=[_key_section(docs, sensitivity) for sensitivity in analysis.sensitivities],
        max_series=MAX_SERIES,
        curves_hidden=max(len(analysis.curves) - MAX_SERIES, 0),
        settings=_settings_table(analysis.settings),
    )


def _labels(curves: list[Curve]) -> list[str]:
    return [LABELS[label] for label in dict.fromkeys(curve.label for curve in curves) if label is not None]


def _key_section(docs: SweepDocs, sensitivity: Sensitivity) -> dict[str, Any]:
    return {
        "key": sensitivity.key,
        "plot": docs.plot(sensitivity.key)[0].relative_to(docs.root).as_posix(),
        "hidden": max(len(sensitivity.series) - MAX_SERIES, 0),
    }


def _curve_table(curves: list[Curve]) -> Table | None:
    rows = tuple(
        (
            words(curve.values) or ABSENT,
            point.scenario,
            str(point.world_size),
            _band(point.speedup, "×"),
            f"{point.world_size / curve.points[0].world_size:.2f}×",
            _band(point.efficiency, " %", 100.0),
            plain(point.flag or ""),
        )
        for curve in curves
        for point in curve.points
    )
    header = ("setting", "scenario", ">ranks", ">speed-up", ">ideal", ">efficiency", "flag")
    return Table(header, rows) if rows else None


def _settings_table(settings: list[SettingResult]) -> Table:
    rows = tuple(
        (
            item.scenario,
            words(item.values) or ABSENT,
            f"{item.repeats_valid} / {item.repeats_planned}",
            ABSENT if item.world_size is None else str(item.world_size),
            ABSENT if item.per_rank_batch is None else f"{item.per_rank_batch} ({item.global_batch})",
            _band(item.samples_per_s),
            _band(item.step_ms),
            _band(item.exposed_comm_ms),
            _band(item.exposed_comm_pct, " %"),
            _band(item.overlap_ratio, " %", 100.0),
        )
        for item in settings
    )
    header = (
        "scenario", "setting", ">repeats", ">ranks", ">batch (global)", ">samples/s", ">step ms",
        ">exposed ms", ">exposed", ">hidden",
    )  # fmt: skip
    return Table(header, rows)


def _band(value: Estimate | None, unit: str = "", factor: float = 1.0) -> str:
    """The mean, and half of the band behind it where there is one; a band that is not even, as its ends; the
    range of two repeats as what was seen.
    """
    if value is None:
        return ABSENT
    mean = f"{number(factor * value.mean)}{unit}"
    if value.low is None or value.high is None:
        return mean
    if value.basis == "range":
        return f"{mean}, seen {number(factor * value.low)} to {number(factor * value.high)}"
    up, down = factor * (value.high - value.mean), factor * (value.mean - value.low)
    if abs(up - down) <= 1e-9 * max(abs(up), abs(down)):
        return f"{mean} ± {number(up)}"
    return f"{mean} ({number(factor * value.low)} to {number(factor * value.high)})"
