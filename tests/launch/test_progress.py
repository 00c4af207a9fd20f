"""How far a run is: every phase, and nothing that is not on record."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aorta.artefacts.io import write_json
from aorta.artefacts.layout import RunDir
from aorta.artefacts.records import NodeStatus, Planned
from aorta.launch.progress import RunProgress, read_progress
from tests.support.markers import write_marker


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path)


def write_steps(run: RunDir, steps: range, *, ms: int = 40, attempt: int = 0, more: str = "") -> None:
    with run.records(0).open("a") as stream:
        for step in steps:
            record = {
                "global_step": step,
                "wall_end_ns": step * ms * 1_000_000,
                "attempt": attempt,
                "more": more,
            }
            stream.write(json.dumps(record) + "\n")


def test_before_any_file_the_agents_start(run: RunDir) -> None:
    assert read_progress(run) == RunProgress("starting agents")


def test_before_the_first_record_ranks_start(run: RunDir) -> None:
    write_marker(run, 0, "running")
    assert read_progress(run) == RunProgress("starting ranks")
    write_json(run.planned, Planned(steps=9))
    assert read_progress(run) == RunProgress("starting ranks", total=9)


def test_steps_their_time_and_what_is_left(run: RunDir) -> None:
    write_marker(run, 0, "running")
    write_json(run.planned, Planned(steps=100))
    write_steps(run, range(25), ms=40)
    now = read_progress(run)
    assert now == RunProgress("training", 25, 100, 0.040)
    assert now.left_s == pytest.approx(75 * 0.040)
    assert now.words == "25/100"


def test_a_program_that_does_not_say_its_steps_has_no_time_left(run: RunDir) -> None:
    write_marker(run, 0, "running")
    write_steps(run, range(3))
    now = read_progress(run)
    assert (now.words, now.total, now.left_s) == ("3", None, None)


def test_one_record_gives_no_time_per_step(run: RunDir) -> None:
    write_marker(run, 0, "running")
    write_json(run.planned, Planned(steps=100))
    write_steps(run, range(1))
    now = read_progress(run)
    assert (now.steps, now.step_s, now.left_s) == (1, None, None)


def test_a_line_that_is_not_whole_does_not_count(run: RunDir) -> None:
    write_marker(run, 0, "running")
    write_steps(run, range(4))
    with run.records(0).open("a") as stream:
        stream.write('{"global_step": 4, "wall_end_')
    assert read_progress(run).steps == 4
    with run.records(0).open("a") as stream:
        stream.write('\nno record\n{"global_step": 5, "wall_end_ns": 200000000}\n')
    assert read_progress(run).steps == 6


def test_of_a_long_file_only_the_end_is_read(run: RunDir) -> None:
    write_marker(run, 0, "running")
    write_steps(run, range(500), ms=90, more="x" * 400)
    write_steps(run, range(500, 1000), ms=90, more="x" * 400)
    now = read_progress(run)
    assert (now.steps, now.step_s) == (1000, pytest.approx(0.090))


def test_records_longer_than_the_end_that_is_read_first_are_found(run: RunDir) -> None:
    write_marker(run, 0, "running")
    write_steps(run, range(3), ms=10, more="x" * 100_000)
    now = read_progress(run)
    assert (now.steps, now.step_s) == (3, pytest.approx(0.010))


def test_a_requeued_job_is_timed_by_its_own_steps(run: RunDir) -> None:
    write_marker(run, 0, "running")
    write_steps(run, range(50), ms=1)
    write_steps(run, range(2), ms=30, attempt=1)
    now = read_progress(run)
    assert (now.steps, now.step_s) == (2, pytest.approx(0.030))


def test_after_the_last_step_traces_are_saved(run: RunDir) -> None:
    write_marker(run, 0, "running")
    write_json(run.planned, Planned(steps=5))
    write_steps(run, range(5))
    assert read_progress(run).phase == "saving"
    assert read_progress(run).words == "saving"


def test_the_agent_says_that_it_saves_also_where_nobody_knows_the_steps(run: RunDir) -> None:
    write_marker(run, 0, "running")
    write_steps(run, range(5))
    assert read_progress(run).phase == "training"
    status = NodeStatus(node_index=0, host="h", attempt=0, state="running", started_wall_ns=1, saving=True)
    write_json(run.node(0).status, status)
    assert read_progress(run).phase == "saving"
