"""Renders blocks as Markdown, in which text from data is harmless; plain text does without this module."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote

from markupsafe import Markup

from aorta.artefacts.clean import plain
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
from aorta.report.tables import Table

_MARKDOWN = re.compile(r"[\\`*\[\]|~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|(?<=[A-Za-z]):(?=//)")
_LINE_START = re.compile(r"^(?:\d+(?=[.)](?:\s|$))|(?=#{1,6}(?:\s|$)|[+-](?:\s|$)|[=-]+$))")
_CODE = re.compile(r"[\w./=+:@,%~ -]+", re.ASCII)


def md(value: object) -> Markup:
    """`plain` text that Markdown and HTML show as it is: nothing in it becomes markup, a link or a cell.

    An underscore between letters or digits has no meaning in Markdown and stays readable.
    """
    if isinstance(value, Markup):
        return value
    text = _MARKDOWN.sub(lambda match: "\\" + match[0], plain(value))
    text = _LINE_START.sub(lambda match: match[0] + "\\", text, count=1)
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("$", "&#36;")
    return Markup(text)  # noqa: S704 - everything with a meaning was escaped above


def code(value: object) -> Markup:
    """A code span where the text has only characters that mean nothing inside one, else `md`."""
    text = plain(value)
    return Markup(f"`{text}`") if _CODE.fullmatch(text) else md(text)  # noqa: S704 - by the pattern


def md_table(table: Table) -> Markup:
    """A Markdown table with every cell escaped."""
    rules = ["---:" if right else "---" for right in table.right]
    rows = [[md(cell) for cell in row] for row in (table.names, *table.rows)]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "| " + " | ".join(rules) + " |")
    return Markup("\n".join(lines))  # noqa: S704 - cells are escaped


def to_markdown(blocks: Iterable[Block]) -> str:
    """The blocks as GitHub-flavoured Markdown."""
    return "\n\n".join(_markdown(block) for block in blocks) + "\n"


def _markdown(block: Block) -> str:
    if isinstance(block, Table):
        return str(md_table(block))
    if isinstance(block, FactList):
        return "\n".join(f"- **{md(name)}**: {_inline(line)}" for name, line in block.pairs)
    if isinstance(block, Bullets):
        return "\n".join(_md_bullets(block))
    if isinstance(block, Heading):
        return f"{'#' * block.level} {md(block.text)}"
    if isinstance(block, Folded):
        return f"<details><summary>{md(block.title)}</summary>\n\n{to_markdown(block.blocks)}\n</details>"
    return _inline(block.line) if isinstance(block, Paragraph) else _md_figure(block)


def _md_figure(block: Picture | Listing) -> str:
    if isinstance(block, Picture):
        return _md_picture(block)
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", block.text)), default=0))
    return f"{fence}python\n{block.text}\n{fence}"


def _md_picture(block: Picture) -> str:
    source = quote(block.source)
    vectors = f" ([as SVG]({source}.svg))" if block.vectors else ""
    return f"![{md(block.about)}]({source}.png){vectors}"


def _md_bullets(block: Bullets) -> Iterator[str]:
    for place, item in enumerate(block.items, start=1):
        mark = f"{place}. " if block.numbered else "- "
        yield mark + _inline(item.line)
        yield from (f"{' ' * len(mark)}- {_inline(line)}" for line in item.below)


def _inline(line: Line) -> str:
    return "".join(_piece(piece) for piece in pieces(line))


def _piece(piece: Piece) -> str:
    if isinstance(piece, Strong):
        return f"**{md(piece.text)}**"
    if isinstance(piece, Code):
        return str(code(piece.text))
    if isinstance(piece, Link):
        anchor = piece.target.startswith("#")
        return f"[{md(piece.text)}]({piece.target if anchor else quote(piece.target)})"
    # Pieces of one line keep the spaces between them.
    inner = piece.strip(" ")
    start = len(piece) - len(piece.lstrip(" "))
    return piece[:start] + str(md(inner)) + piece[start + len(inner) :]
