"""`BOTTLENECK_ANALYSIS.html`: the report as one file that opens without a network."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files
from typing import Any, NamedTuple

from aorta.artefacts.analysis import Analysis
from aorta.artefacts.page import Doing, Excerpt, ExcerptLane, HeatMap, Strip
from aorta.diagnosis.findings import kind_name
from aorta.report import content, sections
from aorta.report.blocks import Block, FactList, Heading, Paragraph, Strong, words
from aorta.report.excerpt import cut
from aorta.report.glossary import glossary
from aorta.report.html import (
    csv_button,
    esc,
    folded,
    heat_table,
    legend,
    stacked,
    to_html,
    waterfall,
    worker_table,
)
from aorta.report.palette import CURVES, DOING
from aorta.report.parts import HEAT_NOTE, loading_words, shown_parts
from aorta.report.redact import Redactor
from aorta.report.step_scale import ceiling
from aorta.report.text import number
from aorta.report.web_run import WebRun
from aorta.units import plural

_CODES: dict[Doing, str] = {
    "compute": "c", "wait": "w", "transfer": "t", "data_wait": "d", "host": "h", "hidden": "u"
}  # fmt: skip
_LIBRARY = "uPlot-1.6.32.min"
_MUCH = 0.05
"""Share of the step from which waits that the own host needs are mentioned."""
MAX_SEGMENTS = 110_000
"""Largest number of segments of all timelines: about 10 bytes each."""


def redactor_of(runs: Sequence[WebRun], *more: Any) -> Redactor:
    """Knows the names of hosts and users in the runs and in further records."""
    records = [record for run in runs for record in (run.analysis, run.page)]
    strips = [strip.name for run in runs for strip in run.page.utilization.strips if strip.nodes == 1]
    # Several nodes of one machine are called `node 0 (gpu-7)`.
    hosts = [match[1] if (match := re.fullmatch(r"node \d+ \((.*)\)", name)) else name for name in strips]
    return Redactor([*records, *more], hosts)


def single_page(run: WebRun, *, redact: bool = False) -> str:
    """The page of one run, or of raw traces."""
    if redact:
        run = run.redacted(redactor_of([run]))
    summary = sections.summary(run.analysis, run.page, run.folder)
    first: list[Block] = [
        Heading("Bottleneck analysis", 1),
        Paragraph(run.analysis.verdict.statement),
        summary,
        *(sections.next_block(run.folder, summary) if run.folder is not None else []),
    ]
    return web_page(first, [run])


def web_page(first: Iterable[Block], runs: Sequence[WebRun], last: Iterable[Block] = ()) -> str:
    """The whole page.

    Args:
        first: the first screen; its first two blocks are the title and the verdict.
        runs: in the order of the page. A single run is open, of several each is folded.
        last: what comes after the runs.
    """
    title, verdict, *rest = first
    runs = _fitting(runs)
    assert isinstance(title, Heading)
    assert isinstance(verdict, Paragraph)
    body = [
        f'<div class="top"><h1>{esc(title.text)}</h1>'
        '<button type="button" id="theme">light / dark</button></div>',
        f'<p class="verdict">{esc(words(verdict.line))}</p>',
        f'<p class="note">{esc(content.headings([run.analysis for run in runs]))}</p>' if runs else "",
        *_where_a_step_goes(runs),
        to_html(rest),
        *(_run(place, run, alone=len(runs) == 1) for place, run in enumerate(runs)),
        to_html(last),
        folded("Terms", to_html([glossary()])),
    ]
    return _document(title.text, "\n".join(body), _data(runs))


def _where_a_step_goes(runs: Sequence[WebRun]) -> Iterator[str]:
    """The picture of the first screen: a single run's parts, or the runs side by side; none without parts."""
    if not any(run.page.parts for run in runs):
        return
    title, (first, *others) = "Where the time in a step goes", runs
    if not others:
        yield _figure(_Chart("waterfall", title, waterfall(first.page.parts), _mean_of(first)), 0, first.name)
    else:
        yield _figure(_Chart("parts", title, stacked([(run.name, run.page.parts) for run in runs])))


def _mean_of(run: WebRun) -> str:
    count = len(run.analysis.breakdown.per_rank)
    over = f" and {count:,} ranks" if count > 1 else ""
    parts = loading_words(run.page.parts)
    return f"mean of {content.counted_steps(run.analysis)}{over}" + (f"; {parts}" if parts else "")


def _document(title: str, body: str, data: dict[str, Any]) -> str:
    web = files("aorta.report") / "web"
    styles, scripts = (
        [(web / name).read_text(encoding="utf-8") for name in (f"{_LIBRARY}.{kind}", f"report.{kind}")]
        for kind in ("css", "js")
    )
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    text = text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
        for script in scripts
    )
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {hashes}"
    return "\n".join(
        (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{esc(title)}</title>",
            f"<style>{''.join(styles)}</style>\n</head>\n<body>",
            body,
            f'<script type="application/json" id="data">{text}</script>',
            *(f"<script>{script}</script>" for script in scripts),
            "</body>\n</html>\n",
        )
    )


