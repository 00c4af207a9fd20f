from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from aorta.errors import ConfigError, RunError
from aorta.workloads.trainer.world import StopSignal, World, choose_backend, choose_device, workers_idle

CPU = torch.device("cpu")


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.fixture
def no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_a_rank_takes_the_gpu_of_its_local_rank(gpus: None) -> None:
    assert choose_device("auto", 1) == torch.device("cuda", 1)
    assert choose_device("cpu", 1) == CPU
    with pytest.raises(RunError, match="local rank 2 has no GPU: 2 visible"):
        choose_device("cuda", 2)


def test_without_gpus(no_gpus: None) -> None:
    assert choose_device("auto", 3) == CPU
    with pytest.raises(ConfigError, match=r"training\.device is 'cuda'"):
        choose_device("cuda", 0)


def test_backends() -> None:
    gpu = torch.device("cuda", 0)
    assert (choose_backend("auto", gpu), choose_backend("auto", CPU)) == ("nccl", "gloo")
    assert choose_backend("gloo", gpu) == "gloo"
    with pytest.raises(ConfigError, match=r"distributed\.backend is 'nccl'"):
        choose_backend("nccl", CPU)


@pytest.fixture
def stop() -> Iterator[StopSignal]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    single = StopSignal(World(0, 0, 1, 0, CPU, None))
    single.install()
    yield single
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_rank_stops_at_the_first_signal(stop: StopSignal, number: int) -> None:
    assert stop.agreed() == 0
    os.kill(os.getpid(), number)
    os.kill(os.getpid(), signal.SIGTERM)
    assert stop.agreed() == number
    assert stop.settle() == 0


def thread(folder: Path, number: int, name: str, state: str) -> None:
    (folder / str(number)).mkdir()
    (folder / str(number) / "stat").write_text(f"{number} ({name}) {state} 1 2 3")


@pytest.mark.parametrize(("state", "idle"), [("S", True), ("R", False), ("D", False)])
def test_a_gloo_worker_that_still_works_is_waited_for(tmp_path: Path, state: str, idle: bool) -> None:
    thread(tmp_path, 1, "python", "R")
    thread(tmp_path, 2, "pt_gloo_runloop", "S")
    thread(tmp_path, 3, "pt_gloo_run) x (", state)
    assert workers_idle(tmp_path, limit_s=0.1) is idle


def test_without_workers_there_is_nothing_to_wait_for(tmp_path: Path) -> None:
    thread(tmp_path, 1, "python", "R")
    assert workers_idle(tmp_path, limit_s=0.1)
