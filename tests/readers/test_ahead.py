"""Small packed traces are unpacked ahead; the reader sees the same text as without that."""

from __future__ import annotations

import gzip
import threading
from codecs import BOM_UTF8
from pathlib import Path

import pytest

from aorta.artefacts.events import Trace
from aorta.readers import ahead as module
from aorta.readers import kineto_stream, parallel
from aorta.readers.ahead import Ahead
from aorta.readers.kineto import read_many
from aorta.readers.kineto_stream import UnpackedText

EVENT = b'{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": %d, "dur": 5, "args": {}}'


def text(events: int) -> bytes:
    return b'{"traceEvents": [' + b", ".join(EVENT % (10 * at) for at in range(events)) + b"]}"


def packed(path: Path, content: bytes) -> Path:
    path.write_bytes(gzip.compress(content, 1))
    return path


def on_cores(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    for where in (module, parallel):
        monkeypatch.setattr(where, "usable_cores", lambda: count)


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    on_cores(monkeypatch, 2)


@pytest.mark.parametrize(("cores", "unpacked"), [(1, 0), (2, 3), (3, 3), (4, 0)])
def test_fewer_files_than_cores_are_left_to_the_processes_that_share_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int, unpacked: int
) -> None:
    files = [packed(tmp_path / f"rank{rank}.json.gz", text(rank)) for rank in range(3)]
    on_cores(monkeypatch, cores)
    assert len(Ahead(files).texts()) == unpacked


def test_each_small_trace_of_several_is_unpacked_and_no_thread_is_left(tmp_path: Path) -> None:
    files = [packed(tmp_path / f"rank{rank}.json.gz", text(rank)) for rank in range(3)]
    found = Ahead([tmp_path]).texts()
    assert found == {path: text(rank) for rank, path in enumerate(files)}
    assert threading.active_count() == 1
    assert Ahead(files).texts() == found


def test_several_threads_share_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_cores(monkeypatch, 9)
    files = [packed(tmp_path / f"rank{rank}.json.gz", text(rank)) for rank in range(40)]
    assert Ahead(files).texts() == {path: text(rank) for rank, path in enumerate(files)}


def test_a_byte_order_mark_is_no_part_of_a_text(tmp_path: Path) -> None:
    files = [packed(tmp_path / f"rank{rank}.json.gz", BOM_UTF8 + text(1)) for rank in range(2)]
    assert set(Ahead(files).texts().values()) == {text(1)}


def damaged(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def of_two_members(path: Path) -> None:
    path.write_bytes(path.read_bytes() + gzip.compress(b" "))


def not_packed(path: Path) -> None:
    path.write_bytes(text(1))


def missing(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("change", [damaged, of_two_members, not_packed, missing])
def test_any_other_file_is_left_to_its_reader(tmp_path: Path, change: object) -> None:
    good, other = (packed(tmp_path / f"rank{rank}.json.gz", text(9)) for rank in range(2))
    assert callable(change)
    change(other)
    assert Ahead([good, other]).texts() == {good: text(9)}


def test_large_files_and_one_alone_are_unpacked_while_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small, large = packed(tmp_path / "a.json.gz", text(1)), packed(tmp_path / "b.json.gz", text(2000))
    assert Ahead([large]).texts() == {}
    monkeypatch.setattr(module, "_MOST_PACKED", small.stat().st_size)
    assert Ahead([small, large]).texts() == {small: text(1)}


def test_no_more_than_a_limit_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [packed(tmp_path / f"rank{rank}.json.gz", text(9)) for rank in range(4)]
    monkeypatch.setattr(module, "_MOST", 2 * len(text(9)))
    unpacked = []
    real = module._text
    monkeypatch.setattr(module, "_text", lambda content, most: unpacked.append(1) or real(content, most))
    assert sum(map(len, Ahead(files).texts().values())) == 2 * len(text(9))
    assert len(unpacked) == 2


def test_a_size_that_is_none_lifts_no_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the library, a limit of 0 bytes is no limit."""
    full = packed(tmp_path / "a.json.gz", text(9))
    lying = tmp_path / "b.json.gz"
    lying.write_bytes(gzip.compress(text(99), 1)[:-4] + bytes(4))
    monkeypatch.setattr(module, "_MOST", len(text(9)))
    asked = []
    real = module._text
    monkeypatch.setattr(module, "_text", lambda content, most: asked.append(most) or real(content, most))
    assert Ahead([full, lying]).texts() == {full: text(9)}
    assert asked == [len(text(9))]


@pytest.mark.parametrize("error", [MemoryError, OSError, ValueError])
def test_an_error_of_a_thread_is_left_to_the_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    files = [packed(tmp_path / f"rank{rank}.json.gz", text(9)) for rank in range(3)]

    def fail(content: bytes, most: int) -> bytes:
        raise error

    unseen: list[object] = []
    monkeypatch.setattr(threading, "excepthook", unseen.append)
    monkeypatch.setattr(module, "_text", fail)
    assert Ahead(files).texts() == {}
    assert not unseen


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 25])
def test_an_unpacked_text_comes_piece_by_piece_behind_what_was_kept(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(kineto_stream, "_PIECE", 10)
    whole = bytes(range(size))
    text, kept, at = UnpackedText(whole), b"", 0
    for keep in (0, 3, 3, 7):
        found = text.behind(kept)
        assert found == kept + whole[at : at + 10]
        at = min(at + 10, size)
        kept = found[max(len(found) - keep, 0) :]


def test_the_trace_is_the_same(tmp_path: Path) -> None:
    path = packed(tmp_path / "rank0.json.gz", text(700))
    for texts in ({}, {path: text(700)}):
        (trace,) = read_many([path], texts=texts)
        assert isinstance(trace, Trace)
        assert trace.gpu.start_ns.tolist() == [10_000 * at for at in range(700)]
