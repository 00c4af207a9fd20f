"""Following jobs through whatever answers."""

import os
from pathlib import Path

from aorta.artefacts.layout import RunDir
from aorta.launch.follow import FollowedJob, Follower
from aorta.launch.tools import ToolAnswer
from tests.support.markers import write_marker
from tests.support.slurm import MISSING, FakeSlurm, cluster

DISABLED = ToolAnswer(1, err="Slurm accounting storage is disabled\n")
FORGOTTEN = ToolAnswer(1, err="slurm_load_jobs error: Invalid job id specified\n")


def job(tmp_path: Path, job_id: str = "5", nodes: int = 2, *, local: bool = False) -> FollowedJob:
    return FollowedJob(job_id, f"{nodes}node", nodes, RunDir(tmp_path / f"run_{job_id}"), local)


def follow(fake: FakeSlurm, *jobs: FollowedJob, polls: int = 1, limit: int = 20) -> Follower:
    follower = Follower(jobs, fake, limit)
    for _ in range(polls):
        follower.poll()
    return follower


def state(follower: Follower, job_id: str = "5") -> str:
    return {view.job_id: view.state.name for _, view in follower.rows()}[job_id]


def test_all_jobs_in_one_call_and_the_ended_ones_no_more(tmp_path: Path) -> None:
    rows = iter(
        ["5|RUNNING|0:01|2|n[1-2]|None\n6|COMPLETED|0:01|1|n1|None\n", "5|COMPLETED|0:02|2|n[1-2]|None\n"]
    )
    fake = cluster(squeue=lambda argv: ToolAnswer(0, next(rows)))
    follower = follow(fake, job(tmp_path, "5"), job(tmp_path, "6"), polls=2)
    assert fake.programs() == ["squeue", "squeue"]
    assert "5,6" in fake.asked[0]
    assert "5" in fake.asked[1]
    assert follower.all_completed
    assert not follower.going


def test_nodes_are_those_of_the_newest_poll(tmp_path: Path) -> None:
    rows = iter(["5|PENDING|0:00|1||Resources\n", "5|RUNNING|0:01|4|n[1-4]|None\n"])
    follower = follow(cluster(squeue=lambda argv: ToolAnswer(0, next(rows))), job(tmp_path), polls=2)
    [(_, view)] = follower.rows()
    assert (view.nodes, view.node_list) == (4, "n[1-4]")


def test_accounting_decides_when_the_controller_forgot(tmp_path: Path) -> None:
    rows = "".join(f"5|2026-01-01T00:0{index}:00|REQUEUED|9|2|n[1-2]|0:0\n" for index in range(4))
    rows += "5|2026-01-01T00:05:00|COMPLETED|90|2|n[1-2]|0:0\n"
    follower = follow(cluster(squeue=FORGOTTEN, sacct=ToolAnswer(0, rows)), job(tmp_path))
    assert state(follower) == "COMPLETED"


def test_without_accounting_the_markers_decide(tmp_path: Path) -> None:
    watched = job(tmp_path)
    assert watched.run is not None
    write_marker(watched.run, 0, "completed")
    write_marker(watched.run, 1, "completed")
    assert follow(cluster(squeue=FORGOTTEN, sacct=DISABLED), watched).all_completed


def test_files_of_a_running_job_say_that_it_ended(tmp_path: Path) -> None:
    watched = job(tmp_path, nodes=2)
    assert watched.run is not None
    follower = follow(cluster(squeue=ToolAnswer(0, "5|RUNNING|0:02|2|n[1-2]|None\n")), watched)
    assert follower.ended_by_files() == set()
    write_marker(watched.run, 0, "completed")
    write_marker(watched.run, 1, "running")
    assert follower.ended_by_files() == set()
    write_marker(watched.run, 1, "failed")
    assert follower.ended_by_files() == {"5"}
    assert state(follower) == "RUNNING"  # Slurm decides


def test_without_accounting_the_controller_is_asked_before_the_markers(tmp_path: Path) -> None:
    shown = ToolAnswer(0, "JobId=5 JobState=NODE_FAIL Reason=None RunTime=00:00:09 NodeList=n1 NumNodes=1")
    follower = follow(cluster(squeue=MISSING, sacct=DISABLED, scontrol=shown), job(tmp_path))
    assert state(follower) == "NODE_FAIL"


def test_without_any_scheduler_a_run_lives_while_its_files_grow(tmp_path: Path) -> None:
    watched = job(tmp_path, nodes=1)
    assert watched.run is not None
    silent = cluster(squeue=MISSING, sacct=MISSING, scontrol=MISSING)
    follower = Follower([watched], silent, limit=3)
    for beat in range(1, 8):
        write_marker(watched.run, 0, "running")
        os.utime(watched.run.node(0).status, ns=(beat, beat))
        follower.poll()
        assert state(follower) == "RUNNING"
    for _ in range(3):
        assert follower.going
        follower.poll()
    [(_, view)] = follower.rows()
    assert (view.state.name, view.state.phase) == ("UNKNOWN", "ended")
    assert view.reason == "its state is not known, 3 times in a row; last seen RUNNING"


