from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil
import pytest
import torch

from aorta.artefacts.layout import RunDir
from aorta.config.schema import MonitorConfig
from aorta.workloads.trainer import sidecar
from aorta.workloads.trainer.sidecar import monitor_command, monitored
from aorta.workloads.trainer.world import World


def world(local_rank: int = 0) -> World:
    return World(3, local_rank, 4, 1, torch.device("cpu"), None)


def test_the_command_of_a_node(tmp_path: Path) -> None:
    assert monitor_command(RunDir(tmp_path), 1, 0.5, gpu=False, cpu=True) == [
        sys.executable, "-m", "aorta", "monitor", "--output-dir", f"{tmp_path}/nodes/node1",
        "--interval", "0.5", "--node-index", "1", "--parent-pid", str(os.getpid()), "--no-gpu",
    ]  # fmt: skip


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Stands in for the monitor: a process that waits to be ended."""
    made: list[bool] = []

    def command(run: RunDir, node_index: int, interval_s: float, gpu: bool, cpu: bool) -> list[str]:
        made.append(True)
        return [sys.executable, "-c", "import time; time.sleep(60)"]

    monkeypatch.setattr(sidecar, "monitor_command", command)
    monkeypatch.delenv("AORTA_RUN_DIR", raising=False)
    return made


def test_it_runs_beside_the_body(tmp_path: Path, started: list[bool]) -> None:
    with monitored(RunDir(tmp_path), world(), MonitorConfig(), gpu=False, cpu=True):
        assert started == [True]
    assert (tmp_path / "nodes/node1/logs/monitor.log").exists()


@pytest.mark.parametrize(("local_rank", "cpu"), [(1, True), (0, False)])
def test_one_monitor_a_node_and_only_when_asked(
    tmp_path: Path, started: list[bool], local_rank: int, cpu: bool
) -> None:
    with monitored(RunDir(tmp_path), world(local_rank), MonitorConfig(), gpu=False, cpu=cpu):
        assert started == []


def test_inside_a_job_the_agent_does_it(
    tmp_path: Path, started: list[bool], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AORTA_RUN_DIR", str(tmp_path))
    with caplog.at_level("INFO"), monitored(RunDir(tmp_path), world(), MonitorConfig(), gpu=True, cpu=True):
        assert started == []
    assert "node agent samples already" in caplog.text


def test_an_early_end_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("AORTA_RUN_DIR", raising=False)
    monkeypatch.setattr(sidecar, "monitor_command", lambda *a: [sys.executable, "-c", "raise SystemExit(7)"])
    others = {child.pid for child in psutil.Process().children()}
    with monitored(RunDir(tmp_path), world(), MonitorConfig(), gpu=True, cpu=True):
        (monitor,) = {child.pid for child in psutil.Process().children()} - others
        os.waitid(os.P_PID, monitor, os.WEXITED | os.WNOWAIT)
    assert "ended early with exit code 7" in caplog.text
