"""The document over all scenarios: `docs/BOTTLENECK_ANALYSIS.md`, its JSON twin and their plots."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from aorta.artefacts.aggregate import Aggregate, Scaling
from aorta.artefacts.analysis import Finding
from aorta.artefacts.clean import plain
from aorta.artefacts.files import is_file
from aorta.artefacts.io import write_json, write_text
from aorta.artefacts.layout import RunDir
from aorta.artefacts.measured import Interval
from aorta.diagnosis.findings import kind_name
from aorta.report import content, overview, sections, style
from aorta.report.aggregate import NO_CAUSE, ScenarioReport, gain_words, rank_time_ms
from aorta.report.blocks import (
    Block,
    Bullet,
    Bullets,
    Code,
    FactList,
    Folded,
    Link,
    Paragraph,
    Picture,
    Piece,
    Strong,
    bullets,
)
from aorta.report.efficiency import reasons, tree_note, tree_table
from aorta.report.front import FOLDER, NAME, front, relative, scaling_name, shares_machine
from aorta.report.glossary import glossary_page
from aorta.report.markdown import to_markdown
from aorta.report.tables import Table
from aorta.report.text import ABSENT, gain, number, quantity
from aorta.report.web_page import redactor_of, web_page
from aorta.report.web_run import WebRun

MAX_BOTTLENECKS = 10


def write_documents(
    docs: Path, aggregate: Aggregate, reports: Sequence[ScenarioReport], *, redact: bool = False
) -> Path:
    """Write the Markdown, the JSON and the plots below `docs`; returns the Markdown's path.

    Plots are written beside the documents, so that the Markdown's links hold wherever the results are.
    `redact` takes names of hosts, users and paths out of the HTML page.
    """
    plots = docs / FOLDER
    with style.styled():
        if reports:
            parts = [(report.scenario.name, report.page.parts) for report in reports]
            most = max(report.page.ranks for report in reports)
            style.save(overview.parts_figure(parts, most), plots / "overview.png", plots / "overview.svg")
        for scaling in aggregate.scaling:
            if len(scaling.points) > 1:
                figure = overview.scaling_figure(scaling, shared=shares_machine(scaling, reports))
                name = _plot(scaling)
                style.save(figure, plots / f"{name}.png", plots / f"{name}.svg")
    for report in reports:
        for source in (report.run.plot_png, report.run.plot_svg):
            if is_file(source):
                plots.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, plots / f"{report.scenario.name}{source.suffix}")
    path = docs / f"{NAME}.md"
    write_text(plots / "glossary.md", glossary_page())
    write_text(path, to_markdown([*front(aggregate, reports, docs), *_folded(docs, aggregate, reports)]))
    write_json(docs / f"{NAME}.json", aggregate)
    shown = redacted(aggregate, reports) if redact else (aggregate, reports)
    write_text(docs / f"{NAME}.html", document_page(*shown))
    return path


def document_page(aggregate: Aggregate, reports: Sequence[ScenarioReport]) -> str:
    """The HTML page over all scenarios."""
    last = [*_causes(aggregate, reports), *_scaling(aggregate, reports), _quality_of_all(aggregate, reports)]
    return web_page(front(aggregate, reports, None), _web_runs(reports), last)


def redacted(
    aggregate: Aggregate, reports: Sequence[ScenarioReport]
) -> tuple[Aggregate, list[ScenarioReport]]:
    """The same without names of hosts, users and paths."""
    runs = _web_runs(reports)
    redactor = redactor_of(runs, aggregate)
    clean = [run.redacted(redactor) for run in runs]
    return redactor.record(aggregate), [
        replace(
            report,
            run=RunDir(Path(run.folder or "")),
            analysis=run.analysis,
            page=run.page,
            note=redactor.text(report.note),
            timelines=run.timelines,
        )
        for report, run in zip(reports, clean, strict=True)
    ]


def _web_runs(reports: Sequence[ScenarioReport]) -> list[WebRun]:
    """The runs as the HTML page shows them."""
    return [
        WebRun(report.scenario.name, report.analysis, report.page, report.timelines, str(report.run.root))
        for report in reports
    ]


def _plot(scaling: Scaling) -> str:
    return f"scaling_{scaling.family}" if scaling.family else "scaling"


def _folded(docs: Path, aggregate: Aggregate, reports: Sequence[ScenarioReport]) -> Iterator[Folded]:
    yield from _causes(aggregate, reports)
    yield from _scaling(aggregate, reports)
    for report in reports:
        verdict = kind_name(report.analysis.verdict.kind)
        yield Folded(f"{report.scenario.name}: {verdict}", tuple(_scenario(docs, report)))
    yield _quality_of_all(aggregate, reports)


def _causes(aggregate: Aggregate, reports: Sequence[ScenarioReport]) -> Iterator[Folded]:
    if table := _bottlenecks(reports):
        yield Folded("All causes, by time lost", (*table, *_recommended(aggregate)))


def _scaling(aggregate: Aggregate, reports: Sequence[ScenarioReport]) -> Iterator[Folded]:
    for scaling in aggregate.scaling:
        yield Folded(f"{scaling_name(scaling)}: throughput and efficiency", tuple(_curve(scaling, reports)))


def _quality_of_all(aggregate: Aggregate, reports: Sequence[ScenarioReport]) -> Folded:
    return Folded("Data quality of all scenarios", tuple(_quality(aggregate, reports)))


def _bottlenecks(reports: Sequence[ScenarioReport]) -> list[Block]:
    """The causes by rank-time lost."""
    found = [
        (report, finding)
        for report in reports
        for finding in report.analysis.findings
        if finding.symptom_of is None and finding.kind not in NO_CAUSE
    ]
    if not found:
        return []
    found.sort(key=lambda pair: -rank_time_ms(pair[0].analysis, pair[1]))
    rows = tuple(_bottleneck_row(report, finding) for report, finding in found[:MAX_BOTTLENECKS])
    header = ("scenario", "cause", "sub-cause", "where", ">measured", ">threshold", ">cost per step")
    note = (
        "Sorted by the time lost per step, added up over all ranks (not shown). A scenario is one "
        "configuration of the job, for example a number of nodes. Measured: the value that is compared with "
        "the threshold. The cost per step is how much shorter the mean step would be without the cause. It "
        "can differ from the measured value, which may refer to a single rank. "
        "Symptoms are listed in each scenario's section below, not here."
    )
    if len(found) > len(rows):
        note = f"The first {len(rows)} of {len(found)} causes. {note}"
    return [Table((*header, ">best-case speed-up"), rows), Paragraph(note)]


def _bottleneck_row(report: ScenarioReport, finding: Finding) -> tuple[str, ...]:
    price = content.cost(report.analysis, finding)
    return (
        report.scenario.name,
        kind_name(finding.kind),
        content.sub_cause_name(finding),
        content.scope(finding),
        content.measured_words(report.analysis, finding),
        quantity(finding.threshold, finding.unit),
        ABSENT if price is None else f"{number(price[0])} ms ({price[1]:.0f} %)",
        gain(finding.estimated_speedup),
    )


def _recommended(aggregate: Aggregate) -> list[Block]:
    items = tuple(
        Bullet(
            (Strong(item.kind), f" ({', '.join(item.scenarios)}): best-case speed-up {gain_words(item)}"),
            tuple(sections.advice(item.actions)),
        )
        for item in aggregate.recommended
    )
    return [Bullets(items, numbered=True)] if items else []


def _curve(scaling: Scaling, reports: Sequence[ScenarioReport]) -> Iterator[Block]:
    points = scaling.points
    if len(points) > 1:
        yield Picture(
            "Throughput against the ideal, efficiency, efficiency tree", f"{FOLDER}/{_plot(scaling)}"
        )
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
        for point in points
    )
    header = (
        "scenario",
        ">nodes",
        ">ranks",
        ">batch, all ranks",
        ">samples/s",
        ">runs",
        ">speed-up",
        ">efficiency",
    )
    if len(points) > 1:
        flagged = any(point.flag for point in points)
        names, shown = ((*header, "note"), rows) if flagged else (header, tuple(row[:-1] for row in rows))
        yield Table(names, shown)
    if notes := list(_curve_notes(scaling, shared=shares_machine(scaling, reports))):
        yield bullets(notes)
    if len(points) == 1 and (tree := tree_table(points)) is not None:
        yield Paragraph(tree_note(points))
        yield tree
    lines = [*(loss.statement for loss in scaling.losses), *reasons(points)]
    if lines:
        yield bullets(lines)


def _curve_notes(scaling: Scaling, *, shared: bool) -> Iterator[str]:
    if scaling.reference and len(scaling.points) > 1:
        yield f"The reference is {scaling.reference}, the smallest scenario in the curve."
    if scaling.label:
        words = overview.LABELS[scaling.label]
        yield f"{words[0].upper()}{words[1:]}."
    intervals = [item for point in scaling.points if (item := point.efficiency_interval) is not None]
    runs = max((point.runs for point in scaling.points), default=1)
    if any(item.confidence is not None for item in intervals):
        several = ", over several runs by Student's t" if runs > 2 else ""
        yield f"Ranges are 95 % intervals: within one run by resampling blocks of its steps{several}."
    if any(item.confidence is None for item in intervals):
        yield (
            "Seen is the lowest and highest value of two runs. It is not a confidence interval; repeat once "
            "more to get one."
        )
    if runs > 1:
        yield "This table shows means over all counted runs. Everything else shows the newest run."
    if scaling.reason:
        yield scaling.reason
    if shared:
        yield "The nodes share one machine, so this is the scaling of that machine and not of a cluster."


def _range(found: Interval | None, factor: float, digits: int) -> str:
    """` (0.85 to 0.91)` of an interval times `factor`, ` (seen ...)` of two runs; empty for None."""
    if found is None:
        return ""
    seen = "seen " if found.confidence is None else ""
    return f" ({seen}{factor * found.low:.{digits}f} to {factor * found.high:.{digits}f})"


def _scenario(docs: Path, report: ScenarioReport) -> Iterator[Block]:
    run = report.run
    yield Paragraph(Strong(report.analysis.verdict.statement))
    pictured = is_file(run.plot_png)
    if pictured:
        about = (
            f"Where the time goes, by rank and by cause, within one step and over the run: {run.root.name}"
        )
        yield Picture(about, f"{FOLDER}/{report.scenario.name}")
    yield sections.summary(report.analysis, report.page, str(run.root))
    if report.note:
        yield Paragraph(report.note)
    yield from sections.details(report.analysis, report.page, charts=pictured)
    files = (run.report, run.analysis, run.metrics_csv, run.gpu_csv, run.cpu_csv)
    more = (run.manifest, run.config, run.sacct_summary, run.job_metadata)
    links = [Link(path.name, relative(path, docs)) for path in (*files, *more) if is_file(path)]
    yield Paragraph(("Files in the run directory ", Code(relative(run.root, docs)), *_listed(links)))


def _listed(links: Sequence[Link]) -> Iterator[Piece]:
    """`: a, b`."""
    for place, link in enumerate(links):
        yield ", " if place else ": "
        yield link


def _quality(aggregate: Aggregate, reports: Sequence[ScenarioReport]) -> Iterator[Block]:
    for problem in aggregate.missing:
        yield FactList((("Missing", problem.reason),))
    if shared := [item.scenario.name for item in reports if content.spreads_one_machine(item.analysis)]:
        yield Paragraph(
            f"The nodes of {', '.join(shared)} are processes of one machine. Their times are real, but more "
            "nodes add no hardware: all of them share the same cores, memory and disk."
        )
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
    header = ("scenario", "job", "final state", ">nodes", ">ranks", ">steady steps", ">problems")
    yield Table(header, tuple(rows)) if rows else Paragraph("No scenario could be analysed.")


def _of(seen: int, expected: int | None) -> str:
    return f"{seen} / {ABSENT if expected is None else expected}"
