from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from aorta.artefacts.layout import RunDir
from aorta.instrument.writer import RecordWriter, set_aside


def writer_of(path: Path) -> RecordWriter:
    return RecordWriter(path.open("wb", buffering=0), str(path))


def test_each_line_is_in_the_file_at_once(tmp_path: Path) -> None:
    writer = writer_of(tmp_path / "records.jsonl")
    writer.write({"a": 1})  # type: ignore[arg-type]
    assert (tmp_path / "records.jsonl").read_text() == '{"a":1}\n'
    writer.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_ends_the_recording_only(caplog: pytest.LogCaptureFixture) -> None:
    writer = writer_of(Path("/dev/full"))
    with caplog.at_level(logging.ERROR):
        writer.write({"a": 1})  # type: ignore[arg-type]
        writer.write({"a": 2})  # type: ignore[arg-type]
    assert [record.message for record in caplog.records] == [
        "/dev/full: No space left on device; no more step records from this rank"
    ]


def test_nothing_to_set_aside(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert set_aside(RunDir(tmp_path)) is None
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_an_earlier_run_moves_as_a_whole(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    for rank in range(3):
        run.records(rank).write_text("old\n")
        os.utime(run.records(rank), (1_000_000_000 + rank,) * 2)
    run.config.write_text("old")
    (run.node(0).root).mkdir(parents=True)
    (tmp_path / "notes.txt").write_text("mine")
    folder = set_aside(run)
    assert folder is not None
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.yaml",
        "nodes",
        "rank_0_metrics.jsonl",
        "rank_1_metrics.jsonl",
        "rank_2_metrics.jsonl",
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == [folder.name, "notes.txt"]


def test_two_runs_that_ended_in_the_same_second_stay_apart(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    folders = []
    for text in ("first", "second"):
        run.records(0).write_text(text)
        os.utime(run.records(0), (1_000_000_000,) * 2)
        folders.append(set_aside(run))
    assert [(folder / "rank_0_metrics.jsonl").read_text() for folder in folders if folder] == [
        "first",
        "second",
    ]
