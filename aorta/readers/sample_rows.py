"""Rows of one monitor file taken apart cell by cell: what is broken costs its row."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from aorta.artefacts.analysis import Problem
from aorta.artefacts.columns import EXACT, TEXT
from aorta.artefacts.files import is_there, lines
from aorta.artefacts.lines import cells_of, whole_number

if TYPE_CHECKING:
    import pandas as pd

_NOT_KEPT = "timestamp"
"""`wall_ns` says the same; as text it is another one in each row of each node."""

_LONGEST_LINE = 64 << 10
_MOST_ROWS = 300_000
"""Largest number of rows of a file that is read row by row: such rows take much memory."""


def in_table(columns: Sequence[str]) -> list[str]:
    """Names of a file's `columns` that tables of samples have: all but the time as text."""
    return [column for column in columns if column != _NOT_KEPT]


def table_of_rows(rows: list[list[str]], columns: Sequence[str]) -> pd.DataFrame:
    """`rows` as `in_table`, with numbers where the columns have them: what is none is NaN."""
    import pandas as pd

    table = pd.DataFrame(rows, columns=list(columns))[in_table(columns)]
    for column in table:
        if column in EXACT:
            table[column] = table[column].astype("int64")
        elif column not in TEXT:
            table[column] = pd.to_numeric(table[column], errors="coerce")
    return table


def rows_of(root: Path, path: Path, columns: Sequence[str], problems: list[Problem]) -> list[list[str]]:
    """The usable rows of one file in the order of `columns`; cells of unknown columns are dropped."""
    if not is_there(path):
        return []
    rows: list[list[str]] = []
    try:
        reasons = _read_rows(lines(path, _LONGEST_LINE), columns, rows)
    except OSError as error:
        reasons = [f"cannot be read: {error.strerror}"]
    name = str(path.relative_to(root))
    problems += [Problem(file=name, reason=reason) for reason in reasons]
    return rows


def _read_rows(found: Iterator[bytes], columns: Sequence[str], rows: list[list[str]]) -> list[str]:
    """Add the usable rows of a file's lines to `rows`; returns what is wrong with the others."""
    head = next(found, b"")
    header = cells_of(_text(head)) or []
    missing = [column for column in ("hostname", *EXACT) if column not in header]
    if missing:
        empty = not any(line.strip(b"\0\r\n") for line in itertools.chain([head], found))
        return ["is empty" if empty else f"lacks the columns {', '.join(missing)}"]
    where = [header.index(column) if column in header else None for column in columns]
    exact = [header.index(column) for column in EXACT]
    bad, first = 0, 0
    for number, line in enumerate(found, start=2):
        if len(rows) >= _MOST_ROWS or number - len(rows) > _MOST_ROWS:
            return [f"has more than {_MOST_ROWS:,} rows; line {number} and those after it are left out"]
        cells = cells_of(_text(line))
        if cells == []:
            continue
        # The monitor ends every line: in one that has no end, the last number may lack digits.
        known = cells is not None and line.endswith(b"\n") and len(cells) == len(header)
        if cells is not None and known and all(whole_number(cells[index]) is not None for index in exact):
            rows.append(["" if index is None else cells[index] for index in where])
        else:
            bad, first = bad + 1, first or number
    return [f"{bad} rows are not usable; the first is line {first}"] if bad else []


def _text(line: bytes) -> str:
    return line.decode("utf-8", errors="replace").rstrip("\n").rstrip("\r")


def text_of(rows: Sequence[Sequence[str]]) -> bytes:
    """The rows as lines of CSV."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(rows)
    return stream.getvalue().encode()
