from __future__ import annotations

import csv
import errno
import os
from pathlib import Path

import pytest
import torch

from aorta.artefacts.records import METRICS_COLUMNS
from aorta.instrument.wire import StepSummary
from aorta.units import NS_PER_MS, NS_PER_S
from aorta.workloads.trainer.summary import Observer, Totals, metrics_row, progress
from aorta.workloads.trainer.world import World

ALONE = World(0, 0, 1, 0, torch.device("cpu"), None)


def record(step: int, loss: float | None = 0.5) -> StepSummary:
    """A step of 100 ms, one every 110: 60 compute, 10 exposed, 20 data, 10 host."""
    start = step * 110 * NS_PER_MS
    return StepSummary(
        epoch=0,
        global_step=step,
        samples=8,
        lr=0.1,
        loss=loss,
        mono_start_ns=start,
        mono_end_ns=start + 100 * NS_PER_MS,
        compute_ns=60 * NS_PER_MS,
        exposed_comm_ns=10 * NS_PER_MS,
        data_wait_ns=20 * NS_PER_MS,
    )


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_throughput_is_global_and_times_are_means_over_ranks() -> None:
    total = Totals(
        steps=20,
        samples=160,
        losses=20,
        loss=10.0,
        wall_ns=2 * 4 * NS_PER_S,
        data_wait_ns=2 * NS_PER_S,
        compute_ns=4 * NS_PER_S,
        exposed_comm_ns=0,
        broken_down=20,
    )
    row = metrics_row(3, total, ranks=2)
    assert row == {
        "epoch": 3,
        "train_loss": 10.0 / 20,
        "epoch_time_sec": 4.0,
        "throughput_samples_per_sec": 160 / 4.0,
        "data_load_time_sec": 1.0,
        "compute_time_sec": 2.0,
        "exposed_comm_time_sec": 0.0,
        "steps": 10,
        "samples": 160,
    }
    assert set(row) < set(METRICS_COLUMNS)


def test_parts_of_some_steps_stand_for_all_and_of_none_for_none() -> None:
    total = Totals()
    total.add(record(0))
    for step in (1, 2, 3):
        total.add(record(step)._replace(compute_ns=None, exposed_comm_ns=None))
    row = metrics_row(0, total, ranks=1)
    assert row["compute_time_sec"] == pytest.approx(4 * 0.060)
    assert row["exposed_comm_time_sec"] == pytest.approx(4 * 0.010)
    assert row["data_load_time_sec"] == pytest.approx(4 * 0.020)  # every step's own
    row = metrics_row(0, Totals(steps=1, wall_ns=NS_PER_S), ranks=1)
    assert (row["compute_time_sec"], row["exposed_comm_time_sec"]) == (None, None)


def test_slow_first_steps_stand_for_themselves_only() -> None:
    total, whole = Totals(), {"compute_ns": None, "exposed_comm_ns": None}
    slow = {"compute_ns": 3 * NS_PER_S, "exposed_comm_ns": 0, "steady": False}
    total.add(record(0)._replace(**slow))
    unknown = metrics_row(0, Totals(steps=2, broken_down=1, compute_ns=3 * NS_PER_S), ranks=1)
    assert unknown["compute_time_sec"] is None  # nothing tells what the other took
    assert metrics_row(0, total, ranks=1)["compute_time_sec"] == 3.0
    total.add(record(1))
    for step in range(2, 10):
        total.add(record(step)._replace(**whole))
    row = metrics_row(0, total, ranks=1)
    assert row["compute_time_sec"] == pytest.approx(3 + 9 * 0.060)
    assert row["exposed_comm_time_sec"] == pytest.approx(9 * 0.010)


def test_an_epoch_is_a_row_with_empty_cells_where_nothing_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    observer = Observer(ALONE, 100, path)
    for epoch in range(2):
        for step in range(3):
            observer.see(record(step))
        observer.end_epoch(epoch)
    first, second = rows(path)
    assert list(first) == list(METRICS_COLUMNS)
    assert (first["epoch"], second["epoch"], first["steps"], second["steps"]) == ("0", "1", "3", "3")
    assert float(first["epoch_time_sec"]) == (2 * 110 + 100) / 1000
    assert float(first["exposed_comm_time_sec"]) == 0.03
    assert first["val_loss"] == first["gpu_util_avg"] == ""


def test_a_loss_that_is_missing_is_not_counted_as_zero(tmp_path: Path) -> None:
    observer = Observer(ALONE, 100, tmp_path / "metrics.csv")
    for step, loss in enumerate((None, 0.5, 1.5)):
        observer.see(record(step, loss))
    observer.end_epoch(0)
    observer.see(record(0, None))
    observer.end_epoch(1)
    observer.see(record(0, 0.0))
    observer.end_epoch(2)
    assert [row["train_loss"] for row in rows(tmp_path / "metrics.csv")] == ["1.0", "", "0.0"]


def test_an_epoch_without_a_step_has_no_row(tmp_path: Path) -> None:
    observer = Observer(ALONE, 100, tmp_path / "metrics.csv")
    observer.end_epoch(0)
    assert rows(tmp_path / "metrics.csv") == []


def test_progress_says_that_its_throughput_is_global() -> None:
    # 2 steps of 8 samples on 4 ranks in 210 ms
    assert progress([record(0), record(1)], ranks=4) == (
        "epoch 0 step 1 loss 0.5000 lr 1.00e-01 step 105.0 ms, 305 samples/s global"
    )
    assert "loss n/a" in progress([record(0, None)], ranks=1)


def test_rows_that_do_not_fit_on_the_disk_come_with_the_next_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path, write = tmp_path / "metrics.csv", os.write
    observer = Observer(ALONE, 100, path)
    for epoch, room in enumerate((10, 10, None)):
        left = [room]

        def limited(descriptor: int, data: bytes, left: list[int | None] = left) -> int:
            if left[0] == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            done = write(descriptor, data[: left[0]])
            left[0] = None if left[0] is None else left[0] - done
            return done

        monkeypatch.setattr(os, "write", limited)
        observer.see(record(epoch))
        observer.end_epoch(epoch)
    monkeypatch.undo()
    assert [row["epoch"] for row in rows(path)] == ["0", "1", "2"]
    assert [item.message for item in caplog.records] == [
        f"{path}: No space left on device; {count} epochs not written yet" for count in (1, 2)
    ]
