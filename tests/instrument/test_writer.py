from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from aorta.artefacts import io
from aorta.artefacts.layout import RunDir
from aorta.artefacts.step_record import StepRecord
from aorta.instrument.assemble import record_of
from aorta.instrument.writer import RecordWriter, set_aside
from tests.support.wire import CONSTANTS, measured


def record(step: int) -> StepRecord:
    return record_of(CONSTANTS, measured(step))


def writer_of(path: Path) -> RecordWriter:
    return RecordWriter(path.open("wb", buffering=0), "records.jsonl")


def steps_in(path: Path) -> list[int]:
    return [json.loads(line)["global_step"] for line in path.read_bytes().splitlines()]


class SmallDisk:
    """Stands for `os.write` on a disk with so much room."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
        self.room = room
        self._write = os.write
        monkeypatch.setattr(io.os, "write", self)

    def __call__(self, descriptor: int, data: bytes) -> int:
        if data and not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = self._write(descriptor, data[: self.room])
        self.room -= done
        return done


def test_each_line_is_in_the_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    writer = writer_of(path)
    writer.write(record(5))
    assert path.read_bytes().endswith(b"}\n")
    assert steps_in(path) == [5]
    writer.close()


def test_a_full_disk_costs_the_records_of_that_time_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "records.jsonl"
    writer = writer_of(path)
    disk = SmallDisk(monkeypatch, room=1 << 20)
    writer.write(record(0))
    disk.room = 10  # of the next line, of some hundred bytes
    for step in (1, 2, 3):
        writer.write(record(step))
    assert steps_in(path) == [0]
    disk.room = 1 << 20
    writer.write(record(4))
    assert steps_in(path) == [0, 4]
    assert [item.message for item in caplog.records] == [
        "records.jsonl: No space left on device; step records are lost from step 1 on",
        "records.jsonl: 3 records lost, steps 1 to 3; recording goes on",
    ]
    writer.close()
    assert len(caplog.records) == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_disk_that_stays_full_is_said_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    writer = writer_of(Path("/dev/full"))
    for step in (7, 8):
        writer.write(record(step))
    writer.close()
    assert [item.message for item in caplog.records] == [
        "records.jsonl: No space left on device; step records are lost from step 7 on",
        "records.jsonl: 2 records lost, steps 7 to 8; recording ends",
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
