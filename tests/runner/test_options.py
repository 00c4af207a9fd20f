"""Which job and node this agent is, and its time limits."""

from __future__ import annotations

import pytest

from aorta.errors import PlanError
from aorta.runner.options import TimeLimits, find_place

SLURM = {
    "SLURM_JOB_ID": "77",
    "SLURM_NODEID": "2",
    "SLURM_NNODES": "8",
    "SLURM_STEP_NUM_NODES": "4",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_RESTART_COUNT": "3",
    "SLURMD_NODENAME": "node3",
}


def test_slurm_says_where_we_are_and_the_step_decides_the_number_of_nodes():
    place = find_place(SLURM)
    assert (place.executor, place.job_id, place.node_index, place.nodes) == ("slurm", "77", 2, 4)
    assert (place.attempt, place.slurm_node) == (3, "node3")


def test_attempt_is_0_where_slurm_has_not_requeued():
    environ = {name: value for name, value in SLURM.items() if name != "SLURM_RESTART_COUNT"}
    assert find_place(environ).attempt == 0


def test_the_job_has_what_runs_not_what_was_pending():
    environ = {name: value for name, value in SLURM.items() if name != "SLURM_STEP_NUM_NODES"}
    assert find_place({**environ, "SLURM_STEP_NUM_TASKS": "8"}).nodes == 8


def test_many_tasks_a_node_are_refused():
    with pytest.raises(PlanError, match="32 tasks on 4 nodes"):
        find_place({**SLURM, "SLURM_STEP_NUM_TASKS": "32"})


def test_local_needs_its_place_told():
    place = find_place({}, job_id="local-1", nodes=2, node_index=1)
    assert (place.executor, place.job_id, place.node_index, place.nodes, place.attempt) == (
        "local",
        "local-1",
        1,
        2,
        0,
    )
    for missing in (
        {"job_id": "x", "nodes": 2},
        {"job_id": "x", "node_index": 0},
        {"nodes": 2, "node_index": 0},
    ):
        with pytest.raises(PlanError, match="--job-id"):
            find_place({}, **missing)


def test_local_inside_a_slurm_job_is_possible_by_name():
    assert find_place(SLURM, executor="local", job_id="x", nodes=1, node_index=0).attempt == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"SLURM_NODEID": ""}, "SLURM_NODEID is not set"),
        ({"SLURM_NODEID": "x"}, "SLURM_NODEID is 'x'"),
        ({"SLURM_NODEID": "4"}, "node index 4 is not one of 4 nodes"),
    ],
)
def test_a_place_that_makes_no_sense_is_refused(change, message):
    with pytest.raises(PlanError, match=message):
        find_place({**SLURM, **change})


def test_limits_come_from_the_environment_and_are_checked():
    limits = TimeLimits.of({"AORTA_GATHER_TIMEOUT_S": "2.5", "AORTA_PEER_GRACE_S": ""})
    assert (limits.gather_s, limits.grace_s, limits.peer_grace_s) == (2.5, 25.0, 15.0)
    for text in ("soon", "-1", "inf", "nan"):
        with pytest.raises(PlanError, match="AORTA_KILL_GRACE_S"):
            TimeLimits.of({"AORTA_KILL_GRACE_S": text})
