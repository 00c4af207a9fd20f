"""Reads rocprofv3 output: CSV files of 6.x and 7.x (and `rocpd convert`), JSON, and rocpd databases.

Times are CLOCK_BOOTTIME ns: not wall-clock time, unless the node's clock pair is known. Copies between
buffers of one device that ROCm runs as kernels count as copies.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from aorta.artefacts.analysis import Problem
from aorta.artefacts.events import ABSENT, GpuEvents, Kind, RangeRole, Trace, TraceRanges, build, empty_trace
from aorta.artefacts.files import lines
from aorta.artefacts.lines import cells_of
from aorta.errors import ArtefactError
from aorta.readers.kernels import api_role, range_role
from aorta.readers.trace_build import file_rank, finish

FORMAT = "rocprofv3"

_SUFFIX = re.compile(
    r"_?(?:kernel|memory_copy|(?:hip|hip_api|hip_runtime_api|hip_compiler_api|hsa\w*|rccl|rccl_api|marker_api))_trace$"
)
"""Endings that rocprofv3 adds to the output name. The text before them names one process."""
_KERNEL_COLUMNS = frozenset(("Kernel_Name", "Start_Timestamp", "End_Timestamp"))
_COPY_COLUMNS = frozenset(("Direction", "Start_Timestamp", "End_Timestamp"))
_API_COLUMNS = frozenset(("Domain", "Function", "Start_Timestamp", "End_Timestamp"))


_LATEST_NS = (1 << 63) - 1
_NONE = (1 << 64) - 1
_GPU_COLUMNS = ("start_ns", "end_ns", "kind", "device", "stream", "name", "correlation", "shape", "bytes")
_HOST_COLUMNS = ("start_ns", "end_ns", "role", "lane", "name", "correlation")


@dataclass(slots=True)
class RocprofRows:
    """Events of one process as they are read: a tuple in the order of the columns for each event."""

    gpu: list[tuple[int, ...]] = field(default_factory=list)
    host: list[tuple[int, ...]] = field(default_factory=list)
    names: dict[str, int] = field(default_factory=dict)
    faults: Counter[str] = field(default_factory=Counter)

    def code(self, name: str) -> int:
        """The number of a name."""
        return self.names.setdefault(name, len(self.names))

    def add_gpu(
        self, start: int, end: int, kind: Kind, name: str, *, device: int = ABSENT, stream: int = ABSENT,
        correlation: int = ABSENT, shape: int = ABSENT, size: int = ABSENT,
    ) -> None:  # fmt: skip
        """Add an event on a GPU; a nameless kernel has no code."""
        if self._timed(start, end):
            code = self.code(name) if name else ABSENT
            ids = (int64(device), int64(stream), code, int64(correlation))
            self.gpu.append((start, end, kind, *ids, shape, int64(size)))

    def add_host(
        self,
        start: int,
        end: int,
        role: RangeRole,
        name: str,
        *,
        thread: int = ABSENT,
        correlation: int = ABSENT,
    ) -> None:
        """Add a range on the host; one without length is a mark and is left out."""
        if start != end and self._timed(start, end):
            self.host.append((start, end, role, int64(thread), self.code(name), int64(correlation)))

    def _timed(self, start: int, end: int) -> bool:
        if start < 0 or end < start:
            self.faults["events with a missing start or a negative duration left out"] += 1
            return False
        if end > _LATEST_NS:
            self.faults["events with a time beyond 64 bits left out"] += 1
            return False
        return True

    def trace(self, source: Path, rank: int | None, basis: str | None, made_by: str = FORMAT) -> Trace:
        """The finished trace."""
        gpu = np.array(self.gpu, dtype=np.int64).reshape(-1, len(_GPU_COLUMNS)).T
        host = np.array(self.host, dtype=np.int64).reshape(-1, len(_HOST_COLUMNS)).T
        reasons = [_counted(count, reason) for reason, count in sorted(self.faults.items())]
        return finish(
            replace(
                empty_trace(str(source), made_by),
                rank=rank,
                rank_basis=basis,
                names=tuple(self.names),
                gpu=build(GpuEvents, len(self.gpu), **dict(zip(_GPU_COLUMNS, gpu, strict=True))),
                host=build(TraceRanges, len(self.host), **dict(zip(_HOST_COLUMNS, host, strict=True))),
                problems=tuple(Problem(file=str(source), reason=reason) for reason in reasons),
            )
        )


def _counted(count: int, reason: str) -> str:
    what, _, rest = reason.partition(" ")
    return f"{count} {what.removesuffix('s') if count == 1 else what} {rest}"


def int64(number: int) -> int:
    """Returns an id that may have 64 bits without a sign as one of 63; ABSENT for a negative one.

    The largest unsigned numbers are how writers say "none".
    """
    return ABSENT if number < 0 or number >= _NONE else number & _LATEST_NS


def whole(value: object) -> int:
    """Returns a whole number of a database; ABSENT for anything else."""
    return value if isinstance(value, int) and value >= 0 else ABSENT


def host_role(domain: str, function: str) -> RangeRole:
    """The role of a traced call: markers and RCCL calls by name, HIP and HSA calls as driver calls."""
    if "MARKER" in domain or "RCCL" in domain:
        return range_role(function)
    return api_role(function)


_MOST_UNUSABLE = 1_000_000


def group_of(path: Path) -> str:
    """Returns what the CSV files of one process have in common: the folder and the output name."""
    return str(path.parent / _SUFFIX.sub("", path.name.removesuffix(".csv")))


def is_trace_header(columns: Sequence[str]) -> bool:
    """True if these are the columns of a CSV file with events (not of statistics, counters or agents)."""
    present = frozenset(columns)
    return any(wanted <= present for wanted in (_KERNEL_COLUMNS, _COPY_COLUMNS, _API_COLUMNS)) and (
        "Counter_Name" not in present
    )


def read_csv(paths: Sequence[Path]) -> Trace:
    """The trace in the CSV files of one process (`group_of` is equal).

    Raises:
        ArtefactError: a file cannot be read, or none of them holds events.
    """
    rows = RocprofRows()
    seen = 0
    # A problem names the first file: most are those of kernels.
    paths = sorted(paths, key=lambda path: ("kernel_trace" not in path.name, path))
    for path in paths:
        try:
            stream = (line.decode("utf-8", errors="replace") for line in lines(path))
            line = next(stream, "").removeprefix("\ufeff")
            header = cells_of(line.rstrip("\r\n")) or []
            if not is_trace_header(header):
                continue
            seen += 1
            if not line.endswith(("\n", "\r")):
                rows.faults[f"header of {path.name} cut off"] += 1
            _read_rows(path, header, stream, rows)
        except OSError as error:
            raise ArtefactError(f"{path}: {error.strerror}") from error
    if not seen:
        raise ArtefactError(
            f"{paths[0]}: no rocprofv3 trace",
            hint="expected the columns Start_Timestamp and End_Timestamp, as *_kernel_trace.csv has them",
        )
    named = {rank for path in paths if (rank := file_rank(path)) is not None}
    rank = named.pop() if len(named) == 1 else None
    return rows.trace(paths[0], rank, None if rank is None else "file name")


def _read_rows(path: Path, header: Sequence[str], stream: Iterator[str], rows: RocprofRows) -> None:
    malformed, blank = 0, 0
    present = frozenset(header)
    add = _add_kernel if present >= _KERNEL_COLUMNS else _add_copy if present >= _COPY_COLUMNS else _add_call
    wide = header.index("Kernel_Name") if "Kernel_Name" in header else None
    for line in stream:
        if malformed + blank > _MOST_UNUSABLE:
            rows.faults[f"more than {_MOST_UNUSABLE:,} lines of {path.name} not readable: its rest"] += 1
            break
        if not line.strip():
            blank += 1
            continue
        # In a last line without an end the last number may lack digits; an end time is then too early.
        whole = line.endswith(("\n", "\r")) or header[-1] == "End_Timestamp"
        values = _fields(line, len(header), wide) if whole else None
        try:
            if values is None:
                raise ValueError
            add(rows, dict(zip(header, values, strict=True)))
        except (ValueError, OverflowError):
            malformed += 1
    if malformed:
        rows.faults[f"lines of {path.name} not readable"] += malformed


def _fields(line: str, count: int, wide: int | None) -> list[str] | None:
    """The fields of a line; None for too few. rocprofv3 does not escape quotes inside a kernel's name."""
    values = cells_of(line.rstrip("\r\n"))
    if values is None:
        return None
    if len(values) == count and '"' not in (values[wide] if wide is not None else ""):
        return values
    if wide is None:
        return None
    left = line.rstrip("\r\n").split(",", wide)
    right = left[-1].rsplit(",", count - wide - 1)
    joined = [*left[:-1], *right]
    return [value.strip('"') for value in joined] if len(joined) == count else None


