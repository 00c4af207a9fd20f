"""Integer columns from the pages of an SQLite file are those that SQLite gives, or there are none."""

from __future__ import annotations

import contextlib
import itertools
import random
import sqlite3
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aorta.artefacts.events import ABSENT
from aorta.readers import trace_sqlite
from aorta.readers.fast.sqlite_pages import integer_blocks, rows_with_text

EDGES = [
    sign * (1 << bits) + off for bits in (0, 7, 15, 23, 31, 47, 62) for sign in (1, -1) for off in (-1, 0)
]
EDGES += [None, 0, 1, 2, (1 << 63) - 1, -(1 << 63)]
VALUES = st.one_of(st.sampled_from(EDGES), st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-3, 3))


def stored(
    path: Path, width: int, rows: Iterable[Sequence[Any]], *, page: int = 4096, kind: str = "INTEGER"
) -> Path:
    names = ", ".join(f"c{index} {kind}" for index in range(width))
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA page_size = {page}")
        database.execute("CREATE TABLE other (a TEXT)")
        database.execute(f"CREATE TABLE t ({names})")
        database.executemany(f"INSERT INTO t VALUES ({', '.join('?' * width)})", rows)
        database.commit()
    return path


def execute(path: Path, *statements: str) -> Path:
    with contextlib.closing(sqlite3.connect(path)) as database:
        for statement in statements:
            database.execute(statement)
        database.commit()
    return path


def from_pages(path: Path, wanted: Sequence[int]) -> list[list[int]] | None:
    with contextlib.closing(sqlite3.connect(path)) as database:
        (root,) = database.execute("SELECT rootpage FROM sqlite_master WHERE name = 't'").fetchone()
    blocks = integer_blocks(path, root, wanted, lambda block: block.tolist())
    return (
        None if blocks is None else [list(itertools.chain(*column)) for column in zip(*blocks, strict=True)]
    )


def from_sqlite(path: Path, wanted: Sequence[int]) -> list[list[int]]:
    names = ", ".join(f"COALESCE(c{index}, {ABSENT})" for index in wanted)
    with contextlib.closing(sqlite3.connect(path)) as database:
        rows = database.execute(f"SELECT {names} FROM t ORDER BY rowid").fetchall()
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in wanted]


def read(path: Path, *wanted: str) -> list[list[int]]:
    with trace_sqlite.open_database(path) as opened:
        return [column.tolist() for column in opened.columns("t", *wanted)]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_columns_are_those_of_sqlite(data: st.DataObject) -> None:
    width = data.draw(st.sampled_from([1, 2, 7, 8, 9, 16, 17, 26]))
    page = data.draw(st.sampled_from([512, 1024, 4096, 65536]))
    some = data.draw(st.lists(st.tuples(*[VALUES] * width), max_size=12))
    rows = list(
        itertools.islice(itertools.cycle(some), data.draw(st.sampled_from([0, 1, 30, 700])) if some else 0)
    )
    wanted = data.draw(st.lists(st.integers(0, width - 1), min_size=1, max_size=4))
    with tempfile.TemporaryDirectory() as folder:
        path = stored(Path(folder) / "a.sqlite", width, rows, page=page)
        assert from_pages(path, wanted) == from_sqlite(path, wanted)


TEXTS = [None, "", "a", "step 20", "é" * 28, "x" * 57, "x" * 58, "y" * 57, "z" * 300]


