"""`summary_stats.csv`: how often and how long each kernel, copy, range and call ran, by rank and name.

Columns: `rank`; `kind` (`kernel`, `copy` with fills of memory, `nvtx` ranges, `api` calls of CUDA, HIP,
RCCL and the operating system); `name`; `count`; `total_ns`, `mean_ns`, `median_ns`, `min_ns`, `max_ns` of
the durations; `bytes` moved, empty where nothing says. Sorted by rank, kind, and total, largest first.
"""

from __future__ import annotations

import csv
import io
import sqlite3
from array import array
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from aorta.artefacts.io import write_text
from aorta.artefacts.layout import RunDir

COLUMNS = ("rank", "kind", "name", "count", "total_ns", "mean_ns", "median_ns", "min_ns", "max_ns", "bytes")
Kind = Literal["kernel", "copy", "nvtx", "api"]
_KINDS: tuple[Kind, ...] = ("kernel", "copy", "nvtx", "api")
_COPIES = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}


@dataclass(slots=True)
class _Durations:
    ns: array[int] = field(default_factory=lambda: array("q"))
    bytes: int | None = None


class Stats:
    """Durations of one rank by kind and name."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._found: dict[tuple[Kind, str], _Durations] = {}

    def add(self, kind: Kind, name: str, start: int, end: int, moved: int | None = None) -> None:
        """One event, [start, end) in ns; `moved` bytes."""
        entry = self._found.setdefault((kind, name), _Durations())
        entry.ns.append(end - start)
        if moved is not None:
            entry.bytes = (entry.bytes or 0) + moved

    def rows(self) -> list[list[str]]:
        """Cells in the order of `COLUMNS`."""
        made = []
        for (kind, name), entry in self._found.items():
            ns = np.frombuffer(entry.ns, dtype=np.int64)
            total = int(ns.sum())
            numbers = [f"{total / len(ns):.1f}", f"{float(np.median(ns)):.1f}", str(ns.min()), str(ns.max())]
            moved = "" if entry.bytes is None else str(entry.bytes)
            made.append(
                (kind, total, [str(self.rank), kind, name, str(len(ns)), str(total), *numbers, moved])
            )
        made.sort(key=lambda item: (_KINDS.index(item[0]), -item[1], item[2][2]))
        return [cells for _, _, cells in made]


def write(path: Path, rows: Iterable[list[str]]) -> None:
    """The file, whole or not at all."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(rows)
    write_text(path, text.getvalue())


def merge(run: RunDir, profiler: str) -> None:
    """The run's file from those of its nodes; the last node to come merges all."""
    seen: list[Path] | None = None
    while True:
        parts = [node.summary_stats for _, node in run.nodes() if node.summary_stats.is_file()]
        if parts == seen or not parts:
            return
        rows: list[list[str]] = []
        for part in parts:
            with part.open(encoding="utf-8", newline="") as stream:
                rows += list(csv.reader(stream))[1:]
        rows.sort(key=lambda cells: int(cells[0]))
        write(run.summary_stats(profiler), rows)
        seen = parts


# --- Nsight Systems ----------------------------------------------------------------------------------------


def add_nsys(path: Path, stats: Stats) -> None:
    """Add the content of an export.

    Raises:
        sqlite3.Error: not a database, or damaged.
    """
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        has = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        names = dict(database.execute("SELECT id, value FROM StringIds")) if "StringIds" in has else {}
        for kind, start, end, name, moved in _nsys_events(database, has, names):
            stats.add(kind, name, start, end, moved)


_Event = tuple[Kind, int, int, str, int | None]


