"""Monitor samples: each node's CSV merged into the run's, and read as a table."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from aorta.artefacts.analysis import Problem
from aorta.artefacts.columns import CPU_COLUMNS, GPU_COLUMNS, NUMBERS
from aorta.artefacts.files import is_there
from aorta.artefacts.layout import RunDir
from aorta.readers.parallel import Pool, in_batches
from aorta.readers.rewritten import Rewritten
from aorta.readers.sample_limits import out_of_range, say_dropped
from aorta.readers.sample_parts import Column, categorised, nodes_of, read_parts, stacked
from aorta.readers.sample_rows import rows_of, table_of_rows, text_of

if TYPE_CHECKING:
    import pandas as pd


def read_gpu_samples(
    run: RunDir, pool: Pool | None = None
) -> tuple[pd.DataFrame | None, tuple[Problem, ...]]:
    """Merge the nodes' `gpu_monitor.csv` into the run's and read it.

    Args:
        run: the run directory.
        pool: processes to read with, where they are worth it. None means some of its own.

    Returns:
        GPU_COLUMNS but `timestamp` by node, GPU and time, or None without any sample; and what was wrong.
        `wall_ns` and `mono_ns` are integers, other numbers floats; an empty cell or a word is NaN, never 0.
    """
    parts = [folder.gpu_csv for _, folder in run.nodes()]
    return _merge(run, parts, run.gpu_csv, GPU_COLUMNS, order=["node_index", "gpu_id", "wall_ns"], pool=pool)


def read_cpu_samples(
    run: RunDir, pool: Pool | None = None
) -> tuple[pd.DataFrame | None, tuple[Problem, ...]]:
    """Reads `cpu_monitor.csv` with CPU_COLUMNS as `read_gpu_samples` does, by node and time."""
    parts = [folder.cpu_csv for _, folder in run.nodes()]
    return _merge(run, parts, run.cpu_csv, CPU_COLUMNS, order=["node_index", "wall_ns"], pool=pool)


def _merge(
    run: RunDir,
    parts: Sequence[Path],
    merged: Path,
    columns: Sequence[str],
    *,
    order: list[str],
    pool: Pool | None,
) -> tuple[pd.DataFrame | None, tuple[Problem, ...]]:
    """The rows of `parts`, written to `merged` where they differ from it.

    Rows of the merged file stay where their node has none of its own: a run may have been copied here without
    its node folders, or with some of them.
    """
    problems: list[Problem] = []
    sources = [path for path in parts if is_there(path)]
    own: list[int] = []
    found: list[dict[str, Column]] = []
    with contextlib.ExitStack() as stack:
        sink = stack.enter_context(Rewritten(merged, ",".join(columns) + "\n")) if sources else None
        files = [((run.root, tuple(columns), tuple(order)), path) for path in sources or [merged]]
        for part in in_batches(read_parts, files, pool):
            problems += part.problems
            found += [part.columns] if part.nodes else []
            own += part.nodes
            if sink is not None:
                sink.write(part.text)
        # Files in the order of their nodes, each of one, and nothing in the merged file but their rows: then
        # what was written is whole and in order.
        in_order = all(one < other for one, other in itertools.pairwise(own))
        if sink is not None and in_order and (sink.unchanged() or _of_these(merged, columns, own)):
            sink.keep(problems)
        elif sink is not None:
            return _merge_rows(run, sources, merged, columns, order)
    if not found:
        return None, tuple(problems)
    table = stacked(found)
    drop_impossible(table, str(merged.relative_to(run.root)), problems)
    return table, tuple(problems)


def _of_these(merged: Path, columns: Sequence[str], nodes: Sequence[int]) -> bool:
    """True if the merged file, if there is one, holds rows of these nodes and nothing else."""
    held = nodes_of(merged, columns) if is_there(merged) else set()
    return held is not None and held <= set(nodes)


def _merge_rows(
    run: RunDir, sources: Sequence[Path], merged: Path, columns: Sequence[str], order: list[str]
) -> tuple[pd.DataFrame | None, tuple[Problem, ...]]:
    """`_merge` of rows that have to be brought into order one by one, or that only the merged file has."""
    problems: list[Problem] = []
    rows = [row for path in sources for row in rows_of(run.root, path, columns, problems)]
    node = list(columns).index("node_index")
    own = {int(row[node]) for row in rows}
    rows += [row for row in rows_of(run.root, merged, columns, problems) if int(row[node]) not in own]
    if not rows:
        return None, tuple(problems)
    table = categorised(table_of_rows(rows, columns))
    position = table.sort_values(order, kind="stable").index
    drop_impossible(table, str(merged.relative_to(run.root)), problems)
    with Rewritten(merged, ",".join(columns) + "\n") as sink:
        sink.write(text_of([rows[index] for index in position]))
        sink.keep(problems)
    return table.loc[position].reset_index(drop=True), tuple(problems)


def drop_impossible(table: pd.DataFrame, name: str, problems: list[Problem]) -> None:
    """Numbers that nothing can measure become NaN in `table`, and are counted; the files keep them."""
    count = 0
    wrong: list[str] = []
    for column in table.columns:
        limits = NUMBERS.get(str(column))
        if limits is None:
            continue
        values = table[column].astype("float64")
        known = np.asarray(values, dtype=np.float64)
        whole = table[limits.part_of].to_numpy(dtype=np.float64) if limits.part_of in table else None
        bad = out_of_range(known, limits, whole)
        if bad.any():
            table[column] = values.mask(bad)
            wrong.append(column)
            count += int(bad.sum())
    say_dropped(name, count, wrong, problems)
