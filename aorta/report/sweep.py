"""The document over a sweep: `docs/SWEEP_ANALYSIS.md`, its JSON twin and its plots."""

from __future__ import annotations

from collections.abc import Container, Iterator

from aorta.artefacts.clean import plain
from aorta.artefacts.io import write_json, write_text
from aorta.artefacts.study_layout import SweepDocs
from aorta.artefacts.sweep import RepeatedMean, ScalingCurve, SettingResult, SweepAnalysis, words
from aorta.metrics.sweep import MIN_BANDED
from aorta.report import style
from aorta.report.blocks import Block, Code, Heading, Line, Paragraph, Picture, Strong, bullets
from aorta.report.markdown import to_markdown
from aorta.report.overview import LABELS
from aorta.report.sweep_plots import MAX_SERIES, key_figure, scaling_figure
from aorta.report.tables import Table
from aorta.report.text import ABSENT, number
from aorta.units import plural


def write_sweep(docs: SweepDocs, analysis: SweepAnalysis) -> None:
    """Write the Markdown, the JSON and the plots."""
    drawn: set[str] = set()
    with style.styled():
        if analysis.curves:
            style.save(scaling_figure(analysis.curves, analysis.shared_machine), *docs.plot("scaling"))
        for sensitivity in analysis.sensitivities:
            if (figure := key_figure(analysis, sensitivity)) is not None:
                drawn.add(sensitivity.key)
                style.save(figure, *docs.plot(sensitivity.key))
    write_text(docs.markdown, to_markdown(_blocks(docs, analysis, drawn)))
    write_json(docs.json, analysis)


def _blocks(docs: SweepDocs, analysis: SweepAnalysis, drawn: Container[str]) -> Iterator[Block]:
    sweep = analysis.sweep
    yield Heading("Sweep analysis", 1)
    yield Paragraph(Strong(analysis.statement))
    if analysis.shared_machine:
        yield Paragraph(
            "The nodes are processes of one machine. Their times are real, but more "
            "nodes add no hardware: all of them share the same cores, memory and disk."
        )
    yield Heading("What was run")
    each = f", {sweep.global_batch} samples per step shared by all ranks" if sweep.global_batch else ""
    yield Paragraph(f"{len(sweep.points)} points: {plural(sweep.repeats, 'run')} of each setting{each}.")
    if sweep.keys:
        yield Table(("key", "values"), tuple((key, ", ".join(values)) for key, values in sweep.keys.items()))
    failed: list[Line] = [
        (Strong("Not counted"), f": {item.reason}", *((" ", Code(item.file)) if item.file else ()))
        for item in analysis.failed
    ]
    yield bullets(failed) if failed else Paragraph("Every point completed and is included.")
    if analysis.curves:
        yield Heading("Scaling")
        yield _picture(docs, "scaling", "Speed-up and efficiency")
        notes = [f"This is {label}." for label in _labels(analysis.curves)]
        notes += _hidden("settings", len(analysis.curves))
        notes += [f"{words(curve.values)}: {curve.reason}" for curve in analysis.curves if curve.reason]
        if notes:
            yield bullets(notes)
        if table := _curve_table(analysis.curves):
            yield table
    for sensitivity in analysis.sensitivities:
        yield Heading(sensitivity.key)
        if sensitivity.key not in drawn:
            yield Paragraph("Not measured in any valid run.")
            continue
        yield _picture(docs, sensitivity.key, sensitivity.key)
        if hidden := _hidden("settings of the other keys", len(sensitivity.series)):
            yield bullets(hidden)
    yield Heading("All settings")
    yield _settings_table(analysis.settings)
    yield bullets(list(_reading(analysis)))


def _picture(docs: SweepDocs, name: str, about: str) -> Picture:
    source = docs.plot(name)[0].relative_to(docs.root).with_suffix("").as_posix()
    return Picture(about, source, vectors=False)


def _hidden(what: str, count: int) -> list[str]:
    if count <= MAX_SERIES:
        return []
    return [f"The plot shows the first {MAX_SERIES} {what}; the table has {count - MAX_SERIES} more."]


def _reading(analysis: SweepAnalysis) -> Iterator[Line]:
    repeats = [setting.repeats_valid for setting in analysis.settings]
    yield (
        "Means over the valid repeats, using only steady steps. Exposed: communication per step that is not "
        "overlapped by compute, as a mean over ranks, and its share of the step. Hidden: the share of "
        "communication that is overlapped by compute."
    )
    if max(repeats, default=0) >= MIN_BANDED:
        yield (
            "± and ranges in brackets are 95 % confidence bands by Student's t over repeats. The bands of "
            "speed-up and efficiency include the spread of the reference."
        )
    if 2 in repeats:
        yield (
            "Seen is the lowest and highest value of two repeats, for a ratio over all pairs of repeats. It "
            "is not a confidence band; three repeats give one."
        )
    if max(repeats, default=0) < 2:
        yield (
            "Each value comes from a single run, so there are no confidence bands. Add ",
            Code("--repeats 3"),
            " to get them.",
        )
    yield (
        "Efficiency is samples/s per rank ÷ samples/s per rank of the reference. The reference is the "
        "smallest number of nodes with a valid run."
    )


def _labels(curves: list[ScalingCurve]) -> list[str]:
    return [LABELS[label] for label in dict.fromkeys(curve.label for curve in curves) if label is not None]


def _curve_table(curves: list[ScalingCurve]) -> Table | None:
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


def _band(value: RepeatedMean | None, unit: str = "", factor: float = 1.0) -> str:
    """The mean, followed by half of its band if there is one. An asymmetric band is shown by its ends, and
    the range of two repeats as *seen*.
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
