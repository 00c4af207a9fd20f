"""Opens SQLite files that profilers export, plain or gzip-compressed, read-only."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from aorta.artefacts.events import ABSENT, Column
from aorta.errors import ArtefactError
from aorta.readers.kineto_stream import GzipDamageError, gzip_blocks, is_gzip


@dataclass(frozen=True, slots=True)
class Database:
    """A file's tables (and views) with their columns, and a connection to it."""

    path: Path
    connection: sqlite3.Connection
    tables: Mapping[str, frozenset[str]]

    def has(self, table: str, *columns: str) -> bool:
        """Whether the table exists with these columns: exporters leave out empty tables, versions differ."""
        return table in self.tables and self.tables[table].issuperset(columns)

    def columns(self, table: str, *wanted: str, where: str = "1") -> list[Column]:
        """Integer columns of a table in row order; NULL, or a column that the table lacks, is ABSENT.

        Raises:
            ArtefactError: the file is damaged.
        """
        present = self.tables[table]
        names = [f'"{name}"' if name in present else str(ABSENT) for name in wanted]
        try:
            flat = self._numbers(table, names, where)
        except (TypeError, ValueError):
            # NULL, or a damaged page, which holds values of any type: CAST makes integers of them all.
            names = [f"CAST(COALESCE({name}, {ABSENT}) AS INTEGER)" for name in names]
            flat = self._numbers(table, names, where)
        rows = flat.reshape(-1, len(wanted))
        return [np.ascontiguousarray(rows[:, index]) for index in range(len(wanted))]

    def _numbers(self, table: str, terms: list[str], where: str) -> Column:
        # Table and column names are constants of the readers, never text from a file.
        query = f'SELECT {", ".join(terms)} FROM "{table}" WHERE {where}'  # noqa: S608
        values = itertools.chain.from_iterable(self.connection.execute(query))
        return np.fromiter(values, dtype=np.int64)


@contextlib.contextmanager
def open_database(path: Path) -> Iterator[Database]:
    """The database in `path`; a compressed one is unpacked beside other temporary files while it is open.

    Raises:
        ArtefactError: not a readable SQLite file, or damaged where it was read.
    """
    with contextlib.ExitStack() as stack:
        try:
            plain = _unpacked(path, stack) if is_gzip(path) else path
            _check_size(path, plain)
            connection = sqlite3.connect(f"{plain.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
            stack.callback(connection.close)
            connection.text_factory = lambda data: data.decode("utf-8", errors="replace")
            query = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view')"
            names = connection.execute(query).fetchall()
            tables = {name: _columns(connection, name) for (name,) in names}
            yield Database(path, connection, tables)
        except OSError as error:
            raise ArtefactError(f"{path}: {error.strerror}") from error
        except (sqlite3.Error, OverflowError, ValueError) as error:
            raise ArtefactError(
                f"{path}: damaged, or not an SQLite database ({error})",
                hint="export the report again; a full disk or an ended export leaves such files",
            ) from error


def _check_size(path: Path, plain: Path) -> None:
    """Refuse a file shorter than its header says: SQLite may give a part of the rows as if it were all."""
    with plain.open("rb") as stream:
        header = stream.read(32)
    size = plain.stat().st_size
    if size == 0:
        raise ArtefactError(f"{path}: the file is empty")
    if header[:16] == b"SQLite format 3\0" and len(header) == 32:
        page = int.from_bytes(header[16:18], "big")
        expected = (65536 if page == 1 else page) * int.from_bytes(header[28:32], "big")
        if size < expected:
            raise ArtefactError(
                f"{path}: cut off: {size} of {expected} bytes",
                hint="copy or export the file again; a full disk leaves such files",
            )


def _columns(connection: sqlite3.Connection, table: str) -> frozenset[str]:
    """The columns of a table; none for a view over tables that are missing."""
    try:
        return frozenset(
            row[0] for row in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))
        )
    except sqlite3.OperationalError:
        return frozenset()


def _unpacked(path: Path, stack: contextlib.ExitStack) -> Path:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aorta-")))
    plain = folder / "trace.sqlite"
    try:
        with path.open("rb") as packed, plain.open("wb") as unpacked:
            for block in gzip_blocks(packed):
                unpacked.write(block)
    except GzipDamageError as damage:
        raise ArtefactError(f"{path}: {damage}", hint="copy the file again") from damage
    return plain