def test_a_job_that_nobody_knows_is_given_up_and_not_completed(tmp_path: Path) -> None:
    follower = follow(cluster(squeue=FORGOTTEN, sacct=DISABLED), job(tmp_path), polls=19)
    assert follower.going
    follower.poll()
    assert not follower.going
    assert not follower.all_completed
    assert "Slurm does not know it, 20 times" in follower.rows()[0][1].reason


def test_an_answer_in_between_starts_the_count_again(tmp_path: Path) -> None:
    answers = [FORGOTTEN] * 2 + [ToolAnswer(0, "5|RUNNING|0:01|2|n[1-2]|None\n")] + [FORGOTTEN] * 2
    replies = iter(answers)
    follower = follow(
        cluster(squeue=lambda argv: next(replies), sacct=DISABLED), job(tmp_path), polls=5, limit=3
    )
    assert follower.going


def test_accounting_that_still_runs_after_the_controller_forgot_is_out_of_date(tmp_path: Path) -> None:
    stale = ToolAnswer(0, "5|2026-01-01T00:00:00|RUNNING|9|2|n[1-2]|0:0\n")
    assert state(follow(cluster(squeue=FORGOTTEN, sacct=stale), job(tmp_path), polls=3, limit=3)) == "UNKNOWN"
    # Where the controller does not answer at all, accounting is the best there is.
    assert state(follow(cluster(squeue=MISSING, sacct=stale), job(tmp_path), polls=3, limit=3)) == "RUNNING"


def test_a_state_in_no_table_is_not_believed_for_ever(tmp_path: Path) -> None:
    odd = ToolAnswer(0, "5|SPARKLING|0:01|2|n[1-2]|None\n")
    follower = follow(cluster(squeue=odd), job(tmp_path), polls=3, limit=3)
    assert not follower.going


def test_a_run_on_this_machine_asks_no_scheduler(tmp_path: Path) -> None:
    watched = job(tmp_path, "local-1", local=True)
    assert watched.run is not None
    write_marker(watched.run, 0, "completed")
    write_marker(watched.run, 1, "failed")
    fake = FakeSlurm({})
    assert state(follow(fake, watched), "local-1") == "FAILED"
    assert fake.asked == []


def test_a_job_by_hand_is_found_by_its_id(tmp_path: Path) -> None:
    (tmp_path / "cpu_2node" / "run_12").mkdir(parents=True)
    (tmp_path / "2node" / "run_123").mkdir(parents=True)
    found = FollowedJob.by_hand(tmp_path, "12")
    assert (found.scenario, found.nodes) == ("cpu_2node", 2)
    assert FollowedJob.by_hand(tmp_path, "1").scenario is None


def test_a_job_by_hand_that_starts_later_is_found_then(tmp_path: Path) -> None:
    waits = ToolAnswer(0, "12|PENDING|0:00|2||Priority\n")
    runs = ToolAnswer(0, "12|RUNNING|0:02|2|n[0-1]|None\n")
    answers = iter([waits, runs])
    follower = Follower([FollowedJob.by_hand(tmp_path, "12")], cluster(squeue=lambda _: next(answers)))
    follower.poll()
    assert follower.jobs[0].run is None
    run = RunDir(tmp_path / "cpu_2node" / "run_12")
    write_marker(run, 0, "running")
    follower.poll()
    assert (follower.jobs[0].run, follower.jobs[0].scenario) == (run, "cpu_2node")


def test_a_bad_end_is_explained_by_the_agents(tmp_path: Path) -> None:
    watched = job(tmp_path, nodes=1)
    assert watched.run is not None
    write_marker(watched.run, 0, "failed", lost=("rank 0 was killed",))
    failed = ToolAnswer(0, "5|FAILED|0:01|1|n1|NonZeroExitCode\n")
    assert follow(cluster(squeue=failed), watched).rows()[0][1].reason == (
        "NonZeroExitCode; node0: rank 0 was killed"
    )
    # A job that completed for Slurm needs no explanation.
    good = ToolAnswer(0, "5|COMPLETED|0:01|1|n1|None\n")
    assert follow(cluster(squeue=good), watched).rows()[0][1].reason == ""


def test_a_bad_end_that_a_node_had_no_time_to_say_is_told_first(tmp_path: Path) -> None:
    watched = job(tmp_path, nodes=2)
    assert watched.run is not None
    write_marker(watched.run, 0, "failed", lost=("rank 0 lost its peer",))
    write_marker(watched.run, 1, "running")
    failed = ToolAnswer(0, "5|FAILED|0:01|2|n[1-2]|NonZeroExitCode\n")
    assert follow(cluster(squeue=failed), watched).rows()[0][1].reason == (
        "NonZeroExitCode; node1 has not reported how it ended; node0: rank 0 lost its peer"
    )