def texts_from_pages(path: Path, wanted: Sequence[int], text: int) -> list[tuple[Any, ...]] | None:
    """Rows of numbers and a text."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        (root,) = database.execute("SELECT rootpage FROM sqlite_master WHERE name = 't'").fetchone()
    found = rows_with_text(path, root, wanted, text)
    if found is None:
        return None
    numbers, which, texts = found
    assert len(set(texts)) == len(texts)
    said = [None if code == ABSENT else texts[code].decode() for code in which.tolist()]
    return list(zip(*(column.tolist() for column in numbers), said, strict=True))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_texts_between_numbers_are_those_of_sqlite(data: st.DataObject) -> None:
    before, behind = data.draw(st.sampled_from([0, 1, 6, 8, 9])), data.draw(st.sampled_from([0, 1, 3, 8, 17]))
    values = [VALUES] * before, st.sampled_from(TEXTS), [VALUES] * behind
    some = data.draw(st.lists(st.tuples(*values[0], values[1], *values[2]), min_size=1, max_size=9))
    rows = list(itertools.islice(itertools.cycle(some), data.draw(st.sampled_from([1, 40, 500]))))
    width = before + 1 + behind
    others = [index for index in range(width) if index != before]
    wanted = data.draw(st.lists(st.sampled_from(others), min_size=1, max_size=4)) if others else []
    with tempfile.TemporaryDirectory() as folder:
        path = stored(Path(folder) / "a.sqlite", width, rows, kind="")
        expected = [
            (*(ABSENT if row[index] is None else row[index] for index in wanted), row[before]) for row in rows
        ]
        assert texts_from_pages(path, wanted, before) == expected


def test_other_texts_are_left_to_sqlite(tmp_path: Path) -> None:
    rows = [(n, f"text {n % 3}", n << 20) for n in range(400)]
    path = stored(tmp_path / "a.sqlite", 3, rows, page=65536, kind="")
    assert texts_from_pages(path, [0, 2], 1) == [(n, m, text) for n, text, m in rows]
    for text in ("7", "2.5", f"'{'x' * 9000}'"):
        execute(path, f"UPDATE t SET c1 = {text} WHERE c0 = 300")
        assert texts_from_pages(path, [0, 2], 1) is None
        with trace_sqlite.open_database(path) as opened:
            (last, first), which, texts = opened.with_text("t", "c2", "c0", text="c1")
        assert (last.tolist(), first.tolist()) == ([row[2] for row in rows], list(range(400)))
        assert texts == ["text 0", "text 1", "text 2", text.strip("'")]
        assert which.tolist() == [3 if n == 300 else n % 3 for n in range(400)]
    with contextlib.closing(sqlite3.connect(tmp_path / "wide.sqlite")) as database:
        database.execute("PRAGMA encoding = 'UTF-16le'")
        database.execute("CREATE TABLE t (c0, c1)")
        database.execute("INSERT INTO t VALUES (1, 'wide')")
        database.commit()
    assert texts_from_pages(tmp_path / "wide.sqlite", [0], 1) is None


def test_damaged_texts_give_what_sqlite_gives_or_nothing(tmp_path: Path) -> None:
    rows = [(n << (n % 40), TEXTS[n % 5], n) for n in range(1500)]
    whole = stored(tmp_path / "whole.sqlite", 3, rows, page=1024, kind="").read_bytes()
    pick = random.Random(7)
    path = tmp_path / "flipped.sqlite"
    agreed = refused = 0
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(pick.choice([1, 1, 20])):
            data[pick.randrange(2048, len(data))] = pick.choice([0, 255, pick.randrange(256)])
        path.write_bytes(data)
        with contextlib.closing(sqlite3.connect(path)) as database:
            query = f"SELECT COALESCE(c0, {ABSENT}), COALESCE(c2, {ABSENT}), CAST(c1 AS BLOB) FROM t"
            try:
                expected = database.execute(query).fetchall()
            except sqlite3.Error:
                continue
            (root,) = database.execute("SELECT rootpage FROM sqlite_master WHERE name = 't'").fetchone()
        found = rows_with_text(path, root, [0, 2], 1)
        if found is None:
            refused += 1
            continue
        (first, last), which, texts = found
        said = [None if code == ABSENT else texts[code] for code in which.tolist()]
        assert list(zip(first.tolist(), last.tolist(), said, strict=True)) == expected
        agreed += 1
    assert agreed > 20
    assert refused > 5


def test_rows_come_in_order_from_all_levels_of_a_tree(tmp_path: Path) -> None:
    # 512-byte pages: leaves of about 20 rows, interior pages of about 60 children, so three levels.
    path = stored(tmp_path / "a.sqlite", 2, ((-n, n << 20) for n in range(30_000)), page=512)
    execute(path, "DELETE FROM t WHERE c0 % 7 = 0", "INSERT INTO t (rowid, c0, c1) VALUES (-5, 9, 1)")
    execute(path, f"INSERT INTO t (rowid, c0, c1) VALUES ({(1 << 63) - 1}, 8, NULL)")
    first, second = from_pages(path, [0, 1]) or ([], [])
    kept = [n for n in range(30_000) if n % 7]
    assert first == [9, *(-n for n in kept), 8]
    assert second == [1, *(n << 20 for n in kept), ABSENT]


def test_floats_elsewhere_are_stepped_over(tmp_path: Path) -> None:
    path = stored(tmp_path / "a.sqlite", 3, [(1, 2.5, 70_000), (None, 0.0, 1 << 40)], kind="")
    assert from_pages(path, [0, 2]) == [[1, ABSENT], [70_000, 1 << 40]]
    assert from_pages(path, [1]) is None


def test_what_is_behind_the_last_wanted_column_may_be_anything(tmp_path: Path) -> None:
    behind = ["", "x" * 50, "y" * 300, b"blob", 2.5, None, 7]
    rows = [(n, n << 33, behind[n % len(behind)], "end") for n in range(2000)]
    path = stored(tmp_path / "a.sqlite", 4, rows, kind="")
    assert from_pages(path, [1, 0]) == [[n << 33 for n in range(2000)], list(range(2000))]
    assert from_pages(path, [0, 2]) is None
    assert from_pages(path, [3]) is None
    # Of a text longer than a page, and of its row, a part is elsewhere.
    execute(path, "UPDATE t SET c3 = printf('%09999d', 1) WHERE c0 = 1500")
    assert from_pages(path, [0]) is None
    assert read(path, "c1", "c0") == [[n << 33 for n in range(2000)], list(range(2000))]


@pytest.mark.parametrize("odd", ["'text'", "''", "x''", "x'0102'", "2.5", "printf('%09999d', 1)"])
def test_other_values_are_left_to_sqlite(tmp_path: Path, odd: str) -> None:
    path = stored(tmp_path / "a.sqlite", 3, [(n, n, n) for n in range(500)], kind="")
    assert from_pages(path, [1]) == [list(range(500))]
    execute(path, f"UPDATE t SET c1 = {odd} WHERE c0 = 300")
    assert from_pages(path, [1]) is None
    numbers = read(path, "c0", "c2")
    assert numbers == [list(range(500))] * 2


def test_other_tables_are_left_to_sqlite(tmp_path: Path) -> None:
    rows = [(n, 2 * n) for n in range(1000)]
    doubled = [list(range(1000)), list(range(0, 2000, 2))]
    added = execute(
        stored(tmp_path / "added.sqlite", 2, rows), "ALTER TABLE t ADD COLUMN late INTEGER DEFAULT 5"
    )
    assert from_pages(added, [1]) == doubled[1:]
    assert from_pages(added, [2]) is None  # rows from before do not have it
    assert read(added, "c0", "c1", "late") == [*doubled, [5] * 1000]
    keyed = execute(
        stored(tmp_path / "keyed.sqlite", 2, rows),
        "CREATE TABLE k (c0 INTEGER PRIMARY KEY, c1 INTEGER)",
        "INSERT INTO k SELECT * FROM t",
        "DROP TABLE t",
        "ALTER TABLE k RENAME TO t",
    )
    assert read(keyed, "c1") == doubled[1:]
    assert read(keyed, "c0", "c1") == doubled
    view = execute(
        stored(tmp_path / "v.sqlite", 2, rows),
        "ALTER TABLE t RENAME TO u",
        "CREATE VIEW v AS SELECT * FROM u",
    )
    with trace_sqlite.open_database(view, views=True) as opened:
        assert opened.tables["v"] == {"c0", "c1"}
    unordered = execute(
        stored(tmp_path / "without.sqlite", 2, rows),
        "DROP TABLE t",
        "CREATE TABLE t (c0 INTEGER PRIMARY KEY, c1 INTEGER) WITHOUT ROWID",
        "INSERT INTO t VALUES (1, 2)",
    )
    assert from_pages(unordered, [1]) is None


def test_rows_that_go_on_in_another_page_are_left_to_sqlite(tmp_path: Path) -> None:
    # 55 columns of 8 bytes and their header: 496 bytes, of which a page of 512 may hold 477 of one row.
    rows = [[(1 << 60) + row + column for column in range(55)] for row in range(40)]
    path = stored(tmp_path / "a.sqlite", 55, rows, page=512)
    assert from_pages(path, [0, 54]) is None
    assert read(path, "c54") == [[(1 << 60) + row + 54 for row in range(40)]]


def test_damage_gives_what_sqlite_gives_or_nothing(tmp_path: Path) -> None:
    rows = [(n, None if n % 5 == 0 else n << (n % 50), n % 2) for n in range(3000)]
    whole = stored(tmp_path / "whole.sqlite", 3, rows, page=1024).read_bytes()
    pick = random.Random(5)
    path = tmp_path / "flipped.sqlite"
    agreed = 0
    for _ in range(200):
        data = bytearray(whole)
        for _ in range(pick.choice([1, 1, 20])):
            data[pick.randrange(1024, len(data))] = pick.choice([0, 255, pick.randrange(256)])
        path.write_bytes(data)
        try:
            expected = from_sqlite(path, [0, 1, 2])
        except sqlite3.Error:
            expected = None
        found = from_pages(path, [0, 1, 2])
        assert found is None or expected is None or found == expected
        agreed += found is not None and found == expected
    assert agreed > 20


def test_a_file_that_ends_early_gives_nothing(tmp_path: Path) -> None:
    path = stored(tmp_path / "a.sqlite", 2, [(n, n) for n in range(3000)], page=512)
    whole = path.read_bytes()
    for size in (40, 100, 600, 2048, len(whole) - 512):
        cut = tmp_path / "cut.sqlite"
        cut.write_bytes(whole[:size])
        assert integer_blocks(cut, 3, [0], len) is None
