"""Blocks and charts as HTML. Everything that came from data is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from aorta.artefacts.clean import plain
from aorta.artefacts.page import HeatMap, StepPart, WorkerHeat
from aorta.report.blocks import (
    Block,
    Bullets,
    Code,
    FactList,
    Folded,
    Heading,
    Line,
    Link,
    Listing,
    Paragraph,
    Picture,
    Piece,
    Strong,
    pieces,
)
from aorta.report.palette import EXPOSED, part_colour
from aorta.report.parts import HEAT_GROUPS, heat_columns, shown_parts
from aorta.report.tables import Table
from aorta.report.text import number

_SLOW = 1.5
"""S whose cell is darkest; slower ones move it up."""
_NOTABLE = 1.05
_PALE = 0.55
"""Luma above which words on a colour are dark."""


def esc(value: object) -> str:
    """`value` as text inside an element or an attribute."""
    return escape(plain(value), quote=True)


def to_html(blocks: Iterable[Block]) -> str:
    """The blocks as HTML; pictures are left out, the page has charts of its own."""
    return "\n".join(_block(block) for block in blocks)


def _block(block: Block) -> str:
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, FactList):
        rows = "".join(f"<dt>{esc(name)}</dt><dd>{inline(line)}</dd>" for name, line in block.pairs)
        return f"<dl>{rows}</dl>"
    if isinstance(block, Bullets):
        tag, items = "ol" if block.numbered else "ul", []
        for item in block.items:
            below = "".join(f"<li>{inline(line)}</li>" for line in item.below)
            items.append(f"<li>{inline(item.line)}{f'<ul>{below}</ul>' if below else ''}</li>")
        return f"<{tag}>{''.join(items)}</{tag}>"
    if isinstance(block, Heading):
        return f"<h{block.level}>{esc(block.text)}</h{block.level}>"
    if isinstance(block, Folded):
        return folded(block.title, to_html(block.blocks))
    return f"<pre>{esc(block.text)}</pre>" if isinstance(block, Listing) else _paragraph(block)


def _paragraph(block: Paragraph | Picture) -> str:
    return f"<p>{inline(block.line)}</p>" if isinstance(block, Paragraph) else ""


def folded(title: str, inner: str) -> str:
    """Details behind a title; `inner` is HTML."""
    return f"<details><summary>{esc(title)}</summary>{inner}</details>"


def inline(line: Line) -> str:
    """A line of running text."""
    return "".join(_piece(piece) for piece in pieces(line))


def _piece(piece: Piece) -> str:
    if isinstance(piece, str):
        ends = (" " if piece.startswith(" ") else "", " " if piece.endswith(" ") and piece.strip() else "")
        return f"{ends[0]}{esc(piece)}{ends[1]}"
    if isinstance(piece, Link):
        return f'<a href="{esc(piece.target)}">{esc(piece.text)}</a>'
    tag = "strong" if isinstance(piece, Strong) else "code"
    assert isinstance(piece, (Strong, Code))
    return f"<{tag}>{esc(piece.text)}</{tag}>"


def _table(table: Table) -> str:
    sides = [' class="right"' if right else "" for right in table.right]
    head = "".join(f"<th{side}>{esc(name)}</th>" for name, side in zip(table.names, sides, strict=True))
    rows = "".join(
        "<tr>"
        + "".join(f"<td{side}>{esc(cell)}</td>" for cell, side in zip(row, sides, strict=True))
        + "</tr>"
        for row in table.rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def csv_button(kind: str, name: str, run: int = 0) -> str:
    """A button that saves the data of a chart."""
    return f'<button type="button" data-csv="{kind}" data-run="{run}" data-name="{esc(name)}">CSV</button>'


def stacked(scenarios: Sequence[tuple[str, Sequence[StepPart]]]) -> str:
    """Draws one bar per scenario, as long as its step, with the parts of the step."""
    shown = [(name, shown_parts(parts)) for name, parts in scenarios]
    top = max((sum(part.ms or 0.0 for part in parts) for _, parts in shown), default=0.0)
    if not top:
        return '<p class="note">Not measured: no scenario has a steady step with a breakdown.</p>'
    rows, named = [], dict[str, str]()
    for name, parts in shown:
        spans = []
        for part in parts:
            named[part.name] = colour = part_colour(part.key)
            width = 100.0 * (part.ms or 0.0) / top
            words = f"{part.pct:.0f} %" if width >= 5 and part.pct is not None else ""
            title = esc(f"{part.name}: {number(part.ms)} ms, {part.pct:.1f} %")
            look = f'class="{_ink(colour)}" style="width:{width:.2f}%;background:{colour}"'
            spans.append(f'<span {look} title="{title}">{words}</span>')
        whole = f"{number(sum(part.ms or 0.0 for part in parts))} ms" if parts else "not measured"
        rows.append(
            f'<tr><th scope="row">{esc(name)}</th>'
            f'<td class="bar"><div class="stack">{"".join(spans)}</div></td>'
            f'<td class="right">{whole}</td></tr>'
        )
    return f'<table class="bars"><tbody>{"".join(rows)}</tbody></table>{legend(named.items())}'


def legend(named: Iterable[tuple[str, str]]) -> str:
    """Names and their colours."""
    items = "".join(f'<li><i style="background:{colour}"></i>{esc(name)}</li>' for name, colour in named)
    return f'<ul class="legend">{items}</ul>'


def waterfall(parts: Sequence[StepPart]) -> str:
    """The parts of a step below each other; each begins where the one above ends."""
    rows, left, shown = [], 0.0, shown_parts(parts)
    for part in shown:
        pct = part.pct or 0.0
        bar = f"margin-left:{left:.2f}%;width:{pct:.2f}%;background:{part_colour(part.key)};height:1.1rem"
        rows.append(
            f'<tr><th scope="row">{esc(part.name)}</th>'
            f'<td class="bar"><div class="fill" style="{bar}"></div></td>'
            f'<td class="right">{number(part.ms)} ms</td><td class="right">{pct:.1f} %</td></tr>'
        )
        left = min(left + pct, 100.0)
    if not rows:
        return '<p class="note">Not measured: no rank has a steady step with a breakdown.</p>'
    whole = number(sum(part.ms or 0.0 for part in shown))
    rows.append(
        f'<tr><th scope="row">whole step</th><td></td><td class="right">{whole} ms</td><td></td></tr>'
    )
    return f'<table class="bars"><tbody>{"".join(rows)}</tbody></table>'


def heat_table(found: HeatMap) -> str:
    """The map of ranks and causes, in % of the mean step; the darker, the more."""
    own, charged = found.groups
    first = [' class="first"' if place == own and charged else "" for place in range(own + charged)]
    heads = "".join(
        f'<th scope="col"{mark}>{esc(name)}</th>'
        for name, mark in zip(heat_columns(found), first, strict=True)
    )
    groups = f'<th></th><th colspan="{own}">{HEAT_GROUPS[0]}, %</th>' if own else "<th></th>"
    if charged:
        groups += f'<th colspan="{charged}" class="first">{HEAT_GROUPS[1]}, %</th>'
    top = max([cell for row in found.values for cell in row if cell is not None] + [30.0])
    shades = ["--effect" if name == EXPOSED else "--heat" for name in found.columns]
    rows = []
    for name, values in zip(found.rows, found.values, strict=True):
        marked = zip(values, shades, first, strict=True)
        cells = "".join(_heat_cell(value, top, shade, mark) for value, shade, mark in marked)
        rows.append(f'<tr><th scope="row">{esc(name)}</th>{cells}</tr>')
    return (
        f'<div class="scroll"><table class="heat"><thead><tr>{groups}</tr><tr><th></th>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def worker_table(found: WorkerHeat) -> str:
    """The map of workers and steps: the darker, the slower. A step as fast as with equal workers is white,
    and S below `_NOTABLE` is only in the tip.
    """
    heads = "".join(f'<th scope="col">{esc(name)}</th>' for name in found.columns)
    top = max([cell for row in found.values for cell in row] + [_SLOW]) - 1.0
    rows = []
    for name, values in zip(found.rows, found.values, strict=True):
        shades = [0.85 * max(value - 1.0, 0.0) / top for value in values]
        cells = "".join(
            f'<td title="{value:.3f}" style="background:rgba(var(--heat),{shade:.2f})">'
            f"{f'{value:.1f}' if value >= _NOTABLE else ''}</td>"
            for value, shade in zip(values, shades, strict=True)
        )
        rows.append(f'<tr><th scope="row">{esc(name)}</th>{cells}</tr>')
    return (
        f'<div class="scroll"><table class="heat workers"><thead><tr><th>step</th>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _heat_cell(value: float | None, top: float, shade: str, mark: str) -> str:
    if value is None:
        return f"<td{mark}>—</td>"
    words = f"{value:.0f}" if value >= 0.5 or value == 0 else "&lt;1"
    return f'<td{mark} style="background:rgba(var({shade}),{0.85 * value / top:.2f})">{words}</td>'


def _ink(colour: str) -> str:
    red, green, blue = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    return "light" if 0.299 * red + 0.587 * green + 0.114 * blue > _PALE else "dark"
