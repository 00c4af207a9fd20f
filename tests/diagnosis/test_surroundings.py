"""Whole runs: what the machines and the accounting say about them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from aorta.config.schema import Config, TrainingConfig
from tests.support.synthetic import RunSpec, write_run
from tests.support.verdicts import analysed, change_json, finding, made, reasons


def test_nodes_of_one_machine_are_said_to_share_it(tmp_path: Path) -> None:
    found = made(tmp_path, nodes=2, executor="local", separate_hosts=False)
    assert found.shared_machine
    assert any("share one machine" in note for note in found.data_quality.notes)


ACCOUNTING = """\
JobID     | State   | ExitCode | NNodes | NTasks | MaxRSS   | ReqMem
101       | {state} | 0:0      | 1      |        |          | 16000M
101.batch | {state} | 0:0      | 1      | 8      | 1947276K |
"""


def cores_note(tmp_path: Path, executor: str = "local", **node: Any) -> list[str]:
    """What is said about cores of a run of two nodes with 2 ranks each, whose infos hold `node`."""
    run = write_run(tmp_path, RunSpec(nodes=2, executor=executor))
    manifest = json.loads(run.manifest.read_text())
    change_json(run.manifest, nodes=[{**info, "machine": "m", **node} for info in manifest["nodes"]])
    return [note for note in analysed(run).data_quality.notes if "waiting for a core" in note]


WAITING = "times include waiting for a core, and so does exposed communication"


@pytest.mark.parametrize(
    ("node", "notes"),
    [
        ({"cpus_usable": 3}, [f"4 ranks share 3 CPUs: {WAITING}"]),
        ({"cpus_usable": 1}, [f"4 ranks share 1 CPU: {WAITING}"]),
        ({"cpus_usable": 4}, []),
        ({"cpus_usable": 3, "machine": None}, []),  # 2 ranks each on 3 CPUs of its own
        ({"cpus_usable": 1, "machine": None}, [f"2 ranks share 1 CPU: {WAITING}"]),
        (
            {"cpus_usable": 7, "environment": {"OMP_NUM_THREADS": "2"}},
            [f"4 ranks with 2 threads each share 7 CPUs: {WAITING}"],
        ),
        ({"cpus_usable": 8, "environment": {"OMP_NUM_THREADS": "2"}}, []),
    ],
)
def test_more_ranks_and_threads_than_cpus_are_said(
    tmp_path: Path, node: dict[str, Any], notes: list[str]
) -> None:
    assert cores_note(tmp_path, **node) == notes


@pytest.mark.parametrize(
    ("executor", "machine_cpus", "said"),
    [("slurm", 3, True), ("slurm", 8, False), ("slurm", None, True), ("local", 8, True)],
)
def test_nodes_that_were_given_parts_of_a_machine_do_not_share_them(
    tmp_path: Path, executor: str, machine_cpus: int | None, said: bool
) -> None:
    assert bool(cores_note(tmp_path, executor, cpus_usable=3, cpus_machine=machine_cpus)) is said


def test_the_configured_threads_count_for_the_trainer(tmp_path: Path) -> None:
    for threads, said in ((2, True), (1, False)):
        run = write_run(
            tmp_path / str(threads), RunSpec(config=Config(training=TrainingConfig(cpu_threads=threads)))
        )
        notes = analysed(run).data_quality.notes
        assert (f"2 ranks with 2 threads each share 2 CPUs: {WAITING}" in notes) is said


def test_threads_beside_a_gpu_are_not_counted(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunSpec(device="cuda", config=Config(training=TrainingConfig(cpu_threads=8))))
    assert not any("waiting for a core" in note for note in analysed(run).data_quality.notes)


def test_accounting_decides_how_the_job_ended(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunSpec())
    run.sacct_summary.write_text(ACCOUNTING.format(state="OUT_OF_MEMORY"))
    found = analysed(run)
    assert found.data_quality.state == "failed"
    assert any("accounting says OUT_OF_MEMORY" in note for note in found.data_quality.notes)
    assert reasons(found) == ["job_failed"]


@pytest.mark.parametrize(
    ("markers", "accounting", "state"),
    [
        ("timeout", "FAILED", "timeout"),  # told to end before the limit; the ranks' exit code is not 0
        ("timeout", "TIMEOUT", "timeout"),
        ("cancelled", "FAILED", "cancelled"),
        ("cancelled", "TIMEOUT", "timeout"),
        ("timeout", "CANCELLED", "cancelled"),
        ("timeout", "NODE_FAIL", "failed"),
        ("timeout", "OUT_OF_MEMORY", "failed"),
        ("completed", "FAILED", "failed"),
        ("failed", "FAILED", "failed"),
        ("running", "FAILED", "failed"),  # the agents were killed
        ("running", "TIMEOUT", "timeout"),
    ],
)
def test_who_is_believed_about_the_end(tmp_path: Path, markers: str, accounting: str, state: str) -> None:
    run = write_run(tmp_path, RunSpec(state=markers))
    run.sacct_summary.write_text(ACCOUNTING.format(state=accounting))
    quality = analysed(run).data_quality
    assert quality.state == state
    assert any("accounting says" in note for note in quality.notes) is (markers != accounting.lower())


def test_accounting_that_lags_behind_leaves_the_markers_word(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunSpec())
    run.sacct_summary.write_text(ACCOUNTING.format(state="RUNNING"))
    found = analysed(run)
    assert found.data_quality.state == "completed"
    assert any("not complete" in note for note in found.data_quality.notes)


def test_host_memory_by_accounting_is_called_an_upper_estimate(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunSpec())
    run.sacct_summary.write_text(ACCOUNTING.format(state="COMPLETED"))
    found = analysed(run)
    note = next(note for note in found.data_quality.notes if "memory" in note)
    assert "about 95 %" in note
    assert "upper estimate (8 tasks × the largest task's MaxRSS)" in note
    assert finding(found, "memory_pressure") is None