def _number(row: Mapping[str, str], *columns: str) -> int:
    """The number in the first column that is there: `4`, `4.0` or `Agent 4`; ABSENT for anything else."""
    text = next((row[column].rsplit(" ", 1)[-1] for column in columns if column in row), "")
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return int(float(text))
    except (ValueError, OverflowError):
        return ABSENT


def _shape(row: Mapping[str, str]) -> int:
    sizes = [_number(row, f"{what}_Size_{axis}") for what in ("Grid", "Workgroup") for axis in "XYZ"]
    return hash(tuple(sizes)) & ((1 << 63) - 1) if sizes[0] != ABSENT else ABSENT


def _times(row: Mapping[str, str]) -> tuple[int, int]:
    start, end = row["Start_Timestamp"], row["End_Timestamp"]
    try:
        return int(start), int(end)
    except ValueError:  # a table that was written again may have `1000.0` or `1e3`
        return _exact(start), _exact(end)


def _exact(text: str) -> int:
    try:
        found = Decimal(text)
        return int(found) if found.is_finite() else int(text)
    except ArithmeticError as error:
        raise ValueError(text) from error


def _add_kernel(rows: RocprofRows, row: Mapping[str, str]) -> None:
    rows.add_gpu(
        *_times(row),
        Kind.COMPUTE,
        row["Kernel_Name"],
        device=_number(row, "Agent_Id"),
        stream=_number(row, "Stream_Id", "Queue_Id"),
        correlation=_number(row, "Correlation_Id"),
        shape=_shape(row),
    )


def _add_copy(rows: RocprofRows, row: Mapping[str, str]) -> None:
    direction = row["Direction"]
    # The GPU that a copy belongs to is its device end; of two, the one that it comes from.
    device = "Source_Agent_Id" if "DEVICE_TO" in direction else "Destination_Agent_Id"
    rows.add_gpu(
        *_times(row),
        Kind.COPY,
        direction,
        device=_number(row, device),
        stream=_number(row, "Stream_Id"),
        correlation=_number(row, "Correlation_Id"),
    )


def _add_call(rows: RocprofRows, row: Mapping[str, str]) -> None:
    rows.add_host(
        *_times(row),
        host_role(row["Domain"], row["Function"]),
        row["Function"],
        thread=_number(row, "Thread_Id"),
        correlation=_number(row, "Correlation_Id"),
    )
