"""Opens SQLite files that profilers export, plain or gzip-compressed, read-only."""

from __future__ import annotations

import contextlib
import re
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from aorta.artefacts.events import ABSENT, Column
from aorta.artefacts.files import open_regular, size_of
from aorta.errors import ArtefactError
from aorta.readers.fast.sqlite_pages import integer_blocks, rows_with_text
from aorta.readers.kineto_stream import GzipDamageError, gzip_blocks, is_gzip

T = TypeVar("T")

_CHUNK_ROWS = 100_000
_FIRST_ROW = -(1 << 63)
_LEAST_UNPACKED, _MOST_PACKED = 256 << 20, 100
"""Bytes that any packed database may unpack to, and times its own size that a larger one may."""
_TABLES = "type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'"
_STEPS_AT_ONCE, _LEAST_STEPS, _STEPS_PER_BYTE = 1_000_000, 5_000_000, 200
"""SQLite's own instructions."""


@dataclass(frozen=True, slots=True)
class Database:
    """A file's tables (and views) with their columns, and a connection to it."""

    path: Path
    connection: sqlite3.Connection
    tables: Mapping[str, frozenset[str]]
    plain: Path
    """The database itself: `path`, or what was unpacked of it."""

    def has(self, table: str, *columns: str) -> bool:
        """True if the table exists with these columns: exporters leave out empty tables, versions differ."""
        return table in self.tables and self.tables[table].issuperset(columns)

    def newest(self, table: str) -> str:
        """Returns the name under which the file holds a table: exporters append `_V2` to one that changed."""
        versions = {
            name: int(match[1]) for name in self.tables if (match := re.fullmatch(f"{table}_V(\\d+)", name))
        }
        return table if table in self.tables or not versions else max(versions, key=versions.__getitem__)

    def columns(self, table: str, *wanted: str) -> list[Column]:
        """Integer columns of a table in row order; NULL, or a column that the table lacks, is ABSENT.

        Raises:
            ArtefactError: the file is damaged.
        """
        return _joined(len(wanted), self.blocks(table, *wanted, each=_as_it_is))

    def blocks(self, table: str, *wanted: str, each: Callable[[Column], T]) -> list[T]:
        """Returns what `each` makes of these columns of a table, some thousand rows at a time, in row order.

        Args:
            table: a table or view.
            wanted: columns of integers; NULL, or one that the table lacks, is ABSENT.
            each: called with (columns, rows); several threads may call it, and again with the same rows.

        Raises:
            ArtefactError: the file is damaged.
        """
        present = [name for name in wanted if name in self.tables[table]]
        if not present:
            return []
        position = self._positions(table, present)
        if position is not None:
            lacking = np.array([name not in present for name in wanted])
            place = np.maximum(np.cumsum(~lacking) - 1, 0)

            def complete(block: Column) -> T:
                return each(np.where(lacking[:, None], ABSENT, block[place]) if lacking.any() else block)

            found = integer_blocks(self.plain, *position, complete)
            if found is not None:
                return found
        return [each(block) for block in self._chunks(table, self._terms(table, wanted))]

    def with_text(self, table: str, *wanted: str, text: str) -> tuple[list[Column], Column, list[str]]:
        """Columns of integers and one of texts.

        Args:
            table: a table or view.
            wanted: columns of integers; NULL, or one that the table lacks, is ABSENT.
            text: the column of texts; it may be lacking, too.

        Returns:
            The columns in row order; which text each row has, none is ABSENT; the texts, each once.

        Raises:
            ArtefactError: the file is damaged.
        """
        position = self._positions(table, [*wanted, text])
        if position is not None:
            root, (*numbers, last) = position
            found = rows_with_text(self.plain, root, numbers, last)
            if found is not None:
                columns, which, texts = found
                return columns, which, [_decoded(content) for content in texts]
        columns = _joined(len(wanted), self._chunks(table, self._terms(table, wanted)))
        # A blob of each row's, as many rows have the same: each text is decoded once.
        term = f'CAST("{text}" AS BLOB)' if text in self.tables[table] else "NULL"
        query = f'SELECT {term} FROM "{table}" ORDER BY rowid'  # noqa: S608 (constants only)
        each = [content for (content,) in self.connection.execute(query)]
        once = [content for content in dict.fromkeys(each) if content is not None]
        number = {None: ABSENT, **{content: place for place, content in enumerate(once)}}
        which = np.fromiter(map(number.__getitem__, each), dtype=np.int64, count=len(each))
        return columns, which, [_decoded(content) for content in once]

    def _terms(self, table: str, names: Sequence[str]) -> list[str]:
        # CAST, as a damaged page may hold values of any type. All names are constants of the readers.
        return [
            f'CAST(COALESCE("{name}", {ABSENT}) AS INTEGER)' if name in self.tables[table] else str(ABSENT)
            for name in names
        ]

    def _positions(self, table: str, names: Sequence[str]) -> tuple[int, list[int]] | None:
        """The root page of a table and the place of each column in its rows; None for a view, or where a
        column is an alias of the row number.
        """
        root = self.connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)
        ).fetchone()
        info = self.connection.execute("SELECT name, pk FROM pragma_table_info(?)", (table,)).fetchall()
        position = {name: index for index, (name, key) in enumerate(info) if not key}
        if root is None or not position.keys() >= set(names):
            return None
        return root[0], [position[name] for name in names]

    def _chunks(self, table: str, terms: list[str]) -> Iterator[Column]:
        """The terms of successive rows, (terms, rows) each.

        SQLite joins a chunk's values to one text for each term, which numpy parses: as exact as an object
        for each value, and a quarter less CPU time.
        """
        named = ", ".join(f"{term} AS c{index}" for index, term in enumerate(terms))
        joined = ", ".join(f"group_concat(c{index})" for index in range(len(terms)))
        query = (
            f"SELECT COUNT(*), MAX(r), {joined} FROM (SELECT rowid AS r, {named} "  # noqa: S608
            f'FROM "{table}" WHERE rowid > ? ORDER BY rowid LIMIT {_CHUNK_ROWS})'
        )
        last = _FIRST_ROW
        while True:
            count, reached, *texts = self.connection.execute(query, (last,)).fetchone()
            if count == 0:
                return
            if reached <= last:
                raise sqlite3.DatabaseError(f"row numbers of {table} are out of order")
            last = reached
            columns = [np.fromstring(text, dtype=np.int64, sep=",") for text in texts]
            if any(len(column) != count for column in columns):
                raise sqlite3.DatabaseError(f"rows of {table} cannot be read")
            yield np.stack(columns)


