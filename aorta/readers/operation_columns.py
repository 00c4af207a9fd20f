"""Columns of a table of operations: their names, their units, and values with the line that they stand in."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from aorta.artefacts.operations import UNKNOWN
from aorta.errors import ArtefactError

Ints = NDArray[np.int64]

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "rank": ("rank", "worker", "global_rank", "rank_id", "worker_id"),
    "step": ("step", "iteration", "global_step", "step_id", "iter"),
    "kind": ("kind", "optype", "op_type", "op", "name", "operation"),
    "replica": ("replica", "dp_rank", "dp"),
    "stage": ("stage", "pp_rank", "pp"),
    "tensor": ("tensor", "tp_rank", "tp"),
    "chunk": ("chunk", "model_chunk", "mc", "vpp_rank", "virtual_stage"),
    "microbatch": ("microbatch", "mb_id", "mb", "microbatch_id", "micro_batch"),
    "job": ("job", "job_id", "run", "run_id"),
}
"""Names of each column; those of `start` and `duration` (or `end`) carry their unit."""
_TIMES = {
    "start": ("start", "start_time", "begin", "ts", "timestamp"),
    "duration": ("duration", "dur", "elapsed", "time"),
    "end": ("end", "end_time", "stop"),
}
_UNITS = {
    **dict.fromkeys(("ns", "nsec", "nanoseconds"), 1),
    **dict.fromkeys(("us", "usec", "microseconds"), 1_000),
    **dict.fromkeys(("ms", "msec", "milliseconds"), 1_000_000),
    **dict.fromkeys(("s", "sec", "secs", "seconds"), 10**9),
}
"""ns of each unit."""
_IN_US = ("ts", "dur")
"""Names without a unit that are µs, as in Chrome's traces. Others, and `start_ts`, are seconds."""
_MOST_NS = 2**62
MOST_S = 3_600.0
"""An operation takes less: a larger time without a unit is in another unit than seconds."""
_DELIMITERS = (",", ";", "\t", "|")


def delimiter(first: str) -> str:
    """Returns the sign between the columns, by the first line."""
    return max(_DELIMITERS, key=first.count)


def cells(line: str, sign: str) -> list[str]:
    """Returns the columns of a line; none of one that is no line of a table, as of a database."""
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=sign), [])]
    except csv.Error:
        return []


def is_table(names: Sequence[str]) -> bool:
    """Returns True if columns are meant as operations: times, and two of rank, step, kind and stage."""
    known = _known(names)
    told = {"rank", "step", "kind", "stage"} & known.keys()
    return "start" in known and bool({"duration", "end"} & known.keys()) and len(told) > 1


def _folded(name: str) -> str:
    """Returns a name in small letters, with any other signs as underscores: `Start (us)` is `start_us`."""
    text = name.replace("µ", "u").replace("μ", "u")
    text = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", text) if not text.isupper() else text
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")


def _known(names: Sequence[str]) -> dict[str, tuple[str, int | None]]:
    """Returns our name of each column to the file's, and to ns of its unit. None if it names no unit."""
    folded = {_folded(name): name for name in reversed(names)}
    folded |= {name.lower(): name for name in reversed(names)}
    found: dict[str, tuple[str, int | None]] = {}
    for ours, choices in COLUMNS.items():
        theirs = next((one for one in choices if one in folded), None)
        if theirs is not None:
            found[ours] = folded[theirs], None
    for ours, stems in _TIMES.items():
        for stem in stems:
            for unit, scale in _UNITS.items():
                found.setdefault(ours, (folded[key], scale)) if (key := f"{stem}_{unit}") in folded else None
        for stem in (*stems, "start_ts") if ours == "start" else stems:
            if stem in folded and ours not in found:
                found[ours] = folded[stem], 1_000 if stem in _IN_US else None
    return found


