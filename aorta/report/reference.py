"""The reference of findings, thresholds and fixed numbers: for `aorta explain`, the docs and the README.

All of it comes from the findings' modules and from the table of thresholds, so no page disagrees with the
code. Tests keep the pages up to date.
"""

from __future__ import annotations

import ast
import difflib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import aorta.diagnosis
import aorta.metrics
from aorta.config.thresholds import ThresholdRow, rows
from aorta.diagnosis.finding import NOT_DETERMINED, FindingSpec
from aorta.diagnosis.findings import PLUGINS
from aorta.diagnosis.mistakes import CATALOGUE
from aorta.diagnosis.plugins import Plugin
from aorta.errors import ConfigError
from aorta.report.blocks import Block, Bullet, Bullets, Code, Heading, Paragraph, coded
from aorta.report.markdown import md_table, to_markdown
from aorta.report.tables import Table

_COMMENT_COLUMN = 38
"""Column at which the comments of the configuration's thresholds begin."""


class FixedNumber(NamedTuple):
    """A number in the code that decides, and that no key changes."""

    module: str
    name: str
    value: str
    sentence: str


def finding_blocks(plugin: Plugin[FindingSpec], *, level: int = 1) -> list[Block]:
    """Returns the page of one finding."""
    spec, page = plugin.spec, plugin.page
    keys = {row.key: row for row in rows()}
    causes = [Bullet((Code(code), f": {words}")) for code, words in spec.sub_causes.items()]
    causes.append(Bullet((Code(NOT_DETERMINED), ": no measurement shows the cause.")))
    blocks: list[Block] = [
        Heading(f"{spec.kind}: {page.title}", level),
        Heading("What it finds", level + 1),
        Paragraph(page.finds),
        _thresholds([keys[key] for key in spec.thresholds]),
        Paragraph(f"It is measured from {spec.measured_from}."),
        Heading("Why it costs time", level + 1),
        Paragraph(page.costs),
        Heading("What to do", level + 1),
        Paragraph(coded(page.remedy)),
    ]
    if spec.sub_causes:
        blocks += [Heading("Causes behind it", level + 1), Bullets(tuple(causes))]
    return blocks


def threshold_blocks(key: str) -> list[Block]:
    """Returns the page of one threshold.

    Raises:
        ConfigError: there is no such key.
    """
    found = next((row for row in rows() if row.key == key.removeprefix("thresholds.")), None)
    if found is None:
        kinds, keys = [plugin.spec.kind for plugin in PLUGINS], [row.key for row in rows()]
        typed = key.removeprefix("thresholds.").lower().replace("-", "_").replace(" ", "_")
        likely = difflib.get_close_matches(typed, [*kinds, *CATALOGUE, *keys], n=1)
        raise ConfigError(
            f"{key} is not a finding, mistake or threshold",
            f"{f'did you mean {likely[0]}? ' if likely else ''}findings: {', '.join(kinds)}; "
            f"thresholds: {', '.join(keys)}; `aorta explain` alone lists the mistakes, too",
        )
    users = [plugin.spec.kind for plugin in PLUGINS if found.key in plugin.spec.thresholds]
    also = [Paragraph(f"It decides: {', '.join(users)}.")] if users else []
    return [
        Heading(f"thresholds.{found.key}", 1),
        Paragraph(found.sentence),
        _thresholds([found]),
        Paragraph(found.why),
        *also,
        Paragraph(
            ("Try another value: ", Code(f"aorta analyze PATH --override thresholds.{found.key}=VALUE"))
        ),
    ]


def overview_blocks() -> list[Block]:
    """Returns the list of findings, and of thresholds."""
    kinds = [Bullet((Code(item.spec.kind), f": {item.page.title.partition(': ')[2]}")) for item in PLUGINS]
    return [
        Heading("Findings", 1),
        Bullets(tuple(kinds)),
        Heading("Thresholds", 1),
        _thresholds(rows()),
        Paragraph(("More of one: ", Code("aorta explain KIND"), " or ", Code("aorta explain KEY"))),
    ]


def _thresholds(found: list[ThresholdRow]) -> Bullets:
    return Bullets(
        tuple(
            Bullet((Code(f"thresholds.{row.key}"), f" (default {row.value}, {row.unit}): {_said(row)}"))
            for row in found
        )
    )


def _said(row: ThresholdRow) -> str:
    return row.sentence + (f" Default for kernel traces: {row.traces}." if row.traces else "")


