"""Ranks whose process cannot run: real processes, stopped and continued."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from aorta.artefacts.io import read_json
from aorta.artefacts.layout import RunDir, Scenario
from aorta.artefacts.stops import NodeStops, Stop
from aorta.runner.options import NodeOptions
from aorta.runner.stopped import StoppedRanks


def options(tmp_path: Path) -> NodeOptions:
    own = NodeOptions(
        scenario=Scenario("1node"), results=tmp_path, config=None, executor="local", job_id="local-7",
        nodes=1, node_index=0,
    )  # fmt: skip
    own.run_dir.node(0).root.mkdir(parents=True)
    return own


@pytest.fixture
def ranks() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two ranks, the second with a child that inherits its environment."""
    sleep = (
        "import subprocess, sys, time\n"
        "if sys.argv[1:]: subprocess.Popen([sys.executable, '-c', 'input()'])\n"
        "time.sleep(60)"
    )
    made = [
        subprocess.Popen(
            [sys.executable, "-c", sleep, *["child"] * rank],
            env={**os.environ, "RANK": str(rank)}, stdin=subprocess.PIPE, start_new_session=True,
        )
        for rank in (0, 1)
    ]  # fmt: skip
    time.sleep(0.5)
    yield made
    for process in made:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def wait_for(pid: int, letters: str) -> None:
    end = time.monotonic() + 10
    while state(pid) not in letters and time.monotonic() < end:
        time.sleep(0.01)


def test_a_stopped_rank_is_kept_with_the_time(tmp_path: Path, ranks: list[subprocess.Popen[bytes]]) -> None:
    clock = iter(range(100, 10_000, 10))
    own = options(tmp_path)
    watch = StoppedRanks(own, [0, 1], now=lambda: next(clock))
    watch.look()  # 100: both run
    ranks[1].send_signal(signal.SIGSTOP)
    wait_for(ranks[1].pid, "T")
    watch.look()  # 110
    watch.look()  # 120
    ranks[1].send_signal(signal.SIGCONT)
    wait_for(ranks[1].pid, "SR")
    watch.look()  # 130
    told = read_json(RunDir(own.run_dir.root).node(own.node_index).stops, NodeStops)
    assert told.stops == [Stop(rank=1, state="stopped", from_wall_ns=110, to_wall_ns=120)]
    assert told.attempt == own.attempt


def test_what_still_stands_at_the_end_is_kept(tmp_path: Path, ranks: list[subprocess.Popen[bytes]]) -> None:
    own = options(tmp_path)
    watch = StoppedRanks(own, [0, 1])
    ranks[0].send_signal(signal.SIGSTOP)
    wait_for(ranks[0].pid, "T")
    watch.look()
    watch.close()
    (stop,) = read_json(own.run_dir.node(own.node_index).stops, NodeStops).stops
    assert (stop.rank, stop.state) == (0, "stopped")
    assert stop.to_wall_ns > stop.from_wall_ns


def test_nothing_is_written_of_ranks_that_run(tmp_path: Path, ranks: list[subprocess.Popen[bytes]]) -> None:
    own = options(tmp_path)
    watch = StoppedRanks(own, [0, 1])
    watch.look()
    watch.close()
    assert len(ranks) == 2
    assert not own.run_dir.node(own.node_index).stops.exists()


@pytest.mark.parametrize(("letters", "kept"), [("SDS", 0), ("SDDS", 1), ("STS", 1), ("SZS", 0), ("S", 0)])
def test_one_look_alone_is_no_wait_for_a_disk(
    tmp_path: Path, ranks: list[subprocess.Popen[bytes]], letters: str, kept: int
) -> None:
    assert ranks
    own, clock = options(tmp_path), iter(range(1_000))
    watch = StoppedRanks(own, [0], now=lambda: next(clock), proc=tmp_path / "proc")
    pid = ranks[0].pid
    (tmp_path / "proc" / str(pid)).mkdir(parents=True)
    for letter in letters:
        (tmp_path / "proc" / str(pid) / "stat").write_text(f"{pid} (a ) S b) {letter} 1 {'0 ' * 20}\n")
        watch.look()
    path = own.run_dir.node(own.node_index).stops
    assert (len(read_json(path, NodeStops).stops) if path.exists() else 0) == kept
