"""Faults: each one costs what it says, where it says, and nothing without being asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from aorta.artefacts.step_record import StepRecord
from aorta.config.load import load_config
from aorta.config.schema import FaultsConfig as Block
from aorta.errors import ConfigError
from aorta.instrument import StepRecorder
from aorta.workloads.ranking import Ranking
from aorta.workloads.trainer import faults as module
from aorta.workloads.trainer.faults import FaultInjector, check_faults
from aorta.workloads.trainer.loop import Loop
from aorta.workloads.trainer.summary import Observer
from aorta.workloads.trainer.world import StopSignal, World
from tests.support.step_records import read_records
from tests.workloads.trainer.tiny import tiny

CPU = torch.device("cpu")


def world(rank: int = 0) -> World:
    return World(rank, rank, 1, 0, CPU, None)


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What was slept, in seconds, without sleeping."""
    seconds: list[float] = []
    monkeypatch.setattr(module.time, "sleep", seconds.append)
    return seconds


@pytest.fixture(autouse=True)
def outside_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AORTA_RUN_DIR", "RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


def build(tmp_path: Path, rank: int = 0, **keys: Any) -> FaultInjector:
    return FaultInjector(Block(**keys), world(rank), StepRecorder(tmp_path, CPU))


def step(faults: FaultInjector, source: Iterator[dict[str, torch.Tensor]]) -> None:
    next(source)
    faults.before_forward()
    faults.in_forward()
    faults.after_backward()
    faults.end_step()


def test_nothing_without_being_asked_for(tmp_path: Path, slept: list[float]) -> None:
    faults = build(tmp_path)
    step(faults, faults.batches(iter([{}])))
    assert slept == []
    assert not (tmp_path / "injected.json").exists()


def test_delays_from_the_first_step_that_has_them(tmp_path: Path, slept: list[float]) -> None:
    faults = build(tmp_path, loader_delay_ms=30, host_delay_ms=7, start_step=1)
    source = faults.batches(iter([{}, {}]))
    step(faults, source)
    assert slept == []
    step(faults, source)
    assert slept == [0.030, 0.007]


def test_a_slower_device_is_slower_where_it_is_and_the_stand_in_everywhere(
    tmp_path: Path, slept: list[float]
) -> None:
    for rank, expected in ((0, 0.030), (1, 0.042)):
        slept.clear()
        faults = build(tmp_path, rank, ranks=[1], stand_in_ms=30, compute_delay_ms=12)
        step(faults, faults.batches(iter([{}])))
        assert slept == [pytest.approx(expected)]


def test_the_stand_in_alone_is_no_fault(tmp_path: Path, slept: list[float]) -> None:
    faults = build(tmp_path, stand_in_ms=30)
    step(faults, faults.batches(iter([{}])))
    assert slept == [0.030]
    assert not (tmp_path / "injected.json").exists()


def test_only_the_ranks_that_are_named(tmp_path: Path, slept: list[float]) -> None:
    for rank, expected in ((0, []), (1, [0.005])):
        slept.clear()
        faults = build(tmp_path / str(rank), rank, ranks=[1], host_delay_ms=5)
        step(faults, faults.batches(iter([{}])))
        assert slept == expected


def test_what_was_put_in_is_written_beside_the_run(tmp_path: Path) -> None:
    build(tmp_path, tiny_kernels=3)
    assert json.loads((tmp_path / "injected.json").read_text())["tiny_kernels"] == 3


def test_what_cannot_show_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="rank 4, but there are 4 ranks"):
        check_faults(load_config(None, ["faults.ranks=[4]"]), 4)
    with pytest.raises(ConfigError, match="a single rank cannot exchange data"):
        check_faults(load_config(None, ["faults.comm_mb=1"]), 1)
    with pytest.raises(ConfigError, match="training is on the CPU"):
        build(tmp_path, gpu_memory_ratio=0.5)
    check_faults(load_config(None, ["faults.ranks=[3]", "faults.comm_mb=1"]), 4)


def records(folder: Path, *overrides: str) -> list[StepRecord]:
    config = tiny(folder, *overrides)
    torch.set_num_threads(1)
    with StepRecorder(folder, CPU, capture=config.capture) as recorder:
        observer = Observer(world(), 100, recorder.run.metrics_csv)
        recorder.listen(observer.see)
        Loop(config, Ranking(config), world(), recorder, observer).run(StopSignal(world()))
    return read_records(folder)


def test_delays_show_where_a_real_cause_would(tmp_path: Path) -> None:
    for record in records(tmp_path, "faults.loader_delay_ms=20", "faults.host_delay_ms=30"):
        assert record.breakdown is not None
        assert record.breakdown.data_wait_ns >= 20_000_000
        assert record.breakdown.host_ns >= 30_000_000


def test_faults_do_not_change_what_is_learned(tmp_path: Path) -> None:
    plain = records(tmp_path / "plain")
    faulty = records(
        tmp_path / "faulty", "faults.compute_matmuls=2", "faults.matmul_size=8", "faults.tiny_kernels=9"
    )
    assert [record.loss for record in plain] == [record.loss for record in faulty]
    assert (tmp_path / "faulty" / "injected.json").exists()
