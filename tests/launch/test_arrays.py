"""Ids of array tasks, and following them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aorta.artefacts.layout import RunDir
from aorta.launch import slurm
from aorta.launch.arrays import array_of, expand_ids, is_task
from aorta.launch.follow import FollowedJob, Follower
from aorta.launch.tools import ToolAnswer
from tests.support.slurm import cluster


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("12", ["12"]),
        ("12_3", ["12_3"]),
        ("12_[3]", ["12_3"]),
        ("12_[1-3]", ["12_1", "12_2", "12_3"]),
        ("12_[0,2-3%1]", ["12_0", "12_2", "12_3"]),
        ("12_[0-6:3]", ["12_0", "12_3", "12_6"]),
        ("12_2%1", ["12_2"]),
        ("12+0", ["12+0"]),
        ("local-2026-1", ["local-2026-1"]),
        ("12_[1-", ["12_[1-"]),
        ("12_[1--2]", ["12_[1--2]"]),
        ("None_None", ["None_None"]),
    ],
)
def test_a_row_stands_for_these_jobs(text: str, ids: list[str]) -> None:
    assert expand_ids(text) == ids


@given(st.lists(st.integers(0, 50), min_size=1, max_size=6))
def test_every_task_of_a_list_is_found(tasks: list[int]) -> None:
    text = f"9_[{','.join(str(task) for task in tasks)}%2]"
    assert expand_ids(text) == [f"9_{task}" for task in tasks]


@pytest.mark.parametrize(
    ("job_id", "array"), [("12_3", "12"), ("12", "12"), ("local-20260101T000000Z-1", None), ("a_1", None)]
)
def test_the_array_of_a_task(job_id: str, array: str | None) -> None:
    assert array_of(job_id) == (array or job_id)
    assert is_task(job_id) == (job_id == "12_3")


def job(tmp_path: Path, job_id: str) -> FollowedJob:
    return FollowedJob(job_id, "1node", 1, RunDir(tmp_path / f"run_{job_id}"))


def states(follower: Follower) -> list[str]:
    return [view.state.name for _, view in follower.rows()]


def test_pending_running_and_ended_tasks_in_one_call(tmp_path: Path) -> None:
    rows = "7_2|PENDING|0:00|1||JobArrayTaskLimit\n7_1|RUNNING|0:01|1|n1|None\n7_0|COMPLETED|0:03|1|n1|None\n"
    fake = cluster(squeue=ToolAnswer(0, rows + "7_9|RUNNING|0:01|1|n2|None\n"))
    follower = Follower([job(tmp_path, f"7_{task}") for task in range(3)], fake)
    follower.poll()
    assert states(follower) == ["COMPLETED", "RUNNING", "PENDING"]
    [asked] = fake.asked
    assert asked[asked.index("-j") + 1] == "7"
    assert "-r" in asked


def test_accounting_has_one_row_for_tasks_that_never_started() -> None:
    rows = (
        "7_0|2026-01-01T00:00:00|COMPLETED|3|1|n1|0:0\n"
        "7_[1-2%1]|2026-01-01T00:00:00|CANCELLED by 0|0|1|None assigned|0:0\n"
    )
    fake = cluster(sacct=ToolAnswer(0, rows))
    views = slurm.sacct(["7_0", "7_2"], fake)
    assert views is not None
    assert {job_id: view.state.name for job_id, view in views.items()} == {
        "7_0": "COMPLETED",
        "7_2": "CANCELLED",
    }
    assert fake.asked[0][fake.asked[0].index("-j") + 1] == "7"


@pytest.mark.parametrize("task", ["2", "0-3%1"])
def test_the_controller_names_a_task_by_its_array(task: str) -> None:
    text = f"JobId=70 ArrayJobId=7 ArrayTaskId={task} JobState=FAILED Reason=None RunTime=00:00:01 NumNodes=1"
    fake = cluster(scontrol=ToolAnswer(0, text))
    assert slurm.scontrol(["7_2"], fake)["7_2"].state.name == "FAILED"
    assert slurm.scontrol(["7_4"], fake) == {}


def test_the_controller_is_asked_once_for_all_tasks_of_an_array() -> None:
    rows = "".join(
        f"JobId={70 + task} ArrayJobId=7 ArrayTaskId={task} JobState=COMPLETED RunTime=1 NumNodes=1\n"
        for task in range(100)
    )
    fake = cluster(scontrol=ToolAnswer(0, rows))
    assert len(slurm.scontrol([f"7_{task}" for task in range(100)], fake)) == 100
    assert fake.asked == [["scontrol", "show", "job", "-o", "7"]]


def test_a_task_that_left_its_array_before_it_started_is_given_up_soon(tmp_path: Path) -> None:
    rows = iter(["7_0|RUNNING|0:01|1|n1|None\n7_1|PENDING|0:00|1||JobArrayTaskLimit\n"])
    fake = cluster(squeue=lambda argv: ToolAnswer(0, next(rows, "7_0|RUNNING|0:02|1|n1|None\n")))
    follower = Follower([job(tmp_path, "7_0"), job(tmp_path, "7_1")], fake)
    for _ in range(3):
        follower.poll()
    assert len(follower.going) == 2
    follower.poll()
    assert [item.job_id for item in follower.going] == ["7_0"]
    assert states(follower) == ["RUNNING", "UNKNOWN"]
    assert not follower.all_completed


def test_a_task_that_ran_is_waited_for_as_any_job(tmp_path: Path) -> None:
    rows = iter(["7_1|RUNNING|0:01|1|n1|None\n"])
    fake = cluster(squeue=lambda argv: ToolAnswer(0, next(rows, "")))
    follower = Follower([job(tmp_path, "7_1")], fake)
    for _ in range(10):
        follower.poll()
    assert follower.going
