"""Reads databases of rocmProfileData (`.rpd`): `rocpd_op` for GPUs, `rocpd_api` for calls and markers.

Times are ns of a clock that counts from the machine's boot. Never tried on a database that a GPU made.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from aorta.artefacts.events import ABSENT, Kind, Trace
from aorta.artefacts.files import size_of
from aorta.errors import ArtefactError
from aorta.readers.rocprof import RocprofRows, host_role, whole
from aorta.readers.trace_build import file_rank
from aorta.readers.trace_sqlite import Database

FORMAT = "rpd"
_TEXTS = ("description_id", "opType_id")
_MARKER = "UserMarker"
_LEAST_ROW_BYTES = 8
_KINDS = (("kernel", Kind.COMPUTE), ("task", Kind.COMPUTE), ("copy", Kind.COPY), ("fill", Kind.MEMSET))
"""The beginning of an operation's type, and its kind; barriers and marks of queues are no work."""
Row = Mapping[str, Any]


def is_rpd(database: Database) -> bool:
    """Returns True for the tables of rocmProfileData; views of rocprofv3 have other columns."""
    return database.has("rocpd_op", "gpuId", "start", "end") and database.has("rocpd_string", "id", "string")


def read_rpd(database: Database) -> list[Trace]:
    """Returns a trace for each process that made calls; ranks are in the file's name, or by devices.

    Raises:
        ArtefactError: it holds no work of a GPU and no calls.
    """
    names = dict(database.connection.execute("SELECT id, string FROM rocpd_string"))
    owner, launched = _launches(database)
    processes: defaultdict[int, RocprofRows] = defaultdict(RocprofRows)
    if database.has("rocpd_api", "start", "end"):
        for row in _rows(
            database, "rocpd_api", ("id", "pid", "tid", "start", "end", "apiName_id", "args_id")
        ):
            _add_call(processes[whole(row["pid"])], row, names)
    kernels = _kernel_names(database)
    rows = list(_rows(database, "rocpd_op", ("id", "gpuId", "queueId", "start", "end", *_TEXTS)))
    users = _users(rows, owner)
    for row in rows:
        call = launched.get(row["id"])
        process = owner.get(row["id"], users.get(row["gpuId"], next(iter(processes), ABSENT)))
        _add_operation(processes[process], row, names, kernels.get(call), call)
    if not processes:
        raise ArtefactError(f"{database.path}: a database of rocmProfileData without operations and calls")
    rank = file_rank(database.path) if len(processes) == 1 else None
    basis = None if rank is None else "file name"
    return [made.trace(database.path, rank, basis, FORMAT) for _, made in sorted(processes.items())]


def _launches(database: Database) -> tuple[dict[int, int], dict[int, int]]:
    """The process of each operation, and the call that launched it."""
    if not (database.has("rocpd_api_ops", "api_id", "op_id") and database.has("rocpd_api", "pid")):
        return {}, {}
    query = "SELECT op_id, api_id, pid FROM rocpd_api_ops JOIN rocpd_api ON rocpd_api.id = api_id"
    found = database.connection.execute(query).fetchall()
    return {op: pid for op, _, pid in found}, {op: api for op, api, _ in found}


def _kernel_names(database: Database) -> dict[int | None, int]:
    if not database.has("rocpd_kernelapi", "api_ptr_id", "kernelName_id"):
        return {}
    return dict(database.connection.execute("SELECT api_ptr_id, kernelName_id FROM rocpd_kernelapi"))


def _users(rows: list[Row], owner: Mapping[int, int]) -> dict[int, int]:
    """The process that launched most on each GPU."""
    counts: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for row in rows:
        if row["id"] in owner:
            counts[row["gpuId"]][owner[row["id"]]] += 1
    return {device: users.most_common(1)[0][0] for device, users in counts.items()}


def _rows(database: Database, table: str, columns: tuple[str, ...]) -> Iterator[Row]:
    present = [column for column in columns if column in database.tables[table]]
    quoted = ", ".join(f'"{column}"' for column in present)
    most = size_of(database.plain) // _LEAST_ROW_BYTES
    query = f'SELECT {quoted} FROM "{table}" ORDER BY "start"'  # noqa: S608 (constants)
    for count, row in enumerate(database.connection.execute(query)):
        if count > most:
            raise ArtefactError(f"{database.path}: {table} gives more rows than the file can contain")
        yield dict.fromkeys(columns) | dict(zip(present, row, strict=True))


def _add_call(rows: RocprofRows, row: Row, names: Mapping[int, str]) -> None:
    name = str(names.get(row["apiName_id"]) or "")
    domain = "HIP"
    if name == _MARKER:
        domain, name = "MARKER", str(names.get(row["args_id"]) or name)
    rows.add_host(
        whole(row["start"]),
        whole(row["end"]),
        host_role(domain, name),
        name,
        thread=whole(row["tid"]),
        correlation=whole(row["id"]),
    )


def _add_operation(
    rows: RocprofRows, row: Row, names: Mapping[int, str], kernel: int | None, call: int | None
) -> None:
    kind_name = str(names.get(row["opType_id"]) or "").lower().removeprefix("hccommand")
    kind = next((kind for start, kind in _KINDS if kind_name.startswith(start)), None)
    if kind is None or whole(row["gpuId"]) == ABSENT:
        return
    # Without a name of its own, an operation has that of the kernel that its call names.
    text = names.get(row["description_id"]) or (names.get(kernel) if kernel is not None else None) or ""
    rows.add_gpu(
        whole(row["start"]),
        whole(row["end"]),
        kind,
        str(text) if kind is Kind.COMPUTE else str(names.get(row["opType_id"])),
        device=whole(row["gpuId"]),
        stream=whole(row["queueId"]),
        correlation=ABSENT if call is None else call,
    )
