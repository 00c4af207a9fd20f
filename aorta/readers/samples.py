"""Monitor samples: each node's CSV merged into the run's, and read as a table."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from aorta.artefacts.analysis import Problem
from aorta.artefacts.io import write_text
from aorta.artefacts.layout import RunDir
from aorta.artefacts.lines import cells_of, whole_number
from aorta.artefacts.records import CPU_COLUMNS, GPU_COLUMNS

_TEXT = frozenset({"timestamp", "hostname", "gpu_uuid", "gpu_name"})
_EXACT = ("wall_ns", "mono_ns")
"""Integers above 2**53: floats would round them by up to 256 ns."""
_SHARES = ("utilization_gpu", "utilization_memory", "cpu_percent", "memory_percent")
"""From 0 to 100."""
_FULL = 100.0
_BELOW_ZERO = ("temperature",)
"""What can be below 0."""
_PART_OF = (("memory_used_mb", "memory_total_mb"), ("memory_used_gb", "memory_total_gb"))
"""What is used, and of what: not more than that."""


def read_gpu_samples(run: RunDir) -> tuple[pd.DataFrame | None, tuple[Problem, ...]]:
    """Merge the nodes' `gpu_monitor.csv` into the run's and read it.

    Returns:
        GPU_COLUMNS by node, GPU and time, or None without any sample; and what was wrong. `wall_ns` and
        `mono_ns` are integers, other numbers floats; an empty cell or a word is NaN, never 0.
    """
    parts = [folder.gpu_csv for _, folder in run.nodes()]
    return _merge(run, parts, run.gpu_csv, GPU_COLUMNS, ["node_index", "gpu_id", "wall_ns"])


def read_cpu_samples(run: RunDir) -> tuple[pd.DataFrame | None, tuple[Problem, ...]]:
    """As `read_gpu_samples`, for `cpu_monitor.csv` and CPU_COLUMNS, by node and time."""
    parts = [folder.cpu_csv for _, folder in run.nodes()]
    return _merge(run, parts, run.cpu_csv, CPU_COLUMNS, ["node_index", "wall_ns"])


def _merge(
    run: RunDir, parts: Sequence[Path], merged: Path, columns: Sequence[str], order: list[str]
) -> tuple[pd.DataFrame | None, tuple[Problem, ...]]:
    """The rows of `parts`, written to `merged` where they differ from it.

    Rows of the merged file stay where their node has none of its own: a run may have been copied here without
    its node folders, or with some of them.
    """
    problems: list[Problem] = []
    sources = [path for path in parts if path.is_file()]
    rows = [row for path in sources for row in _rows(run.root, path, columns, problems)]
    node = list(columns).index("node_index")
    own = {int(row[node]) for row in rows}
    rows += [row for row in _rows(run.root, merged, columns, problems) if int(row[node]) not in own]
    if not rows:
        return None, tuple(problems)
    table = _table(rows, columns)
    position = table.sort_values(order, kind="stable").index
    _drop_impossible(table, str(merged.relative_to(run.root)), problems)
    if sources:
        _write_if_changed(merged, columns, [rows[index] for index in position], problems)
    return table.loc[position].reset_index(drop=True), tuple(problems)


def table_of(path: Path, columns: Sequence[str], problems: list[Problem]) -> pd.DataFrame:
    """The usable rows of one monitor file that belongs to no run, as `read_gpu_samples` gives them."""
    table = _table(_rows(path.parent, path, columns, problems), columns)
    _drop_impossible(table, path.name, problems)
    return table


def _drop_impossible(table: pd.DataFrame, name: str, problems: list[Problem]) -> None:
    """Numbers that nothing can measure become NaN in `table`, and are counted; the files keep them."""
    count = 0
    wrong: list[str] = []
    for column in table.columns:
        if column in _TEXT or column in _EXACT or column == "node_index":
            continue
        values = table[column].astype("float64")
        bad = np.isinf(values)
        if column not in _BELOW_ZERO:
            bad |= values < 0
        if column in _SHARES:
            bad |= values > _FULL
        total = dict(_PART_OF).get(column)
        if total is not None and total in table:
            bad |= values > table[total].astype("float64")
        if bad.any():
            table[column] = values.mask(bad)
            wrong.append(column)
            count += int(bad.sum())
    if count:
        reason = f"{count} values are out of range and count as not measured ({', '.join(wrong)})"
        problems.append(Problem(file=name, reason=reason))


def _table(rows: list[list[str]], columns: Sequence[str]) -> pd.DataFrame:
    table = pd.DataFrame(rows, columns=list(columns))
    for column in columns:
        if column in _EXACT:
            table[column] = table[column].astype("int64")
        elif column not in _TEXT:
            table[column] = pd.to_numeric(table[column], errors="coerce")
    return table


def _rows(root: Path, path: Path, columns: Sequence[str], problems: list[Problem]) -> list[list[str]]:
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
    missing = [column for column in ("hostname", "node_index", *_EXACT) if column not in header]
    if missing:
        problems.append(Problem(file=name, reason=f"lacks the columns {', '.join(missing)}"))
        return []
    where = [header.index(column) if column in header else None for column in columns]
    exact = [header.index(column) for column in ("node_index", *_EXACT)]
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


def _write_if_changed(
    path: Path, columns: Sequence[str], rows: list[list[str]], problems: list[Problem]
) -> None:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    try:
        if not path.is_file() or path.read_text(encoding="utf-8", errors="replace") != stream.getvalue():
            write_text(path, stream.getvalue())
    except OSError as error:
        problems.append(Problem(file=path.name, reason=f"cannot be written: {error.strerror}"))
