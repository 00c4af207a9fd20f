"""Blocks to documents: plain text of at most 100 columns, and Markdown in which data never becomes markup."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote

from aorta.artefacts.clean import plain
from aorta.report.blocks import (
    Block,
    Bullet,
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
    words,
)
from aorta.report.tables import Table, md_table, text_table
from aorta.report.text import code, md, wrap


def to_text(blocks: Iterable[Block]) -> str:
    """The blocks as plain text; pictures are left out."""
    parts = [part for block in blocks if (part := _text(block))]
    return "\n\n".join(parts) + "\n"


def _text(block: Block) -> str:
    if isinstance(block, Table):
        return text_table(block)
    if isinstance(block, FactList):
        wide = max((len(name) for name, _ in block.pairs), default=0)
        return "\n".join(_text_fact(f"{plain(name):<{wide}}  ", line) for name, line in block.pairs)
    if isinstance(block, Bullets):
        marks = [f"{place}. " if block.numbered else "- " for place in range(1, len(block.items) + 1)]
        return "\n".join(_text_bullet(item, mark) for item, mark in zip(block.items, marks, strict=True))
    if isinstance(block, Heading):
        title = plain(block.text)
        return f"{title}\n{'=' * len(title)}" if block.level == 1 else wrap(title.upper())
    if isinstance(block, Folded):
        return wrap(block.title.upper()) + "\n" + to_text(block.blocks).rstrip("\n")
    return _text_lines(block)


def _text_lines(block: Paragraph | Listing | Picture) -> str:
    if isinstance(block, Listing):
        return "\n".join(f"    {plain(line)}".rstrip() for line in block.text.splitlines())
    return wrap(words(block.line), 2) if isinstance(block, Paragraph) else ""


def _text_fact(name: str, line: Line) -> str:
    """A name and its words, wrapped; a command stays on one line, so that it can be copied."""
    return f"  {name}{plain(line.text)}" if isinstance(line, Code) else wrap(words(line), 2, name)


def _text_bullet(item: Bullet, mark: str) -> str:
    lines = [wrap(words(item.line), 2, mark)]
    return "\n".join(lines + [wrap(words(line), 2 + len(mark), "- ") for line in item.below])


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
