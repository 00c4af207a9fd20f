"""Reads rocpd databases (rocprofv3 7.0 and later): the views `kernels`, `memory_copies` and `regions`.

The tables behind the views carry a suffix for each run; a merged database holds several processes, each a
rank.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from aorta.artefacts.events import ABSENT, Kind, Trace
from aorta.artefacts.files import size_of
from aorta.errors import ArtefactError
from aorta.readers.rocprof import RocprofRows, host_role, whole
from aorta.readers.rpd import is_rpd, read_rpd
from aorta.readers.trace_build import file_rank
from aorta.readers.trace_sqlite import Database, open_database

_RANK_VARIABLES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
"""Place where a process's environment names its rank, the launcher nearest to it first."""

_SIZES = tuple(f"{what}_{axis}" for what in ("grid", "workgroup") for axis in "xyz")
_KERNELS = ("pid", "start", "end", "name", "agent_type_index", "stream_id", "queue_id", "corr_id", *_SIZES)
_ENDS = ("src_agent_type", "src_agent_type_index", "dst_agent_type_index")
_COPIES = ("pid", "start", "end", "name", *_ENDS, "stream_id", "corr_id", "size")
_REGIONS = ("pid", "start", "end", "name", "category", "tid", "corr_id", "extdata")

_LEAST_ROW_BYTES = 16


def read(path: Path) -> list[Trace]:
    """A trace for each process in the database.

    Raises:
        ArtefactError: not such a database, damaged, or without any activity.
    """
    with open_database(path, views=True) as database:
        if is_rpd(database):
            return read_rpd(database)
        if not database.has("kernels") and not database.has("regions"):
            raise ArtefactError(
                f"{path}: no view `kernels` in it",
                hint="expected a rocpd database: rocprofv3 --output-format rocpd",
            )
        processes: dict[int, RocprofRows] = {}
        for row in _rows(database, "kernels", _KERNELS):
            _add_kernel(processes.setdefault(whole(row["pid"]), RocprofRows()), row)
        for row in _rows(database, "memory_copies", _COPIES):
            _add_copy(processes.setdefault(whole(row["pid"]), RocprofRows()), row)
        for row in _rows(database, "regions", _REGIONS):
            _add_region(processes.setdefault(whole(row["pid"]), RocprofRows()), row)
        if not processes:
            raise ArtefactError(f"{path}: a rocpd database without kernels, copies or regions")
        ranks = _ranks(database, path, sorted(processes))
        return [rows.trace(path, *ranks[process]) for process, rows in sorted(processes.items())]


def _rows(database: Database, view: str, columns: tuple[str, ...]) -> list[dict[str, Any]]:
    """The rows of a view, with None for what it lacks."""
    if not database.has(view, "start", "end"):
        return []
    present = [column for column in columns if column in database.tables[view]]
    quoted = ", ".join(f'"{column}"' for column in present)
    cursor = database.connection.execute(f'SELECT {quoted} FROM "{view}" ORDER BY "start"')  # noqa: S608 (constants)
    rows: list[dict[str, Any]] = []
    most = size_of(database.plain) // _LEAST_ROW_BYTES
    for row in cursor:
        if len(rows) > most:
            raise ArtefactError(f"{database.path}: the view {view} gives more rows than the file can contain")
        rows.append(dict.fromkeys(columns) | dict(zip(present, row, strict=True)))
    return rows


def _add_kernel(rows: RocprofRows, row: dict[str, Any]) -> None:
    stream = whole(row["stream_id"])
    rows.add_gpu(
        whole(row["start"]),
        whole(row["end"]),
        Kind.COMPUTE,
        str(row["name"] or ""),
        device=whole(row["agent_type_index"]),
        stream=whole(row["queue_id"]) if stream == ABSENT else stream,
        correlation=whole(row["corr_id"]),
        shape=hash(tuple(whole(row[size]) for size in _SIZES)) & ((1 << 63) - 1),
    )


def _add_copy(rows: RocprofRows, row: dict[str, Any]) -> None:
    end = "src" if row["src_agent_type"] == "GPU" else "dst"
    rows.add_gpu(
        whole(row["start"]),
        whole(row["end"]),
        Kind.COPY,
        str(row["name"] or "memory copy"),
        device=whole(row[f"{end}_agent_type_index"]),
        stream=whole(row["stream_id"]),
        correlation=whole(row["corr_id"]),
        size=whole(row["size"]),
    )


def _add_region(rows: RocprofRows, row: dict[str, Any]) -> None:
    category, name = str(row["category"] or ""), str(row["name"] or "")
    if "MARKER" in category:
        name = _message(row["extdata"]) or name
    rows.add_host(
        whole(row["start"]),
        whole(row["end"]),
        host_role(category, name),
        name,
        thread=whole(row["tid"]),
        correlation=whole(row["corr_id"]),
    )


def _message(extdata: object) -> str | None:
    """The text of a marker."""
    try:
        message = json.loads(str(extdata)).get("message")
    except (ValueError, AttributeError):
        return None
    return message if isinstance(message, str) else None


def _ranks(database: Database, path: Path, processes: list[int]) -> dict[int, tuple[int | None, str | None]]:
    """The rank of each process, by its environment or, for a single one, by the file's name."""
    found: dict[int, tuple[int | None, str | None]] = dict.fromkeys(processes, (None, None))
    if database.has("rocpd_info_process", "pid", "environment"):
        for pid, environment in database.connection.execute(
            "SELECT pid, environment FROM rocpd_info_process"
        ):
            rank = _environment_rank(environment)
            if pid in found and rank is not None:
                found[pid] = rank
    named = file_rank(path)
    if len(processes) == 1 and found[processes[0]][0] is None and named is not None:
        found[processes[0]] = (named, "file name")
    return found


def _environment_rank(environment: object) -> tuple[int, str] | None:
    """The rank in a recorded environment, a JSON object; nothing else of it is read (it holds secrets)."""
    try:
        variables = json.loads(str(environment))
    except ValueError:
        return None
    if not isinstance(variables, dict):
        return None
    for name in _RANK_VARIABLES:
        value = str(variables.get(name, ""))
        if value.isdigit():
            return int(value), f"{name} of its environment"
    return None
