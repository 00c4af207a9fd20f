"""Renders blocks as plain text of at most 100 columns."""

from __future__ import annotations

from collections.abc import Iterable

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
    Listing,
    Paragraph,
    Picture,
    words,
)
from aorta.report.tables import Table, text_table
from aorta.report.text import wrap


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
