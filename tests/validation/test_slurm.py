"""Runs of a validation as jobs, against a stand-in for Slurm."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from aorta.artefacts.study_layout import ValidationDir
from aorta.artefacts.validation import Truth
from aorta.cluster import network
from aorta.commands import _validation
from aorta.commands._validation import Slurm, Stopped
from aorta.launch import tools
from aorta.launch.tools import ToolAnswer
from aorta.validation.matrix import MatrixCell
from tests.support.slurm import FakeSlurm, cluster

CONFIG = Path(__file__).parents[2] / "config" / "validation.yaml"
SLOW = MatrixCell(nodes=4, truth=Truth(fault="slow link", kinds=["communication"]), rate_bit_s=10**7)
PLAIN = MatrixCell(nodes=2, truth=Truth(fault="clean", kinds=["healthy"]))


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int | None]]:
    """Limits of links, in order, without setting any."""
    seen: list[tuple[int, int | None]] = []
    monkeypatch.setattr(network, "relimit", lambda index, rate: seen.append((index, rate)))
    return seen


@pytest.fixture
def execute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    monkeypatch.chdir(tmp_path)
    shutil.copy(CONFIG, tmp_path)
    return Slurm(ValidationDir(tmp_path / "runs"), Path("validation.yaml"), "debug", None)


def slurm(monkeypatch: pytest.MonkeyPatch, state: str) -> FakeSlurm:
    fake = cluster(squeue=ToolAnswer(0, f"101|{state}|0:10|2|node[1-2]|None\n"))
    monkeypatch.setattr(tools, "call", fake)
    return fake


def test_a_cell_is_a_job_with_its_overrides(
    execute: Slurm, monkeypatch: pytest.MonkeyPatch, limits: list[tuple[int, int | None]]
) -> None:
    fake = slurm(monkeypatch, "COMPLETED")
    ended = execute(PLAIN, "1 of 1")
    assert (ended.job_id, ended.completed, ended.problem) == ("101", True, None)
    assert ended.run_dir == execute.folder.results / "cpu_2node" / "run_101"
    assert fake.programs().count("sbatch") == 1
    assert limits == []


def test_a_job_that_failed_is_said(execute: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm(monkeypatch, "FAILED")
    ended = execute(PLAIN, "1 of 1")
    assert not ended.completed
    assert "did not complete" in str(ended.problem)


def test_a_link_is_slow_for_its_run_only(
    execute: Slurm, monkeypatch: pytest.MonkeyPatch, limits: list[tuple[int, int | None]]
) -> None:
    slurm(monkeypatch, "COMPLETED")
    execute(SLOW, "1 of 1")
    assert limits == [(4, 10**7), (4, None)]


def test_an_interruption_cancels_the_job_and_frees_the_link(
    execute: Slurm, monkeypatch: pytest.MonkeyPatch, limits: list[tuple[int, int | None]]
) -> None:
    fake = slurm(monkeypatch, "RUNNING")

    def interrupted(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(_validation.time, "sleep", interrupted)
    with pytest.raises(Stopped) as stopped:
        execute(SLOW, "1 of 1")
    assert stopped.value.number == 2
    assert fake.asked[-1] == ["scancel", "101"]
    assert limits == [(4, 10**7), (4, None)]


@pytest.mark.parametrize(
    ("user", "owner", "rate", "can"),
    [
        (0, "cluster", None, True),
        (1000, "cluster", None, False),
        (0, "another", None, False),
        (0, "cluster", 10**8, False),
    ],
)
def test_links_are_limited_where_they_are_ours_and_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: int, owner: str, rate: int | None, can: bool
) -> None:
    from aorta.artefacts.io import write_json
    from aorta.cluster.config import ClusterDir, ClusterSettings
    from aorta.cluster.folders import ClusterRecord

    folder = ClusterDir(tmp_path / "cluster")
    write_json(folder.record, ClusterRecord(ClusterSettings(nodes=4, rate_bit_s=rate)))
    monkeypatch.setenv("SLURM_CONF", str(folder.slurm_conf))
    monkeypatch.setattr(_validation.os, "geteuid", lambda: user)
    monkeypatch.setattr(network, "owner", lambda: tmp_path / owner)
    assert _validation.links_can_be_limited() is can
    monkeypatch.delenv("SLURM_CONF")
    assert not _validation.links_can_be_limited()
