from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aorta.artefacts import files
from aorta.artefacts.io import read_json
from aorta.errors import ArtefactError
from tests.support.rights import ordinary


@pytest.fixture
def special(tmp_path: Path) -> dict[str, Path]:
    """One of each kind that is no regular file."""
    paths = {name: tmp_path / name for name in ("a FIFO", "a socket", "a device", "Is a directory")}
    os.mkfifo(paths["a FIFO"])
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(paths["a socket"]))
    paths["a device"].symlink_to("/dev/zero")
    paths["Is a directory"].mkdir()
    return paths


def test_only_regular_files_are_opened(special: dict[str, Path], tmp_path: Path) -> None:
    for reason, path in special.items():
        for read in (files.open_regular, files.read_regular, files.refuse_special):
            with pytest.raises(OSError, match=reason):
                read(path)
        with pytest.raises(ArtefactError, match=reason):
            read_json(path, dict)
        assert not files.is_file(path)
    mine = tmp_path / "mine"
    mine.write_bytes(b"{}")
    (tmp_path / "link").symlink_to(mine)
    assert files.read_regular(tmp_path / "link") == b"{}"
    assert read_json(tmp_path / "link", dict) == {}
    assert files.is_file(tmp_path / "link")


def test_a_document_has_a_size_limit(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"12345")
    assert files.read_regular(path, 5) == b"12345"
    with pytest.raises(OSError, match="has 5 bytes; at most 4 are read"):
        files.read_regular(path, 4)
    os.truncate(path, 5 << 30)  # sparse: takes no room
    with pytest.raises(ArtefactError, match="has 5,368,709,120 bytes; at most 268,435,456 are read"):
        read_json(path, dict)


def test_what_is_missing_or_hidden_is_neither_file_nor_folder(tmp_path: Path) -> None:
    inside = tmp_path / "closed" / "a"
    inside.parent.mkdir()
    inside.write_bytes(b"123")
    asked = (files.is_file, files.is_there, files.size_of, files.changed_ns)
    assert all(ask(inside) for ask in asked)
    inside.parent.chmod(0)
    with ordinary():
        assert not any(ask(inside) for ask in asked)
        assert not files.is_folder(inside)
        assert not files.absent(inside)  # nobody knows
    inside.parent.chmod(0o700)
    assert not any(ask(tmp_path / "b") for ask in asked)
    assert files.absent(tmp_path / "b")


@pytest.mark.parametrize(("mode", "listed"), [(0o000, False), (0o300, False), (0o600, False), (0o500, True)])
def test_a_folder_needs_both_rights_to_be_looked_into(tmp_path: Path, mode: int, listed: bool) -> None:
    folder = tmp_path / "runs"
    (folder / "run_1").mkdir(parents=True)
    folder.chmod(mode)
    unread: files.Unread = []
    with ordinary():
        found = files.entries(folder, unread)
        assert (files.closed(folder) is None) is listed
        assert list(files.walk(folder, walked := [])) == []
    folder.chmod(0o700)
    assert found == ([folder / "run_1"] if listed else [])
    assert unread == walked == ([] if listed else [(folder, "Permission denied")])


def test_a_walk_names_what_it_cannot_read_and_goes_on(tmp_path: Path, special: dict[str, Path]) -> None:
    for name in ("a/x", "closed/y", "z/w"):
        path = tmp_path / "t" / name
        path.parent.mkdir(parents=True)
        path.write_text("")
    (tmp_path / "t" / "loop").symlink_to(tmp_path / "t")
    for index, path in enumerate(special.values()):
        (tmp_path / "t" / f"special{index}").symlink_to(path)
    (tmp_path / "t" / "nowhere").symlink_to("nothing")
    (tmp_path / "t" / "closed").chmod(0)
    unread: files.Unread = []
    with ordinary():
        found = list(files.walk(tmp_path / "t", unread))
    (tmp_path / "t" / "closed").chmod(0o700)
    assert [path.relative_to(tmp_path / "t").as_posix() for path in found] == ["a/x", "z/w"]
    assert unread == [(tmp_path / "t" / "closed", "Permission denied")]
    assert files.entries(tmp_path / "nothing", unread) == []
    assert len(unread) == 1  # what is missing is not unreadable


def test_a_walk_does_not_go_down_without_end(tmp_path: Path) -> None:
    folder = tmp_path / "/".join(["d"] * 40)
    folder.mkdir(parents=True)
    (folder / "deep").write_text("")
    (tmp_path / "flat").write_text("")
    unread: files.Unread = []
    assert list(files.walk(tmp_path, unread)) == [tmp_path / "flat"]
    assert unread == [(tmp_path / "/".join(["d"] * 25), "is nested more than 24 folders deep")]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=12), max_size=20), st.integers(1, 9), st.integers(1, 30))
def test_blocks_are_whole_lines_and_long_ones_are_cut(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes], size: int, longest: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "lines"
    data = b"\n".join(pieces)
    path.write_bytes(data)
    blocks = list(files.line_blocks(path, size, longest))
    assert all(block.endswith(b"\n") for block in blocks[:-1])
    expected = data.split(b"\n")
    got = b"".join(blocks).split(b"\n")
    # A block may hold the whole of a line that is a little too long; nothing is longer than both together.
    short = [line for line in expected if len(line) <= longest]
    assert [line for line in got if line in short] == short or len(short) < len(expected)
    assert all(len(line) <= longest + size for line in got)
    if len(short) == len(expected):
        assert b"".join(blocks) == data
        assert b"".join(files.lines(path)) == data


def test_a_huge_line_without_an_end_is_skipped_in_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    path.write_bytes(b"first\n")
    os.truncate(path, 50 << 20)
    with path.open("ab") as stream:
        stream.write(b"\nlast\n")
    got = list(files.lines(path, longest=1 << 10))
    assert [got[0], len(got[1]), got[2]] == [b"first\n", 1025, b"last\n"]
    assert len(got) == 3
    os.truncate(path, 500 << 20)
    with pytest.raises(OSError, match="64 MiB of it have no end of a line"):
        list(files.lines(path, longest=1 << 10))


@pytest.mark.parametrize("mode", [0o2775, 0o1777, 0o755, 0o700], ids=oct)
def test_a_shared_folder_has_the_rights_of_the_one_it_lies_in(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    before = os.umask(0o077)
    try:
        files.make_shared_folder(tmp_path / "below")
        assert stat.S_IMODE((tmp_path / "below").stat().st_mode) == mode
        # One that is there stays as its owner wants it.
        (tmp_path / "below").chmod(0o700)
        files.make_shared_folder(tmp_path / "below")
        assert stat.S_IMODE((tmp_path / "below").stat().st_mode) == 0o700
    finally:
        os.umask(before)
