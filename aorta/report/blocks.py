"""A report as data: headings, sentences, lists, tables and pictures, which `render` turns into a document."""

from __future__ import annotations

from dataclasses import dataclass

from aorta.report.tables import Table


@dataclass(frozen=True, slots=True)
class Strong:
    """Words that stand out."""

    text: str


@dataclass(frozen=True, slots=True)
class Code:
    """Words that can be typed: a command, a file, a key."""

    text: str


@dataclass(frozen=True, slots=True)
class Link:
    """Words that lead to `target`, a relative path or an anchor of the same document."""

    text: str
    target: str


Piece = str | Strong | Code | Link
Line = Piece | tuple[Piece, ...]
"""One line of running text."""


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading; level 1 is the title."""

    text: str
    level: int = 2


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A few sentences."""

    line: Line


@dataclass(frozen=True, slots=True)
class Bullet:
    """One item of a list, with the items below it."""

    line: Line
    below: tuple[Line, ...] = ()


@dataclass(frozen=True, slots=True)
class Bullets:
    """A list."""

    items: tuple[Bullet, ...]
    numbered: bool = False


@dataclass(frozen=True, slots=True)
class FactList:
    """Names and what is known of each, such as cost, fix and gain."""

    pairs: tuple[tuple[str, Line], ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """A chart written as `<source>.png` and `.svg`; documents without pictures leave it out."""

    about: str
    source: str
    vectors: bool = True


@dataclass(frozen=True, slots=True)
class Listing:
    """Lines of a program."""

    text: str


@dataclass(frozen=True, slots=True)
class Folded:
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
