"""One node's monitor file as columns: read at once where it is whole, otherwise row by row."""

from __future__ import annotations

import csv
import io
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import union_categoricals

from aorta.artefacts.analysis import Problem
from aorta.artefacts.lines import whole_number
from aorta.readers.sample_rows import EXACT, TEXT, rows_of, table_of_rows, text_of

_COMMA, _END, _ZERO, _NINE = b",\n09"
_DIGITS = 19
"""Of the largest integer of 64 bits."""

Key = tuple[Path, tuple[str, ...], tuple[str, ...]]
"""The run's root, the columns, and those that rows are ordered by."""


Column = Any
"""An array of numbers, or categories: pandas has no common type of them."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One file's usable rows in order."""

    columns: dict[str, Column]
    """Texts are categories."""
    text: bytes
    """Its rows as lines of CSV."""
    nodes: list[int]
    """Whose they are, ascending."""
    problems: list[Problem]


def read_part(item: tuple[Key, Path]) -> Part:
    """The rows of one file; what is wrong with it is in the problems."""
    (root, columns, order), path = item
    problems: list[Problem] = []
    try:
        whole = _whole(path.read_bytes(), columns)
    except OSError:
        whole = None  # which the other way of reading names
    if whole is not None:
        table, body = whole
        position = table.sort_values(list(order), kind="stable").index.to_numpy()
        if (np.diff(position) != 1).any():
            lines = body.split(b"\n")
            body = b"".join(lines[row] + b"\n" for row in position.tolist())
            table = table.loc[position].reset_index(drop=True)
    else:
        rows = rows_of(root, path, columns, problems)
        table = table_of_rows(rows, columns)
        position = table.sort_values(list(order), kind="stable").index.to_numpy()
        body = text_of([rows[row] for row in position.tolist()])
        table = table.loc[position].reset_index(drop=True)
    made = categorised(table)
    columns_of = {str(name): made[name].array if name in TEXT else made[name].to_numpy() for name in made}
    return Part(columns_of, body, sorted(set(table["node_index"].tolist())), problems)


def categorised(table: pd.DataFrame) -> pd.DataFrame:
    """The table with its texts as categories, in alphabetical order."""
    return table.assign(**{name: table[name].astype("category") for name in table if name in TEXT})


def _whole(data: bytes, columns: Sequence[str]) -> tuple[pd.DataFrame, bytes] | None:
    """The rows and their lines, of a file in which nothing is broken or unusual; None for any other."""
    head = (",".join(columns) + "\n").encode()
    if not data.startswith(head) or not data.endswith(b"\n") or len(data) == len(head):
        return None
    if not data.isascii() or any(mark in data for mark in (b'"', b"\r", b"\0", b"\n\n")):
        return None
    body = data[len(head) :]
    exact = [list(columns).index(name) for name in ("node_index", *EXACT)]
    if not _even(body, len(columns), exact):
        return None
    known: dict[Hashable, Any] = dict.fromkeys((name for name in columns if name in TEXT), "category")
    known |= dict.fromkeys(("node_index", *EXACT), np.int64)
    try:
        table = pd.read_csv(
            io.BytesIO(body),
            header=None,
            names=list(columns),
            dtype=known,
            keep_default_na=False,
            na_values={name: [""] for name in columns if name not in TEXT},
            quoting=csv.QUOTE_NONE,
            float_precision="high",
            low_memory=False,
        )
    except (ValueError, OverflowError):
        return None
    numbers = [name for name in columns if name not in TEXT]
    plain = all(table[name].dtype in (np.dtype(np.int64), np.dtype(np.float64)) for name in numbers)
    return (table, body) if plain else None


def _even(body: bytes, columns: int, exact: Sequence[int]) -> bool:
    """Whether all lines have as many cells, and those of `exact` hold digits and nothing else."""
    letters = np.frombuffer(body, dtype=np.uint8)
    ends = letters == _END
    cuts = np.flatnonzero((letters == _COMMA) | ends)
    if len(cuts) != int(ends.sum()) * columns:
        return False
    stops = cuts.reshape(-1, columns)
    if not ends[stops[:, -1]].all():
        return False
    starts = np.concatenate(([-1], cuts[:-1])).reshape(-1, columns) + 1
    counted = np.cumsum((letters >= _ZERO) & (letters <= _NINE), dtype=np.int32)
    digits = np.concatenate((np.zeros(1, dtype=np.int32), counted))
    for column in exact:
        first, last = starts[:, column], stops[:, column]
        size = last - first
        if not ((size > 0) & (size <= _DIGITS) & (digits[last] - digits[first] == size)).all():
            return False
    return True


def nodes_of(path: Path, columns: Sequence[str]) -> set[int] | None:
    """The nodes whose rows a merged file holds; None where a line of it is no such row."""
    place, cells = list(columns).index("node_index"), len(columns) - 1
    found: set[bytes] = set()
    try:
        with path.open("rb") as stream:
            if next(stream, b"") != (",".join(columns) + "\n").encode():
                return None
            for line in stream:
                if line.count(b",") != cells or b'"' in line or line[-1] != _END:
                    return None
                found.add(line.split(b",", place + 1)[place])
    except OSError:
        return None
    numbers = [whole_number(cell.decode("utf-8", errors="replace")) for cell in found]
    return None if None in numbers else {number for number in numbers if number is not None}


def stacked(parts: Sequence[dict[str, Column]]) -> pd.DataFrame:
    """The rows of all parts, one after another; categories in alphabetical order.

    The parts lose their columns as they are taken, so that no more than one is in memory twice.
    """
    made: dict[str, Column] = {}
    for name in list(parts[0]):
        each = [part.pop(name) for part in parts]
        made[name] = union_categoricals(each, sort_categories=True) if name in TEXT else np.concatenate(each)
    return pd.DataFrame(made, copy=False)