def _as_it_is(block: Column) -> Column:
    return block


def _joined(columns: int, blocks: Iterable[Column]) -> list[Column]:
    return list(np.concatenate([np.empty((columns, 0), dtype=np.int64), *blocks], axis=1))


def _decoded(text: bytes) -> str:
    return text.decode("utf-8", errors="replace")


@contextlib.contextmanager
def open_database(path: Path, *, views: bool = False) -> Iterator[Database]:
    """The database in `path`; a compressed one is unpacked beside other temporary files while it is open.

    Args:
        path: of the file.
        views: give its views too, as rocpd needs.

    Raises:
        ArtefactError: not a readable SQLite file, or damaged where it was read.
    """
    with contextlib.ExitStack() as stack:
        try:
            plain = _unpacked(path, stack) if is_gzip(path) else path
            _check_size(path, plain)
            connection = sqlite3.connect(f"{plain.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
            stack.callback(connection.close)
            connection.text_factory = _decoded
            _limit_work(connection, size_of(plain))
            # A view can have more rows than any file, and a virtual table is read by code that it names.
            kinds = _TABLES + (" OR type = 'view'" if views else "")
            names = connection.execute(f"SELECT name FROM sqlite_master WHERE {kinds}").fetchall()  # noqa: S608
            tables = {name: _columns(connection, name) for (name,) in names}
            yield Database(path, connection, tables, plain)
        except OSError as error:
            raise ArtefactError(f"{path}: {error.strerror}") from error
        except (sqlite3.Error, OverflowError, ValueError) as error:
            raise ArtefactError(
                f"{path}: damaged, or not an SQLite database ({error})",
                hint="export the report again; a full disk or an interrupted export leaves such files",
            ) from error


def _limit_work(connection: sqlite3.Connection, size: int) -> None:
    """End queries that take more steps than a file of `size` bytes can need, such as of an endless view."""
    left = [_LEAST_STEPS + _STEPS_PER_BYTE * size]

    def spent() -> bool:
        left[0] -= _STEPS_AT_ONCE
        return left[0] < 0

    connection.set_progress_handler(spent, _STEPS_AT_ONCE)


def _check_size(path: Path, plain: Path) -> None:
    """Refuse a file shorter than its header says: SQLite may give a part of the rows as if it were all."""
    with open_regular(plain) as stream:
        header = stream.read(32)
    size = size_of(plain)
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
        left = max(_LEAST_UNPACKED, size_of(path) * _MOST_PACKED)
        with open_regular(path) as packed, plain.open("wb") as unpacked:
            for block in gzip_blocks(packed):
                unpacked.write(block)
                left -= len(block)
                if left < 0:
                    raise ArtefactError(f"{path}: unpacks to more than {_MOST_PACKED} times its size")
    except GzipDamageError as damage:
        raise ArtefactError(f"{path}: {damage}", hint="copy the file again") from damage
    return plain
