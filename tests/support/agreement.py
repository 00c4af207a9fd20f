"""Checks that headline, picture, table and JSON of one analysis say the same."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec.structs import replace

from aorta.artefacts.analysis import Analysis
from aorta.report import content, sections
from aorta.report.bare import bare_page
from aorta.report.blocks import words
from aorta.report.parts import mean_parts, step_parts
from aorta.report.terminal import MAX_LINES, run_screen
from aorta.report.web_page import single_page
from aorta.report.web_run import WebRun

_OF_STEP = re.compile(r"of (?:each )?([\d,]+(?:\.\d+)?) ms (?:per )?step")
_COST = re.compile(r"([\d.]+)(?: to ([\d.]+))? of ([\d.]+) ms per step \((\d+)(?: to (\d+))? %\)")


def contradictions(analysis: Analysis) -> list[str]:
    """Returns what the documents of an analysis say against each other; empty where they agree."""
    return [
        *_parts(analysis),
        *_headline(analysis),
        *_finding(analysis),
        *_ranks(analysis),
        *_pages(analysis),
    ]


def _parts(analysis: Analysis) -> Iterator[str]:
    parts, step = step_parts(analysis), mean_parts(analysis).get("step_ms")
    if not parts or not step:
        return
    whole, share = sum(part.ms or 0.0 for part in parts), sum(part.pct or 0.0 for part in parts)
    if abs(whole - step) > 0.005 * step or abs(share - 100.0) > 0.5:
        yield f"the parts are {whole:.3f} ms and {share:.2f} %, the step is {step:.3f} ms"
    for row in analysis.breakdown.per_rank:
        mine = [
            row.compute_ms, row.exposed_comm_ms, row.exposed_copy_ms, row.data_wait_ms, row.host_ms,
            row.unclassified_ms, row.unseen_ms,
        ]  # fmt: skip
        total = sum(ms or 0.0 for ms in mine)
        if abs(total - row.step_ms) > 0.005 * row.step_ms:
            yield f"the parts of rank {row.rank} are {total:.3f} ms, its step is {row.step_ms:.3f} ms"


def _headline(analysis: Analysis) -> Iterator[str]:
    said, step = analysis.verdict.statement, content.step_ms(analysis)
    for found in _OF_STEP.findall(said):
        if step and abs(float(found.replace(",", "")) - step) > max(0.01 * step, 0.06):
            yield f"the headline has a step of {found} ms, the picture one of {step:.2f} ms"
    for low, high, whole, first, last in _COST.findall(said):
        for ms, share in ((low, first), (high or low, last or first)):
            if abs(100.0 * float(ms) / float(whole) - float(share)) > 1.0:
                yield f"{ms} of {whole} ms are not {share} %"


def _finding(analysis: Analysis) -> Iterator[str]:
    kind, main = analysis.verdict.kind, content.main_finding(analysis)
    causes = [item.kind for item in analysis.findings if item.symptom_of is None]
    if kind == "healthy" and analysis.findings:
        yield f"healthy, with findings: {causes}"
    if main is None and kind != "healthy":
        yield f"no finding is the verdict {kind}"
    if main is not None and main.symptom_of is not None:
        yield f"the verdict {kind} is a symptom of {main.symptom_of}"
    until_then = [item.ranks for item in analysis.findings if item.symptom_of is None and item is not main]
    if kind == "incomplete" and main is not None and not main.ranks and until_then:
        main = replace(main, ranks=until_then[0])  # no rank failed first: those of the cause until then
    if main is not None and main.ranks != analysis.verdict.ranks:
        yield f"the verdict is of ranks {analysis.verdict.ranks}, its finding of ranks {main.ranks}"
    for finding in analysis.findings:
        rules = [rule for rule in analysis.measured if rule.kind == finding.kind]
        if rules and not any(rule.fired for rule in rules):
            yield f"{finding.kind} is a finding, and not measured beyond its threshold"
        gained = finding.estimated_speedup
        if gained is not None and not 0 < gained.low <= gained.high * (1 + 1e-9):
            yield f"{finding.kind}: a speed-up from {gained.low} to {gained.high}"
        if gained is None or gained.expected is None:
            continue
        if not gained.low * (1 - 1e-9) <= gained.expected <= gained.high * (1 + 1e-9):
            yield f"{finding.kind}: {gained.expected} is not within {gained.low} to {gained.high}"


def _ranks(analysis: Analysis) -> Iterator[str]:
    known = {row.rank for row in analysis.breakdown.per_rank}
    named = set(analysis.verdict.ranks)
    if known and not named <= known:
        yield f"the verdict names ranks {sorted(named - known)}, which have no breakdown"
    page = bare_page(analysis)
    late = [item.rank for item in page.worst_ranks if item.charged_ms]
    if analysis.verdict.kind == "straggler" and named and late and late[0] not in named:
        yield f"the verdict names ranks {sorted(named)}, the table has rank {late[0]} first"
    for rank in named if len(named) == 1 else ():
        if not re.search(rf"\brank {rank}\b", analysis.verdict.statement, re.IGNORECASE):
            yield f"the headline does not name rank {rank}"


def _pages(analysis: Analysis) -> Iterator[str]:
    page = bare_page(analysis)
    pairs = sections.summary(analysis, page, None).pairs
    html = single_page(WebRun("run", analysis, page, (), None))
    screen = run_screen(analysis, page, None, [])
    if len(lines := screen.splitlines()) > MAX_LINES:
        yield f"the screen has {len(lines)} lines"
    if not lines[0].startswith(f"{analysis.verdict.kind}: ") or not lines[-1].startswith(lines[0][:20]):
        yield "the screen does not begin and end with the verdict"
    names = [name for name, _ in pairs]
    if len(set(names) - {"Also found", "Likely reason"}) + sum(
        name in ("Also found", "Likely reason") for name in names
    ) != len(names):
        yield f"a row stands twice: {names}"
    for name, line in pairs:
        if not words(line).strip() or words(line).strip() in ("—", "None"):
            yield f"{name} is empty"
    body = html.partition("<body>")[2].partition('id="data"')[0]
    if body.count("<h3>Where the time in a step goes") > 1:
        yield "the picture stands twice"
    for bad in ("None", "nan", "NaN", "inf ", "[]", "{}"):
        if re.search(rf"[>\s]{re.escape(bad)}[<\s,;]", body):
            yield f"the page shows {bad}"
