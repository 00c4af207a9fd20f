"""The report on a terminal: at most 40 lines, the verdict first and last."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from aorta.artefacts.aggregate import Aggregate
from aorta.artefacts.analysis import Analysis
from aorta.artefacts.clean import plain
from aorta.artefacts.page import RunPage, StepPart
from aorta.diagnosis.findings import kind_name
from aorta.report import content, sections
from aorta.report.aggregate import ScenarioReport, decisive
from aorta.report.blocks import Block, FactList, Line, words
from aorta.report.front import front
from aorta.report.parts import shown_parts
from aorta.report.render import to_text
from aorta.report.tables import Table
from aorta.report.text import number, quantity, wrap
from aorta.units import plural

MAX_LINES = 40
_BAR = 40
_MAX_SCENARIOS = 6
_LONGEST = 190
"""Characters of one fact: two lines."""


def run_screen(analysis: Analysis, page: RunPage, run: str | None, files: Sequence[str]) -> str:
    """The screen of one run or of raw traces.

    Args:
        analysis: of it.
        page: of it.
        run: path of the run directory; None for raw traces.
        files: what was written.
    """
    verdict = f"{analysis.verdict.kind}: {analysis.verdict.statement}"
    middle = [wrap(content.heading(analysis), 2), "", *_bars(page.parts)]
    return _screen(verdict, middle, [sections.summary(analysis, page, run)], files)


def scenarios_screen(aggregate: Aggregate, reports: Sequence[ScenarioReport], files: Sequence[str]) -> str:
    """The screen of all scenarios; `files` were written."""
    main = decisive(reports)
    middle: list[str] = []
    if main is not None and (bars := _bars(main.page.parts)):
        middle += [wrap(f"{main.scenario.name}, mean over ranks:", 2), *bars]
    if len(reports) > 1:
        rows = tuple(
            (report.scenario.name, number(report.page.step_ms), kind_name(report.analysis.verdict.kind))
            for report in _shown(reports, main)
        )
        middle += ["", *_text([Table(("scenario", ">step ms", "verdict"), rows)])]
        if (more := len(reports) - _MAX_SCENARIOS) > 0:
            middle.append(f"  and {plural(more, 'more scenario')}")
    blocks = [block for block in front(aggregate, reports, None) if isinstance(block, FactList)][:1]
    return _screen(f"verdict: {aggregate.verdict.statement}", middle, blocks, files)


def _shown(reports: Sequence[ScenarioReport], main: ScenarioReport | None) -> list[ScenarioReport]:
    """The first scenarios, and the one of the verdict where it is not among them."""
    first = list(reports[:_MAX_SCENARIOS])
    if main is not None and all(report is not main for report in first):
        first[-1] = main
    return first


def _screen(verdict: str, middle: list[str], blocks: Sequence[FactList], files: Sequence[str]) -> str:
    first, last = wrap(verdict).splitlines(), [*(plain(file) for file in files), plain(verdict)]
    body = ["", *middle, "", *_text([_shortened(block) for block in blocks]), ""]
    room = MAX_LINES - len(first) - len(last)
    if len(body) > room:
        body = [*body[: room - 1], "  ... the rest is in the report"]
    return "\n".join([*first, *body, *last])


def _shortened(block: FactList) -> FactList:
    pairs: list[tuple[str, Line]] = []
    for name, line in block.pairs:
        if name == sections.CHECK and isinstance(line, tuple):
            # A command has a line of its own, so that it can be copied.
            *said, command = line
            pairs += [(name, words(tuple(said)).rstrip()), ("", command)]
        else:
            pairs.append((name, line if name in ("Try it", "Likely reason") else _cut(words(line))))
    return FactList(tuple(pairs))


def _cut(said: str) -> str:
    """A fact of at most `_LONGEST` characters, cut after a word."""
    return textwrap.shorten(said, _LONGEST, placeholder=" …") if len(said) > _LONGEST else said


def _text(blocks: Sequence[Block]) -> list[str]:
    return to_text(blocks).rstrip("\n").splitlines()


def _bars(parts: Sequence[StepPart]) -> list[str]:
    """One line for each part of the step, the bar as long as its share."""
    shown = shown_parts(parts)
    wide = max((len(part.name) for part in shown), default=0)
    return [
        f"  {part.name:<{wide}}  {'█' * round((part.pct or 0.0) / 100 * _BAR) or '▏':<{_BAR}}"
        f"  {part.pct:5.1f} %  {quantity(part.ms, 'ms')}"
        for part in shown
    ]
