"""Atomic documents: the old file or the new one, never half of it."""

from pathlib import Path

import pytest

from aorta.artefacts import io
from aorta.artefacts.records import ClockTriple, RankExit
from aorta.errors import ArtefactError


def test_json_comes_back_as_it_was(tmp_path: Path) -> None:
    value = ClockTriple(realtime_ns=2**63 - 1, monotonic_ns=0, boottime_ns=-1)
    io.write_json(tmp_path / "deep" / "clock.json", value)
    assert io.read_json(tmp_path / "deep" / "clock.json", ClockTriple) == value


def test_absent_is_null_and_zero_is_zero(tmp_path: Path) -> None:
    io.write_json(tmp_path / "a.json", RankExit(rank=0, exit_code=None, signal=None))
    io.write_json(tmp_path / "b.json", RankExit(rank=0, exit_code=0, signal=None))
    assert '"exit_code": null' in (tmp_path / "a.json").read_text()
    assert '"exit_code": 0' in (tmp_path / "b.json").read_text()


def test_a_failed_write_keeps_the_old_document_and_leaves_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "document.txt"
    io.write_text(path, "old")

    def refuse(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(io.os, "fsync", refuse)
    with pytest.raises(OSError, match="No space"):
        io.write_text(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_made_is_named_and_not_the_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(prefix: str, dir: Path) -> None:
        raise PermissionError(13, "Permission denied", str(dir / f"{prefix}x7"))

    monkeypatch.setattr("tempfile.mkstemp", refuse)
    with pytest.raises(PermissionError) as raised:
        io.write_text(tmp_path / "document.txt", "new")
    assert raised.value.filename == str(tmp_path / "document.txt")


@pytest.mark.parametrize("content", [b"", b"{", b'{"realtime_ns": "x"}', b'{"realtime_ns": 1}', b"\xff\xfe"])
def test_a_broken_document_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "clock.json"
    path.write_bytes(content)
    with pytest.raises(ArtefactError, match=r"clock\.json"):
        io.read_json(path, ClockTriple)


def test_a_missing_document_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match=r"clock\.json: missing"):
        io.read_json(tmp_path / "clock.json", ClockTriple)


def test_unknown_fields_of_a_newer_version_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "clock.json"
    path.write_text('{"realtime_ns": 1, "monotonic_ns": 2, "boottime_ns": 3, "tai_ns": 4}')
    assert io.read_json(path, ClockTriple).boottime_ns == 3


def test_lines_are_appended_one_by_one(tmp_path: Path) -> None:
    for line in ("1", "2\n"):
        io.append_line(tmp_path / "job_ids.txt", line)
    assert (tmp_path / "job_ids.txt").read_text() == "1\n2\n"


def test_results_follow_the_umask(tmp_path: Path) -> None:
    io.write_text(tmp_path / "a.txt", "x")
    assert (tmp_path / "a.txt").stat().st_mode & 0o002 == 0


def test_json_nested_without_end_is_refused_and_named(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    path.write_text("[" * 100_000)
    with pytest.raises(ArtefactError, match=r"status\.json: nested too deeply"):
        io.read_json(path, list)