class _Chart(NamedTuple):
    csv: str
    """Name of the script's table with its data."""
    title: str
    inner: str
    """HTML."""
    note: str = ""


def _figure(chart: _Chart, place: int = 0, name: str = "") -> str:
    button = csv_button(chart.csv, f"{name}_{chart.csv}" if name else chart.csv, place)
    said = f'<p class="note">{esc(chart.note)}</p>' if chart.note else ""
    return f"<figure><h3>{esc(chart.title)} {button}</h3>{said}{chart.inner}</figure>"


def _run(place: int, run: WebRun, *, alone: bool) -> str:
    analysis, page = run.analysis, run.page
    blocks: list[Block] = []
    if not alone:
        summary = sections.summary(analysis, page, run.folder)
        blocks = [
            Paragraph(Strong(analysis.verdict.statement)),
            Paragraph(content.heading(analysis)),
            summary,
        ]
    said = [] if alone else sections.provenance(analysis)
    evidence: list[Block] = [Heading("Evidence", 3), *([FactList(tuple(said))] if said else [])]
    evidence += sections.details(analysis, page, charts=True)
    charts = [_figure(chart, place, run.name) for chart in _charts(run, alone=alone)]
    inner = "\n".join((to_html(blocks), *charts, to_html(evidence)))
    name = esc(f"{run.name}: {kind_name(analysis.verdict.kind)}")
    if alone:
        return f'<section data-run-section="{place}"><h2>{name}</h2>{inner}</section>'
    return f'<details data-run-section="{place}"><summary>{name}</summary>{inner}</details>'


def _charts(run: WebRun, *, alone: bool) -> Iterator[_Chart]:
    """The charts that have something to show; the parts of a single run are on the first screen."""
    page = run.page
    if page.parts and not alone:
        yield _Chart("waterfall", "Parts of the step", waterfall(page.parts), _mean_of(run))
    if page.heat_map is not None:
        note = page.heat_map.note or HEAT_NOTE.replace("\n", "; ")
        yield _Chart("heat", "Time by rank and cause", heat_table(page.heat_map), note)
    if page.workers is not None:
        inner = worker_table(page.workers)
        yield _Chart("workers", "Which worker is slow in which step", inner, page.workers.note)
    if run.timelines:
        yield _timeline(run.timelines, hidden=_own_hosts_wait(run.analysis))
    if page.steps is not None and page.steps.ms:
        each = page.steps.steps_a_point
        note = "step time of the slowest rank" + (f"; the longest of each {each} steps" if each > 1 else "")
        if beyond := sum(ms > ceiling(page.steps) for ms in page.steps.ms):
            longest = number(max(page.steps.ms))
            note += f"; {plural(beyond, 'longer step')} not in the chart, up to {longest} ms"
        yield _Chart("steps", "Step time", '<div class="plot" data-plot="steps"></div>', note)
    if page.utilization.strips:
        plots = "".join(
            f'<p class="note">{esc(strip.name)}</p>'
            f'<div class="plot" data-plot="monitors" data-strip="{place}"></div>'
            for place, strip in enumerate(page.utilization.strips)
        )
        note = page.utilization.absent or "the driver's counter also counts kernels that only wait"
        yield _Chart("monitors", "Utilisation over time", plots, note)


def _own_hosts_wait(analysis: Analysis) -> bool:
    """True if hosts work behind waits in collectives, which lanes show as waits alone."""
    rows = analysis.breakdown.per_rank
    return any((row.own_host_wait_ms or 0.0) >= _MUCH * row.step_ms for row in rows)


def _timeline(found: Sequence[Excerpt], *, hidden: bool) -> _Chart:
    used = {item.doing for one in found for lane in one.lanes for item in lane.segments}
    names = _renamed(found)
    shown = [
        (names.get(_CODES[doing], words_), colour)
        for doing, (words_, colour) in DOING.items()
        if doing in used
    ]
    first = found[0]
    which = "traced step" if first.traced else "steady step" if first.all_detailed else "detailed step"
    choose = "".join(
        f'<button type="button" data-step="{place}" aria-pressed="{"false" if place else "true"}">'
        f"{esc(_named(one))}</button> "
        for place, one in enumerate(found)
    )
    buttons = "".join(
        f'<button type="button" data-zoom="{key}">{label}</button> '
        for key, label in (("in", "zoom in"), ("out", "zoom out"), ("all", "whole step"))
    )
    label = f"Timeline of one {which} of {plural(len(first.lanes), 'rank')}"
    inner = (
        (f'<div class="keys">{choose}</div>' if len(found) > 1 else "")
        + f'<div class="keys">{buttons}<span class="note">drag to zoom, double-click for the whole step; '
        "arrow keys: choose a bar; + − 0: zoom; Shift and arrow keys: move the view</span></div>"
        f'<canvas class="lanes" tabindex="0" role="img" aria-label="{esc(label)}"></canvas>'
        f'<div class="status" aria-live="polite"></div>{legend(shown)}'
    )
    if hidden:
        inner += (
            '<p class="note">A rank that waits here may not be ready itself: its host is still working.</p>'
        )
    title = f"One {which}, rank by rank" if len(found) > 1 else f"The slowest {which}, rank by rank"
    return _Chart("timeline", title, inner, _about(first))


