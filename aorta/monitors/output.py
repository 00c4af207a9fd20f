"""CSV files that grow by whole lines, each written at once."""

from __future__ import annotations

import contextlib
import csv
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from aorta.artefacts.io import write_whole

Cell = str | int | float | None


class CsvStream:
    """Appends rows to `path`, each by one unbuffered write: what was sampled survives a kill of this process.

    A file that exists already is continued; half a line at its end is cut off from what follows by a line
    break. A row that does not fit on the disk is taken back, so that the file keeps whole lines only.

    Raises:
        OSError: the file cannot be opened or written.
    """

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        self._writer = csv.writer(self, lineterminator="\n")
        size = os.fstat(self._fd).st_size
        if size == 0:
            self.row(columns)
        elif os.pread(self._fd, 1, size - 1) != b"\n":
            self.write("\n")

    def row(self, cells: Iterable[Cell]) -> None:
        """Write one row; None becomes an empty cell."""
        self._writer.writerow(cells)

    def write(self, text: str) -> int:
        """Called by the csv module with one whole line."""
        data = text.encode()
        write_whole(self._fd, data)
        return len(data)

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(OSError):
            os.close(self._fd)
