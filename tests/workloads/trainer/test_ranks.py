"""Two real ranks under torchrun: numerics, records, and how they end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from aorta.artefacts.layout import RunDir
from aorta.artefacts.step_record import StepRecord
from tests.workloads.trainer.tiny import OVERRIDES

ROOT = Path(__file__).parents[3]
PATIENCE_S = 120


def torchrun(*program: str, ranks: int = 2) -> list[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return [*command, *program]


def environment() -> dict[str, str]:
    """This one without what a job or another launcher may have left in it."""
    foreign = ("AORTA_", "SLURM_", "TORCHELASTIC_", "MASTER_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return kept | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def run_to_end(command: list[str], folder: Path) -> str:
    """What a command that has to succeed printed."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What both ranks found, by rank."""
    folder = tmp_path_factory.mktemp("ranks")
    command = torchrun("-m", "tests.workloads.trainer.ranks", str(folder))
    run_to_end(command, folder)
    return [json.loads((folder / f"found_{rank}.json").read_text()) for rank in range(2)]


def test_weights_are_equal_on_all_ranks(found: list[dict[str, Any]]) -> None:
    for run in ("once", "serial", "parts"):
        first, second = found[0][run]["weights"]
        assert first == second
    assert found[0]["once"]["loss"] != found[1]["once"]["loss"]  # though each has its own samples


def test_the_same_seed_gives_the_same_run(found: list[dict[str, Any]]) -> None:
    for rank in found:
        assert rank["once"]["loss"] == rank["again"]["loss"]
        assert rank["once"]["weights"] == rank["again"]["weights"]
        assert len(set(rank["once"]["loss"])) == 4


def test_the_gradient_norm_is_the_same_everywhere(found: list[dict[str, Any]]) -> None:
    assert found[0]["once"]["norm"] == found[1]["once"]["norm"]
    assert all(norm > 0 for norm in found[0]["once"]["norm"])


def test_the_timed_exchange_trains_like_ddp_itself(found: list[dict[str, Any]]) -> None:
    assert found[0]["once"]["state"] == pytest.approx(found[0]["plain"], rel=1e-4, abs=1e-5)


def test_overlap_switched_off_changes_times_and_not_numbers(found: list[dict[str, Any]]) -> None:
    for rank in found:
        assert rank["serial"]["loss"] == pytest.approx(rank["once"]["loss"], rel=1e-5)
        assert rank["serial"]["ratio"] == [0.0] * 4  # measured, and nothing hidden
        # With several buckets, all but the last start under the backward pass.
        assert max(rank["once"]["ratio"][1:]) > 0


def test_collectives_are_named_alike_on_all_ranks(found: list[dict[str, Any]]) -> None:
    for run in ("once", "serial", "parts"):
        first, second = (
            [sorted(items, key=lambda item: item["seq"]) for items in rank[run]["collectives"]]
            for rank in found
        )
        assert first == second
        numbers = [item["seq"] for items in first for item in items]
        # Calls that are no exchange of gradients have numbers, too.
        assert numbers == sorted(set(numbers))
        assert numbers[0] == 1
    assert len(found[0]["once"]["collectives"][-1]) > 1


def test_accumulation_exchanges_once_a_step_and_gives_the_gradient_of_the_whole_batch(
    found: list[dict[str, Any]],
) -> None:
    whole, parts = found[0]["whole"], found[0]["parts"]
    assert parts["samples"] == whole["samples"] == [4] * 4
    assert parts["loss"] == pytest.approx(whole["loss"], rel=1e-4)
    assert parts["norm"] == pytest.approx(whole["norm"], rel=1e-3)
    assert [len(items) for items in parts["collectives"]] == [1] * 4  # 2 passes, 1 bucket, 1 all-reduce


def test_the_parts_of_every_step_sum_to_it(found: list[dict[str, Any]]) -> None:
    assert [rank[run]["exact"] for rank in found for run in ("once", "serial", "parts")] == [True] * 6


def test_steps_timed_as_a_whole_exchange_gradients_likewise(found: list[dict[str, Any]]) -> None:
    for rank in found:
        assert rank["seldom"]["loss"][:4] == rank["once"]["loss"]
        assert rank["seldom"]["detailed"] == [index < 31 for index in range(300)]
        first, second = rank["seldom"]["weights"]
        assert first == second


def test_buckets_below_a_mebibyte_compile(found: list[dict[str, Any]]) -> None:
    for rank in found:
        assert rank["complaints"] == []
        assert len(rank["compiled"]["loss"]) == 2
        assert len(set(rank["compiled"]["weights"])) == 1


def test_all_ranks_stop_after_the_same_step(found: list[dict[str, Any]]) -> None:
    # Seen by one rank before the second exchange; every rank knows one step later.
    assert [rank["stopped"] for rank in found] == [[0, 0, int(signal.SIGTERM)]] * 2


class Training:
    """`torchrun train.py` on two ranks, without an end of its own."""

    def __init__(self, folder: Path) -> None:
        self.run = RunDir(folder / "out")
        overrides = [*OVERRIDES, f"training.output_dir={self.run.root}", "training.max_steps=0"]
        overrides += ["training.epochs=100000", "dataloader.num_workers=1", "training.log_interval=1000"]
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                torchrun(str(ROOT / "train.py"), "--override", *overrides),
                cwd=folder,
                env=environment(),
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def log(self) -> str:
        return self._log.read_text()

    def until(self, reached: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not reached():
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.05)

    def steps(self, rank: int) -> int:
        path = self.run.records(rank)
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def rank_process(self, rank: int) -> psutil.Process:
        for child in psutil.Process(self.process.pid).children():
            if child.environ().get("RANK") == str(rank):
                return child
        raise AssertionError(f"no process of rank {rank}")

    def records(self, rank: int) -> list[StepRecord]:
        lines = self.run.records(rank).read_bytes()
        assert lines.endswith(b"\n")
        return [msgspec.json.decode(line, type=StepRecord) for line in lines.splitlines()]


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    running = Training(tmp_path)
    children: list[psutil.Process] = []
    try:
        running.until(lambda: min(running.steps(0), running.steps(1)) > 5)
        children = psutil.Process(running.process.pid).children(recursive=True)
        yield running
    finally:
        for process in [running.process, *children]:
            try:
                process.kill()
            except (psutil.NoSuchProcess, ProcessLookupError):
                continue
        running.process.wait()


def gone(children: list[psutil.Process]) -> bool:
    return not psutil.wait_procs(children, timeout=30)[1]


def test_sigterm_ends_all_ranks_after_the_same_step_with_their_records(training: Training) -> None:
    children = psutil.Process(training.process.pid).children(recursive=True)
    training.process.terminate()
    assert training.process.wait(PATIENCE_S) != 0
    assert gone(children)
    first, second = training.records(0), training.records(1)
    assert len(first) == len(second) > 5
    assert [record.global_step for record in first] == list(range(len(first)))
    assert "stopped by SIGTERM" in training.log()
    rows = training.run.metrics_csv.read_text().splitlines()
    assert sum(int(row.split(",")[-2]) for row in rows[1:]) == len(first)


def test_the_death_of_a_rank_ends_the_others(training: Training) -> None:
    children = psutil.Process(training.process.pid).children(recursive=True)
    training.rank_process(1).kill()
    assert training.process.wait(PATIENCE_S) != 0
    assert gone(children)  # loader workers too
    assert len(training.records(0)) > 5