def _renamed(found: Sequence[Excerpt]) -> dict[str, str]:
    """Other names of what ranks do, by code: without known waits, nothing is known to be a transfer."""
    waits = any(item.doing == "wait" for one in found for lane in one.lanes for item in lane.segments)
    return {} if waits else {_CODES["transfer"]: "exposed communication"}


def _named(found: Excerpt) -> str:
    """`typical: step 33, 107 ms`."""
    which = "typical" if found.typical else "slowest"
    return f"{which}: step {found.global_step:,}, {number(found.step_ms)} ms"


def _about(found: Excerpt) -> str:
    """Says which step is shown, how long the median step is, and how to read the lanes."""
    said = (
        f"step {found.global_step:,}: {number(found.step_ms)} ms; the median is {number(found.median_ms)} ms"
    )
    return "; ".join(part for part in (said, found.note) if part)


def _data(runs: Sequence[WebRun]) -> dict[str, Any]:
    return {
        "doing": {code: DOING[doing] for doing, code in _CODES.items()},
        "parts": [
            (run.name, part.name, _short(part.ms), _short(part.pct))
            for run in runs
            for part in shown_parts(run.page.parts)
        ],
        "runs": [_run_data(run) for run in runs],
    }


def _run_data(run: WebRun) -> dict[str, Any]:
    page, heat, times = run.page, run.page.heat_map, run.page.steps
    found: dict[str, Any] = {"name": run.name, "window": page.utilization.window_s}
    if heat is not None:
        values = [[_short(value) for value in row] for row in heat.values]
        found["heat"] = {"columns": _csv_columns(heat), "rows": heat.rows, "values": values}
    if page.workers is not None:
        workers = page.workers
        found["workers"] = {"columns": workers.columns, "rows": workers.rows, "values": workers.values}
    found["names"] = _renamed(run.timelines)
    found["timelines"] = [
        {"step": one.global_step, "about": _about(one), "lanes": [_lane(lane) for lane in one.lanes]}
        for one in run.timelines
    ]
    if times is not None:
        use = run.analysis.throughput
        found["steps"] = {
            "x": times.global_step,
            "ms": [_short(value) for value in times.ms],
            "top": _short(ceiling(times)) if times.ms else None,
            "steady": [int(value) for value in times.steady],
            "detailed": [int(value) for value in times.detailed],
            "median": use.slowest_rank_ms_median if use else None,
            "p95": use.slowest_rank_ms_p95 if use else None,
        }
    found["monitors"] = [_strip(strip) for strip in page.utilization.strips]
    return found


def _csv_columns(heat: HeatMap) -> list[str]:
    """The columns of the map as a table of its own, without the heads of its groups."""
    own = heat.groups[0]
    return [*heat.columns[:own], *(f"others wait for its {name}" for name in heat.columns[own:])]


def _lane(lane: ExcerptLane) -> tuple[int, str | None, str, list[int]]:
    """Rank, host, a letter per segment, and numbers per segment: the gap before it, its length (µs), and for
    waits the rank that it waits for (-1: not known).
    """
    letters, numbers, last = [], list[int](), 0
    for item in lane.segments:
        letters.append(_CODES[item.doing])
        start, end = round(item.start_ms * 1000), round(item.end_ms * 1000)
        numbers += [start - last, end - start]
        if item.doing == "wait":
            numbers.append(-1 if item.waits_for is None else item.waits_for)
        last = end
    return lane.rank, lane.host, "".join(letters), numbers


def _fitting(runs: Sequence[WebRun]) -> list[WebRun]:
    """The runs with as many ranks in their timelines as fit into the page."""
    found = list(runs)
    for limit in (512, 256, 128, 64, 32, 16, 8, 4):
        found = [
            run._replace(
                timelines=tuple(cut(one, run.analysis.verdict.ranks, limit) for one in run.timelines)
            )
            for run in found
        ]
        lanes = [lane for run in found for one in run.timelines for lane in one.lanes]
        if sum(len(lane.segments) for lane in lanes) <= MAX_SEGMENTS:
            break
    return found


def _strip(strip: Strip) -> dict[str, Any]:
    curves = []
    for curve in strip.curves:
        name, colour = CURVES[curve.what]
        one = {"name": name, "colour": colour, "x": curve.seconds, "y": curve.middle}
        if curve.low is not None and curve.high is not None:
            one |= {"low": curve.low, "high": curve.high}
        curves.append(one)
    return {"name": strip.name, "curves": curves}


def _short(value: float | None) -> float | None:
    """`value` with three decimals: microseconds of a millisecond."""
    return None if value is None else round(value, 3)