def findings_page() -> str:
    """Returns `docs/findings.md`."""
    table = tuple(
        (f"thresholds.{row.key}", row.value, row.traces or "the same", row.unit, row.sentence, row.why)
        for row in rows()
    )
    numbers = tuple((f"{item.module}.{item.name}", item.value, item.sentence) for item in fixed_numbers())
    blocks: list[Block] = [
        Heading("Findings", 1),
        Paragraph(
            (
                "This page is generated from the code. To read a part of it in a terminal, run ",
                Code("aorta explain KIND"),
                ".",
            )
        ),
        *(block for plugin in PLUGINS for block in finding_blocks(plugin, level=2)),
        Heading("Thresholds"),
        Paragraph(
            (
                "Set these keys in the block ",
                Code("thresholds"),
                " of the configuration. To change one for a single analysis, use ",
                Code("aorta analyze PATH --override thresholds.KEY=VALUE"),
                " or ",
                Code("aorta aggregate"),
                ". The report names each changed threshold, with its default.",
            )
        ),
        Table(("threshold", "default", "of traces", "unit", "what it decides", "why this default"), table),
        Heading("Fixed numbers"),
        Paragraph("These numbers also affect the verdict. They cannot be configured."),
        Table(("where", "value", "what it decides"), numbers),
    ]
    return to_markdown(blocks)


def findings_table() -> str:
    """Returns the README's table of findings, in Markdown."""
    keys = {row.key: row for row in rows()}
    found = []
    for plugin in PLUGINS:
        spec, row = plugin.spec, keys[plugin.spec.thresholds[0]]
        limit = keys["exposed_comm_pct"].default if row.null else row.default
        sign, unit = (
            "<" if spec.fires_below else ">",
            row.unit.replace("the step", spec.value_of or "the step"),
        )
        found.append((spec.name, f"{sign} {limit} {unit}: {spec.value}", spec.measured_from))
    return str(
        md_table(
            Table(("finding", "reported when (thresholds can be configured)", "measured from"), tuple(found))
        )
    )


def configuration_rows() -> str:
    """Returns the rows of the thresholds in `docs/configuration.md`."""
    lines = []
    for row in rows():
        null = f" Null: {row.null}." if row.null else ""
        traces = f" For kernel traces: {row.traces}." if row.traces else ""
        lines.append(f"| `thresholds.{row.key}` | {row.default} | {row.unit}. {row.sentence}{null}{traces} |")
    return "\n".join(lines)


def configuration_block() -> str:
    """Returns the block of the thresholds in `config/default.yaml`, with its comments."""
    lines = [f"{'thresholds:':<{_COMMENT_COLUMN}}# when a measured value becomes a finding"]
    for row in rows():
        value = f"{row.default}.0" if row.default.isdigit() else row.default
        null = f" Null: {row.null}." if row.null else ""
        lines.append(f"{f'  {row.key}: {value}':<{_COMMENT_COLUMN}}# {row.sentence}{null}")
    return "\n".join(lines)


def fixed_numbers() -> list[FixedNumber]:
    """Returns the public numbers of diagnosis and metrics that have a docstring, with what it says."""
    found: list[FixedNumber] = []
    for package in (aorta.diagnosis, aorta.metrics):
        for info in sorted(
            pkgutil.walk_packages(package.__path__, f"{package.__name__}."), key=lambda item: item.name
        ):
            found += _constants(info.name, Path(package.__path__[0]))
    return found


def _constants(module: str, root: Path) -> Iterator[FixedNumber]:
    below = root.joinpath(*module.split(".")[2:])
    path = below / "__init__.py" if below.is_dir() else below.with_suffix(".py")
    body = ast.parse(path.read_text(encoding="utf-8")).body
    for node, after in zip(body, [*body[1:], None], strict=True):
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
            continue
        name, value = node.targets[0].id, ast.unparse(node.value)
        said = after.value if isinstance(after, ast.Expr) else None
        if name.isupper() and not name.startswith("_") and _is_number(node.value):
            text = said.value if isinstance(said, ast.Constant) and isinstance(said.value, str) else ""
            if text:
                yield FixedNumber(module.removeprefix("aorta."), name, value, " ".join(text.split()))


def _is_number(node: ast.expr) -> bool:
    """True if an expression is made of numbers alone; sets of bits and negative codes are not."""
    arithmetic = (ast.BinOp, ast.Mult, ast.Div, ast.LShift)
    return all(
        isinstance(part, arithmetic)
        or (isinstance(part, ast.Constant) and isinstance(part.value, (int, float)))
        for part in ast.walk(node)
    )
