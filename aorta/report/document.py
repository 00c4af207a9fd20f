"""The document over all scenarios: `docs/BOTTLENECK_ANALYSIS.md`, its JSON twin and their plots."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from aorta.artefacts.aggregate import Aggregate, Scaling
from aorta.artefacts.analysis import Finding, Interval, Problem
from aorta.artefacts.io import write_json, write_text
from aorta.report import content, evidence, overview, style
from aorta.report.aggregate import NO_CAUSE, ScenarioReport, decisive, gain_words, rank_time_ms
from aorta.report.efficiency import reasons, tree_table
from aorta.report.parts import mean_parts
from aorta.report.render import render
from aorta.report.tables import Table
from aorta.report.text import ABSENT, KIND_NAMES, gain, listing, number, plain, quantity, share

MAX_BOTTLENECKS = 10
MAX_PROBLEMS = 12


def write_documents(docs: Path, aggregate: Aggregate, reports: Sequence[ScenarioReport]) -> Path:
    """Write the Markdown, the JSON and the plots below `docs`; returns the Markdown's path.

    Plots are written beside the documents, so that the Markdown's links hold wherever the results are.
    """
    plots = docs / "bottleneck_analysis"
    curves = []
    for scaling in aggregate.scaling:
        members = [report for report in reports if report.scenario.family == scaling.family]
        if members:
            name = f"scaling_{scaling.family}" if scaling.family else "scaling"
            # One scenario is no curve, and its own figure shows its step.
            plot = f"bottleneck_analysis/{name}" if len(members) > 1 else None
            if plot is not None:
                with style.styled():
                    figure = overview.scaling_figure(
                        scaling, [(item.scenario.name, item.analysis) for item in members]
                    )
                    style.save(figure, plots / f"{name}.png", plots / f"{name}.svg")
            curves.append(_curve(scaling, members, plot))
    sections = []
    for report in reports:
        for source in (report.run.plot_png, report.run.plot_svg):
            if source.is_file():
                plots.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, plots / f"{report.scenario.name}{source.suffix}")
        sections.append(_section(docs, report))
    path = docs / "BOTTLENECK_ANALYSIS.md"
    write_text(path, _markdown(aggregate, reports, curves, sections))
    write_json(docs / "BOTTLENECK_ANALYSIS.json", aggregate)
    return path


def _markdown(
    aggregate: Aggregate,
    reports: Sequence[ScenarioReport],
    curves: list[dict[str, Any]],
    sections: list[dict[str, Any]],
) -> str:
    main, summary = decisive(reports), aggregate.summary
    finding = content.main_finding(main.analysis) if main is not None else None
    table, cut = _bottlenecks(reports)
    return render(
        "BOTTLENECK_ANALYSIS.md.j2",
        aggregate=aggregate,
        finding=finding,
        cost=content.cost_words(main.analysis, finding) if main is not None else "",
        confidence="none (nothing was measured)"
        if summary is None
        else content.confidence_words(summary.confidence),
        shared=[report.scenario.name for report in reports if content.spreads_one_machine(report.analysis)],
        quality=_quality_table(reports),
        notes=_notes(reports),
        problems=_problems(reports),
        bottlenecks=table,
        bottlenecks_cut=cut,
        curves=curves,
        breakdown=_breakdown_table(reports),
        sections=sections,
        gains=[gain_words(item) for item in aggregate.recommended],
        thresholds=reports[0].analysis.thresholds if reports else {},
        definitions=content.DEFINITIONS,
        no_copies=content.NO_COPIES,
    )


def _quality_table(reports: Sequence[ScenarioReport]) -> Table:
    rows = []
    for report in reports:
        quality = report.analysis.data_quality
        rows.append(
            (
                report.scenario.name,
                plain(report.analysis.job_id or ABSENT),
                plain(quality.state or ABSENT),
                _of(quality.nodes_seen, quality.nodes_expected),
                _of(quality.ranks_seen, quality.ranks_expected),
                content.steady_words(quality),
                str(len(quality.problems)),
            )
        )
    return Table(
        ("scenario", "job", "ended as", ">nodes", ">ranks", ">steady steps", ">problems"), tuple(rows)
    )


def _of(seen: int, expected: int | None) -> str:
    return f"{seen} / {ABSENT if expected is None else expected}"


def _notes(reports: Sequence[ScenarioReport]) -> list[tuple[str, str]]:
    """(scenarios, note), each note once."""
    by_note: dict[str, list[str]] = {}
    for report in reports:
        for note in [*([report.note] if report.note else []), *report.analysis.data_quality.notes]:
            by_note.setdefault(note, []).append(report.scenario.name)
    return [(listing(names), note) for note, names in by_note.items()]


def _problems(reports: Sequence[ScenarioReport]) -> list[tuple[str, list[Problem], int]]:
    """(scenario, its first problems, how many more)."""
    return [
        (report.scenario.name, items[:MAX_PROBLEMS], max(len(items) - MAX_PROBLEMS, 0))
        for report in reports
        if (items := report.analysis.data_quality.problems)
    ]


def _bottlenecks(reports: Sequence[ScenarioReport]) -> tuple[Table | None, str]:
    """The causes by rank-time lost, and how many of them are in the table where that is not all."""
    found = [
        (report, finding)
        for report in reports
        for finding in report.analysis.findings
        if finding.symptom_of is None and finding.kind not in NO_CAUSE
    ]
    if not found:
        return None, ""
    found.sort(key=lambda pair: -rank_time_ms(pair[0].analysis, pair[1]))
    rows = tuple(
        (str(place), *_bottleneck_row(report, finding))
        for place, (report, finding) in enumerate(found[:MAX_BOTTLENECKS], start=1)
    )
    header = (
        ">#",
        "scenario",
        "cause",
        "behind it",
        "where",
        ">measured",
        ">threshold",
        ">costs a step",
        ">predicted gain",
    )
    cut = f"{len(rows)} of {len(found)} shown, worst first. " if len(found) > len(rows) else ""
    return Table(header, rows), cut


def _bottleneck_row(report: ScenarioReport, finding: Finding) -> tuple[str, ...]:
    price = content.cost(report.analysis, finding)
    return (
        report.scenario.name,
        KIND_NAMES[finding.kind],
        content.sub_cause_name(finding),
        content.scope(finding),
        quantity(finding.value, finding.unit),
        quantity(finding.threshold, finding.unit),
        ABSENT if price is None else f"{number(price[0])} ms ({price[1]:.0f} %)",
        gain(finding.estimated_speedup),
    )


def _breakdown_table(reports: Sequence[ScenarioReport]) -> Table | None:
    rows = []
    for report in reports:
        means = mean_parts(report.analysis)
        if not means or means["step_ms"] is None:
            continue
        parts = [share(means[field], means["step_ms"]) for _, field, _ in style.PARTS]
        run = report.analysis.throughput
        rows.append(
            (
                report.scenario.name,
                number(means["step_ms"]),
                *parts,
                number(run.step_ms_median) if run is not None else ABSENT,
                number(run.step_ms_p95) if run is not None else ABSENT,
            )
        )
    header = ("scenario", ">step ms", *(f">{name}" for name, _, _ in style.PARTS), ">median ms", ">p95 ms")
    return Table(header, tuple(rows)) if rows else None


def _curve(scaling: Scaling, members: Sequence[ScenarioReport], plot: str | None) -> dict[str, Any]:
    rows = tuple(
        (
            point.scenario,
            str(point.nodes),
            str(point.world_size),
            str(point.global_batch),
            number(point.samples_per_s),
            str(point.runs),
            f"{point.speedup:.2f}×{_range(point.speedup_interval, 1, 2)}",
            f"{100 * point.efficiency:.1f} %{_range(point.efficiency_interval, 100, 1)}",
            plain(point.flag or ""),
        )
        for point in scaling.points
    )
    header = (
        "scenario",
        ">nodes",
        ">ranks",
        ">batch",
        ">samples/s",
        ">runs",
        ">speed-up",
        ">efficiency",
        "flag",
    )
    return {
        "scaling": scaling,
        "table": Table(header, rows) if rows else None,
        "plot": plot,
        "tree": tree_table(scaling.points),
        "reasons": reasons(scaling.points),
        "banded": any(item.confidence is not None for item in _intervals(scaling)),
        "ranged": any(item.confidence is None for item in _intervals(scaling)),
        "shared": any(content.spreads_one_machine(report.analysis) for report in members),
    }


def _intervals(scaling: Scaling) -> list[Interval]:
    return [item for point in scaling.points if (item := point.efficiency_interval) is not None]


def _range(found: Interval | None, factor: float, digits: int) -> str:
    """` (0.85 to 0.91)` of an interval times `factor`, ` (seen ...)` of two runs; empty for None."""
    if found is None:
        return ""
    seen = "seen " if found.confidence is None else ""
    return f" ({seen}{factor * found.low:.{digits}f} to {factor * found.high:.{digits}f})"


def _section(docs: Path, report: ScenarioReport) -> dict[str, Any]:
    table, note = content.breakdown_table(report.analysis)
    files = [
        report.run.report,
        report.run.analysis,
        report.run.plot_svg,
        report.run.metrics_csv,
        report.run.gpu_csv,
        report.run.cpu_csv,
        report.run.manifest,
        report.run.config,
        report.run.sacct_summary,
        report.run.job_metadata,
    ]
    return {
        "name": report.scenario.name,
        "analysis": report.analysis,
        "confidence": content.confidence_words(report.page.confidence),
        "parts": evidence.parts_table(report.page.parts),
        "spread": evidence.spread_table(report.analysis.breakdown.per_rank)
        if content.is_cut(report.analysis)
        else None,
        "worst": evidence.worst_table(report.page, report.analysis),
        "lateness": evidence.lateness_table(report.analysis),
        "what_if": evidence.what_if_table(report.analysis),
        "replay": evidence.replay_words(report.analysis),
        "traces": evidence.trace_tables(report.analysis),
        "overhead": evidence.overhead_words(report.analysis),
        "plot": f"bottleneck_analysis/{report.scenario.name}" if report.run.plot_png.is_file() else None,
        "measured": content.measured_table(report.analysis.measured),
        "breakdown": table,
        "breakdown_note": note,
        "use": Table(("what", ">value"), tuple(content.utilization_rows(report.analysis))),
        "folder": _relative(report.run.root, docs),
        "files": [(path.name, quote(_relative(path, docs))) for path in files if path.is_file()],
    }


def _relative(path: Path, docs: Path) -> str:
    return Path(os.path.relpath(path.resolve(), docs.resolve())).as_posix()