def _nsys_events(database: sqlite3.Connection, has: set[str], names: dict[int, str]) -> Iterator[_Event]:
    if "CUPTI_ACTIVITY_KIND_KERNEL" in has:
        query = "SELECT start, end, demangledName FROM CUPTI_ACTIVITY_KIND_KERNEL"
        for start, end, name in database.execute(query):
            yield "kernel", start, end, names.get(name, f"string {name}"), None
    if "CUPTI_ACTIVITY_KIND_MEMCPY" in has:
        query = "SELECT start, end, copyKind, bytes FROM CUPTI_ACTIVITY_KIND_MEMCPY"
        for start, end, kind, moved in database.execute(query):
            yield "copy", start, end, f"memcpy {_COPIES.get(kind, f'kind {kind}')}", moved
    if "CUPTI_ACTIVITY_KIND_MEMSET" in has:
        for start, end, moved in database.execute("SELECT start, end, bytes FROM CUPTI_ACTIVITY_KIND_MEMSET"):
            yield "copy", start, end, "memset", moved
    if "NVTX_EVENTS" in has:
        query = (
            "SELECT start, end, text, textId FROM NVTX_EVENTS WHERE eventType IN (59, 60) AND end IS NOT NULL"
        )
        for start, end, text, number in database.execute(query):
            yield "nvtx", start, end, text or names.get(number, "without a name"), None
    for table in ("CUPTI_ACTIVITY_KIND_RUNTIME", "OSRT_API"):
        if table in has:
            query = f"SELECT start, end, nameId FROM {table} WHERE end IS NOT NULL"  # noqa: S608 - constants
            for start, end, name in database.execute(query):
                yield "api", start, end, names.get(name, f"string {name}"), None


# --- rocprofv3 ---------------------------------------------------------------------------------------------

_TABLES: tuple[tuple[str, Kind], ...] = (
    ("_kernel_trace.csv", "kernel"),
    ("_memory_copy_trace.csv", "copy"),
    ("_marker_api_trace.csv", "nvtx"),
    ("_hip_api_trace.csv", "api"),
    ("_hip_runtime_trace.csv", "api"),
    ("_rccl_api_trace.csv", "api"),
)
_NAME_COLUMNS = ("Kernel_Name", "Function", "Direction", "Operation")


def rocprof_kind(path: Path) -> Kind | None:
    """The kind of rows in a CSV file of rocprofv3; None for its other files."""
    return next((kind for end, kind in _TABLES if path.name.endswith(end)), None)


def add_rocprof_csv(path: Path, kind: Kind, stats: Stats) -> int:
    """Add the content of a trace file; returns the number of lines that could not be read.

    rocprofv3 does not escape quotes in names, so a line is taken apart from both of its ends: no cell but the
    name holds a comma.

    Raises:
        OSError: it cannot be read.
    """
    bad = 0
    with path.open(encoding="utf-8", errors="replace") as stream:
        header = [cell.strip('"') for cell in stream.readline().rstrip("\n").split(",")]
        name = next((header.index(column) for column in _NAME_COLUMNS if column in header), None)
        if name is None or not {"Start_Timestamp", "End_Timestamp"} <= set(header):
            return sum(1 for _ in stream)
        start, end = (header.index(f"{edge}_Timestamp") - len(header) for edge in ("Start", "End"))
        for line in stream:
            try:
                begun, ended = (int(line.rsplit(",", -at)[1].strip('"\n')) for at in (start, end))
                text = line.split(",", name)[-1].rsplit(",", len(header) - name - 1)[0]
            except (ValueError, IndexError):
                bad += 1
                continue
            stats.add(kind, text[1:-1] if text[:1] == '"' else text, begun, ended)
    return bad


def add_rocpd(path: Path, stats: Stats) -> None:
    """Add the content of a rocpd database.

    Raises:
        sqlite3.Error: not a database, or damaged.
    """
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        has = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'view'")}
        if "kernels" in has:
            for start, end, name in database.execute("SELECT start, end, name FROM kernels"):
                stats.add("kernel", name, start, end)
        if "memory_copies" in has:
            for start, end, name, moved in database.execute(
                "SELECT start, end, name, size FROM memory_copies"
            ):
                stats.add("copy", name, start, end, moved)
        if "regions" in has:
            for start, end, name, category in database.execute(
                "SELECT start, end, name, category FROM regions"
            ):
                stats.add("nvtx" if "MARKER" in str(category).upper() else "api", name, start, end)