@dataclass(frozen=True, slots=True)
class TableColumns:
    """A table of operations, as it was read."""

    path: Path
    columns: Mapping[str, Sequence[Any]]
    lines: Sequence[int] | None = None
    """The line of each row in the file. None if rows are counted from 1."""
    known: Mapping[str, tuple[str, int | None]] = field(init=False)

    def __post_init__(self) -> None:
        """Find what each column is.

        Raises:
            ArtefactError: a column is missing.
        """
        found = _known(list(self.columns))
        lost = [name for name in ("rank", "step", "kind", "start") if name not in found]
        lost += [] if {"duration", "end"} & found.keys() else ["duration"]
        if lost:
            raise ArtefactError(
                f"{self.path}: no column {' or '.join(lost)}; its columns are {', '.join(self.columns)}",
                "rank, step, kind, start_us and duration_us are needed (docs/parallelism.md)",
            )
        object.__setattr__(self, "known", found)

    def values(self, name: str) -> Sequence[Any]:
        """Returns the values of a column as they were read."""
        return self.columns[self.known[name][0]]

    def chosen(self, rows: Sequence[int], kinds: Sequence[str]) -> TableColumns:
        """Returns some rows, some of them more than once, with other kinds."""
        made: dict[str, Sequence[Any]] = {
            name: [values[row] for row in rows] for name, values in self.columns.items()
        }
        made[self.known["kind"][0]] = kinds
        lines = self.lines if self.lines is not None else range(1, len(next(iter(self.columns.values()))) + 1)
        return TableColumns(self.path, made, [lines[row] for row in rows])

    def one_job(self) -> None:
        """Check that the rows are of one job.

        Raises:
            ArtefactError: they are of several.
        """
        if "job" not in self.known:
            return
        jobs = sorted({str(value) for value in self.values("job")})
        if len(jobs) > 1:
            raise ArtefactError(
                f"{self.path}: column {self.known['job'][0]} contains {len(jobs)} jobs: "
                f"{', '.join(jobs[:4])}",
                "write one file per job",
            )

    def times(self) -> tuple[Ints, Ints]:
        """Returns starts and ends, ns."""
        start = self._ns("start")
        if "duration" in self.known:
            return start, start + self._ns("duration")
        return start, self._ns("end")

    def _ns(self, name: str) -> Ints:
        theirs, scale = self.known[name]
        values = self.columns[theirs]
        found = np.empty(len(values))
        for row, value in enumerate(values):
            try:
                found[row] = float(value)
            except (TypeError, ValueError):
                self._wrong(row, theirs, value, "a number")
        if scale is None and name == "duration" and len(found) and np.median(np.abs(found)) > MOST_S:
            raise ArtefactError(
                f"{self.path}: column {theirs} names no unit, and {np.median(found):g} s is not a plausible "
                "duration of an operation",
                f"add the unit to the name: {theirs}_us, {theirs}_ms or {theirs}_ns, and do the same for "
                "the start",
            )
        found *= scale or 10**9
        bad = ~np.isfinite(found) | (np.abs(found) >= _MOST_NS)
        if bad.any():
            row = int(np.argmax(bad))
            self._wrong(row, theirs, values[row], "a possible time; check its unit")
        return np.asarray(np.rint(found), dtype=np.int64)

    def whole(self, name: str, *, needed: bool = False) -> Ints:
        """Returns a column of whole numbers from 0 on; `UNKNOWN` where there is none.

        Args:
            name: ours.
            needed: an empty cell is an error.
        """
        if name not in self.known:
            return np.full(len(self.values("rank")), UNKNOWN, dtype=np.int64)
        theirs = self.known[name][0]
        found = np.empty(len(self.columns[theirs]), dtype=np.int64)
        for row, value in enumerate(self.columns[theirs]):
            if not needed and (value is None or value == ""):
                found[row] = UNKNOWN
                continue
            try:
                number = float(value)
                found[row] = int(number)
            except (TypeError, ValueError, OverflowError):
                number = -1.0 if needed else 0.5
            if number != int(number) or (needed and number < 0):
                self._wrong(row, theirs, value, "a whole number from 0 on")
        return np.maximum(found, UNKNOWN)

    def _wrong(self, row: int, column: str, value: object, wanted: str) -> NoReturn:
        place = f"line {self.lines[row]}" if self.lines is not None else f"row {row + 1}"
        said = "is empty" if value in (None, "") else f"is {str(value)[:40]!r}"
        raise ArtefactError(f"{self.path}: {place}, column {column} {said}", f"expected {wanted}")
