"""Nodes' monitor files as columns: read at once where they are whole, otherwise row by row."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from aorta.artefacts.analysis import Problem
from aorta.artefacts.columns import EXACT, TEXT
from aorta.artefacts.files import lines, read_regular
from aorta.artefacts.lines import whole_number
from aorta.readers.sample_rows import in_table, rows_of, table_of_rows, text_of

if TYPE_CHECKING:
    import pandas as pd


_AT_ONCE = 128 << 20
"""Largest file that is read at once; a larger one is read row by row."""
_COMMA, _END = b",\n"
_POWERS = 10 ** np.arange(1, 19, dtype=np.int64)
_FOREIGN = (b'"', b"\r", b"\0", b"\n\n")
"""Texts that no monitor writes."""

Key = tuple[Path, tuple[str, ...], tuple[str, ...]]
"""The run's root, the columns, and those that rows are ordered by."""


Column = Any
"""An array of numbers, or categories: pandas has no common type of them."""


@dataclass(frozen=True, slots=True, eq=False)
class SampleRows:
    """The usable rows of some files: file by file, those of each in order."""

    columns: dict[str, Column]
    """The columns that `in_table` names; texts are categories."""
    text: bytes
    """Its rows as lines of CSV."""
    nodes: list[int]
    """Nodes that the samples belong to, ascending in each file."""
    problems: list[Problem]


def read_parts(items: Sequence[tuple[Key, Path]]) -> list[SampleRows]:
    """The rows of files of one key; what is wrong with one is in the problems.

    Whole files that follow one another are read together: most of what a small one takes is the call.
    """
    bodies = [(item, _body(item[1], item[0][1])) for item in items]
    runs = itertools.groupby(bodies, key=lambda pair: pair[1] is not None)
    return [part for _, run in runs for part in _parts(list(run))]


def _parts(run: list[tuple[tuple[Key, Path], bytes | None]]) -> list[SampleRows]:
    """Parts of files that are all taken for whole, or none of them."""
    (_, columns, order), _ = run[0][0]
    whole = _whole([body for _, body in run if body is not None], columns, order)
    if whole is not None:
        return [whole]
    if len(run) > 1:  # one of them is not whole
        return [part for one in run for part in _parts([one])]
    return [_row_by_row(*run[0][0])]


def _row_by_row(key: Key, path: Path) -> SampleRows:
    root, columns, order = key
    problems: list[Problem] = []
    rows = rows_of(root, path, columns, problems)
    table = table_of_rows(rows, columns)
    position = table.sort_values(list(order), kind="stable").index.to_numpy()
    made = categorised(table.loc[position].reset_index(drop=True))
    return SampleRows(
        columns={str(name): made[name].array if name in TEXT else made[name].to_numpy() for name in made},
        text=text_of([rows[row] for row in position.tolist()]),
        nodes=sorted(set(made["node_index"].tolist())),
        problems=problems,
    )


def categorised(table: pd.DataFrame) -> pd.DataFrame:
    """The table with its texts as categories, in alphabetical order."""
    return table.assign(**{name: table[name].astype("category") for name in table if name in TEXT})


def _body(path: Path, columns: Sequence[str]) -> bytes | None:
    """The lines of a file in which nothing is unusual; None for any other, or where none can be read."""
    head = (",".join(columns) + "\n").encode()
    try:
        data = read_regular(path, _AT_ONCE)
    except OSError:
        return None  # reading row by row names the reason
    if not data.startswith(head) or not data.endswith(b"\n") or len(data) == len(head):
        return None
    if not data.isascii() or any(mark in data for mark in _FOREIGN):
        return None
    return data[len(head) :]


def _whole(bodies: list[bytes], columns: Sequence[str], order: Sequence[str]) -> SampleRows | None:
    """The rows of such files together; None where one has a line that is no row, or there are none."""
    body = b"".join(bodies)
    sizes = _cell_sizes(body, len(columns))
    table = _parsed(body, columns) if sizes is not None else None
    if sizes is None or table is None:
        return None
    for name in EXACT:
        # As many letters as the number has digits: nothing but digits, and no more than 64 bits hold.
        values = table[name].to_numpy()
        digits = np.searchsorted(_POWERS, values, side="right") + 1
        if (values < 0).any() or (digits != sizes[:, list(columns).index(name)]).any():
            return None
    file = np.repeat(np.arange(len(bodies)), [one.count(b"\n") for one in bodies])
    position = np.lexsort([*(table[name].to_numpy() for name in reversed(order)), file])
    if (np.diff(position) != 1).any():
        body = b"".join(map(body.splitlines(keepends=True).__getitem__, position.tolist()))
    made = {str(name): table[name].array if name in TEXT else table[name].to_numpy() for name in table}
    made = {name: column[position] for name, column in made.items()}
    node = made["node_index"]
    first = np.append(True, (np.diff(file) != 0) | (np.diff(node) != 0))
    return SampleRows(made, body, node[first].tolist(), [])


def _cell_sizes(body: bytes, columns: int) -> NDArray[np.int64] | None:
    """Returns how many letters each cell has, (lines, columns); None where lines have not as many cells."""
    letters = np.frombuffer(body, dtype=np.uint8)
    ends = letters == _END
    cuts = np.flatnonzero((letters == _COMMA) | ends)
    if not len(cuts) or len(cuts) % columns or not ends[cuts[columns - 1 :: columns]].all():
        return None
    if int(ends.sum()) * columns != len(cuts):
        return None
    return np.diff(cuts, prepend=-1).reshape(-1, columns) - 1


def _parsed(body: bytes, columns: Sequence[str]) -> pd.DataFrame | None:
    """The lines as a table of 64-bit numbers and texts; None where a number is none."""
    import pandas as pd

    kept = in_table(columns)
    numbers = [name for name in kept if name not in TEXT]
    known: dict[Hashable, Any] = dict.fromkeys((name for name in kept if name in TEXT), "category")
    known |= dict.fromkeys(EXACT, np.int64)
    try:
        table = pd.read_csv(
            io.BytesIO(body),
            header=None,
            names=list(columns),
            usecols=kept,
            dtype=known,
            keep_default_na=False,
            na_values={name: [""] for name in numbers},
            quoting=csv.QUOTE_NONE,
            low_memory=False,
        )
    except (ValueError, OverflowError):
        return None
    plain = all(table[name].dtype in (np.dtype(np.int64), np.dtype(np.float64)) for name in numbers)
    return table if plain else None


def nodes_of(path: Path, columns: Sequence[str]) -> set[int] | None:
    """The nodes whose rows a merged file holds; None where a line of it is no such row."""
    place, cells = list(columns).index("node_index"), len(columns) - 1
    found: set[bytes] = set()
    try:
        stream = lines(path)
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
    import pandas as pd
    from pandas.api.types import union_categoricals

    made: dict[str, Column] = {}
    for name in list(parts[0]):
        each = [part.pop(name) for part in parts]
        made[name] = union_categoricals(each, sort_categories=True) if name in TEXT else np.concatenate(each)
    return pd.DataFrame(made, copy=False)
