"""A report as data: headings, sentences, lists, tables and pictures, which `render` turns into a document."""

from __future__ import annotations

from msgspec import Struct

from aorta.report.tables import Table


class Strong(Struct, frozen=True):
    """Words that stand out."""

    text: str


class Code(Struct, frozen=True):
    """Words that can be typed: a command, a file, a key."""

    text: str


class Link(Struct, frozen=True):
    """Words that lead to `target`, a relative path or an anchor of the same document."""

    text: str
    target: str


Piece = str | Strong | Code | Link
Line = Piece | tuple[Piece, ...]
"""One line of running text."""


class Heading(Struct, frozen=True):
    """A heading; level 1 is the title."""

    text: str
    level: int = 2


class Paragraph(Struct, frozen=True):
    """A few sentences."""

    line: Line


class Bullet(Struct, frozen=True):
    """One item of a list, with the items below it."""

    line: Line
    below: tuple[Line, ...] = ()


class Bullets(Struct, frozen=True):
    """A list."""

    items: tuple[Bullet, ...]
    numbered: bool = False


class FactList(Struct, frozen=True):
    """Names and what is known of each, such as cost, fix and gain."""

    pairs: tuple[tuple[str, Line], ...]


class Picture(Struct, frozen=True):
    """A chart written as `<source>.png` and `.svg`; documents without pictures leave it out."""

    about: str
    source: str
    vectors: bool = True


class Listing(Struct, frozen=True):
    """Lines of a program."""

    text: str


class Folded(Struct, frozen=True):
    """Details behind a title that opens them; plain text shows them under the title."""

    title: str
    blocks: tuple[Block, ...]


Block = Heading | Paragraph | Bullets | FactList | Picture | Listing | Folded | Table


def bullets(lines: list[Line] | list[str]) -> Bullets:
    """A list of single lines."""
    return Bullets(tuple(Bullet(line) for line in lines))


def pieces(line: Line) -> tuple[Piece, ...]:
    """The pieces of a line."""
    return line if isinstance(line, tuple) else (line,)


def words(line: Line) -> str:
    """The text of a line without its markup."""
    return "".join(piece if isinstance(piece, str) else piece.text for piece in pieces(line))


def coded(text: str) -> tuple[str | Code, ...]:
    """Returns the text with the words between backticks as code."""
    parts = text.split("`")
    return tuple(Code(part) if place % 2 else part for place, part in enumerate(parts) if part)
