"""Tables, and their cells as aligned text."""

from __future__ import annotations

import textwrap

from msgspec import Struct

from aorta.artefacts.clean import plain
from aorta.report.text import WIDTH

_GAP = "  "
_NARROWEST = 20


class Table(Struct, frozen=True):
    """Cells by row.

    Attributes:
        header: the columns' names; a name that begins with `>` has its column aligned to the right.
        rows: as many cells each as there are names.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        wrong = [row for row in self.rows if len(row) != len(self.header)]
        if wrong:
            raise ValueError(f"{len(wrong[0])} cells under {len(self.header)} names: {wrong[0]}")

    @property
    def names(self) -> list[str]:
        """The columns' names."""
        return [name.removeprefix(">") for name in self.header]

    @property
    def right(self) -> list[bool]:
        """True for each column that is aligned to the right."""
        return [name.startswith(">") for name in self.header]


def text_table(table: Table, indent: int = 2) -> str:
    """Aligned columns under a ruled header; the last column is wrapped to end at the report's width."""
    cells = [table.names, *[[plain(cell) for cell in row] for row in table.rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(table.header))]
    room = WIDTH - indent - sum(widths[:-1]) - len(_GAP) * (len(widths) - 1)
    widths[-1] = min(widths[-1], max(room, _NARROWEST))
    lines = []
    for row in [cells[0], ["-" * width for width in widths], *cells[1:]]:
        last = textwrap.wrap(row[-1], widths[-1]) or [""]
        for number, piece in enumerate(last):
            line = [*row[:-1], piece] if number == 0 else [*([""] * (len(row) - 1)), piece]
            parts = [
                cell.rjust(width) if right else cell.ljust(width)
                for cell, width, right in zip(line, widths, table.right, strict=True)
            ]
            lines.append((" " * indent + _GAP.join(parts)).rstrip())
    return "\n".join(lines)
