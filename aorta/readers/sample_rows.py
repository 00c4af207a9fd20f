"""Rows of one monitor file taken apart cell by cell: what is broken costs its row."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from aorta.artefacts.analysis import Problem
from aorta.artefacts.columns import EXACT, TEXT
from aorta.artefacts.lines import cells_of, whole_number

if TYPE_CHECKING:
    import pandas as pd

_NOT_KEPT = "timestamp"
"""`wall_ns` says the same; as text it is another one in each row of each node."""


def in_table(columns: Sequence[str]) -> list[str]:
    """Those of a file's `columns` that tables of samples have: all but the time as text."""
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
    if not path.is_file():
        return []
    name = str(path.relative_to(root))
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        problems.append(Problem(file=name, reason=f"cannot be read: {error.strerror}"))
        return []
    lines = enumerate(text.split("\n"), start=1)
    header = cells_of(next(lines)[1].rstrip("\r")) or []
    if not text.strip("\0\r\n"):
        problems.append(Problem(file=name, reason="is empty"))
        return []
    missing = [column for column in ("hostname", *EXACT) if column not in header]
    if missing:
        problems.append(Problem(file=name, reason=f"lacks the columns {', '.join(missing)}"))
        return []
    where = [header.index(column) if column in header else None for column in columns]
    exact = [header.index(column) for column in EXACT]
    rows, bad = [], []
    last = text.count("\n") + 1
    for number, line in lines:
        cells = cells_of(line.rstrip("\r"))
        if cells == []:
            continue
        if number == last:
            # The monitor ends every line: in one that has no end, the last number may lack digits.
            cells = None
        known = cells is not None and len(cells) == len(header)
        if cells is not None and known and all(whole_number(cells[index]) is not None for index in exact):
            rows.append(["" if index is None else cells[index] for index in where])
        else:
            bad.append(number)
    if bad:
        problems.append(
            Problem(file=name, reason=f"{len(bad)} rows are not usable; the first is line {bad[0]}")
        )
    return rows


def text_of(rows: Sequence[Sequence[str]]) -> bytes:
    """The rows as lines of CSV."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(rows)
    return stream.getvalue().encode()
