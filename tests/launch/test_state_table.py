"""Every state of Slurm by every source that can name it, in the forms of Slurm 22.05 to 25.11.

The table is the whole of what is known; a state that is in none of its rows is `unknown` (`test_states.py`).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from aorta.launch import slurm
from aorta.launch.follow import FollowedJob, Follower
from aorta.launch.states import CODES, STATES, parse_state
from aorta.launch.tools import ToolAnswer
from aorta.readers.sacct import FIELDS, fetch_accounting
from tests.support.slurm import FakeSlurm, cluster

# long name, code, what a wait does, how the analysis calls it
TABLE = """
BOOT_FAIL        BF   ended    failed
CANCELLED        CA   ended    cancelled
COMPLETED        CD   ended    completed
DEADLINE         DL   ended    timeout
FAILED           F    ended    failed
LAUNCH_FAILED    LF   ended    failed
NODE_FAIL        NF   ended    failed
OUT_OF_MEMORY    OOM  ended    failed
PREEMPTED        PR   ended    cancelled
RECONFIG_FAIL    RC   ended    failed
REVOKED          RV   ended    cancelled
SPECIAL_EXIT     SE   ended    failed
TIMEOUT          TO   ended    timeout
CONFIGURING      CF   pending  -
EXPEDITING       EX   pending  -
PENDING          PD   pending  -
POWER_UP_NODE    PU   pending  -
REQUEUED         RQ   pending  -
REQUEUE_FED      RF   pending  -
REQUEUE_HOLD     RH   pending  -
RESV_DEL_HOLD    RD   pending  -
UPDATE_DB        UD   pending  -
COMPLETING       CG   running  -
RESIZING         RS   running  -
RUNNING          R    running  -
SIGNALING        SI   running  -
STAGE_OUT        SO   running  -
STOPPED          ST   running  -
SUSPENDED        S    running  -
"""
ROWS = [tuple(line.split()) for line in TABLE.split("\n") if line]
NAMES = [row[0] for row in ROWS]


def test_the_table_is_complete() -> None:
    assert sorted(NAMES) == sorted(STATES)
    assert {row[1]: row[0] for row in ROWS} == CODES


@pytest.mark.parametrize(("name", "code", "phase", "_word"), ROWS)
def test_states_and_codes(name: str, code: str, phase: str, _word: str) -> None:
    for text in (name, code, f"{name}+", f"{name} by 1000", name.lower()):
        assert (parse_state(text).name, parse_state(text).phase) == (name, phase)
    assert parse_state(name).ok == (name == "COMPLETED")


def seen_by(source: str, state: str, job_id: str = "5") -> slurm.JobView:
    if source == "squeue":
        views = slurm.squeue(
            [job_id], FakeSlurm({"squeue": ToolAnswer(0, f"{job_id}|{state}|0:01|2|n[1-2]|None\n")})
        )
    elif source == "sacct":
        row = f"{job_id}|2026-01-01T00:00:00|{state}|90|2|n[1-2]|0:0\n"
        views = slurm.sacct([job_id], FakeSlurm({"sacct": ToolAnswer(0, row)}))
    else:
        text = (
            f"JobId={job_id} JobName=x JobState={state} Reason=None RunTime=00:01:00 NodeList=n1 NumNodes=1\n"
        )
        views = slurm.scontrol([job_id], FakeSlurm({"scontrol": ToolAnswer(0, text)}))
    assert views is not None
    return views[job_id]


@pytest.mark.parametrize("source", ["squeue", "sacct", "scontrol"])
@pytest.mark.parametrize(("name", "_code", "phase", "_word"), ROWS)
def test_each_source_names_each_state(source: str, name: str, _code: str, phase: str, _word: str) -> None:
    view = seen_by(source, name)
    assert (view.state.name, view.state.phase, view.source) == (name, phase, source)


@pytest.mark.parametrize(("name", "_code", "phase", "word"), ROWS)
def test_a_wait_ends_only_with_the_job(tmp_path: Path, name: str, _code: str, phase: str, word: str) -> None:
    row = ToolAnswer(0, f"5|{name}|0:01|2|n[1-2]|None\n")
    follower = Follower([FollowedJob("5", "2node", 2, None)], cluster(squeue=row))
    follower.poll()
    assert bool(follower.going) == (phase != "ended")
    assert follower.all_completed == (word == "completed")


@pytest.mark.parametrize(("name", "_code", "_phase", "word"), ROWS)
def test_the_analysis_takes_only_an_ended_job_for_ended(
    tmp_path: Path, name: str, _code: str, _phase: str, word: str
) -> None:
    import subprocess

    known = {"JobID": "5", "State": name, "ExitCode": "0:0", "Start": "2026-01-01T00:00:00", "End": "Unknown"}
    row = "|".join(known.get(field, "") for field in FIELDS) + "\n"
    done = subprocess.CompletedProcess([], 0, row, "")
    found = fetch_accounting("5", tmp_path / "sacct_summary.txt", lambda _argv: done)
    assert found.state == (None if word == "-" else word)


# --- forms that other versions and sites write -----------------------------------------------------------

SCONTROL_24 = (
    "JobId=5 JobName=a=b UserId=me(1000) GroupId=me(1000) MCS_label=N/A Priority=1 Nice=0 Account=a QOS=x "
    "JobState=COMPLETED Reason=None Dependency=(null) Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0 "
    "RunTime=00:01:01 TimeLimit=00:10:00 TimeMin=N/A SubmitTime=2026-01-01T00:00:00 Partition=p AllocNode=l "
    "ReqNodeList=(null) ExcNodeList=(null) NodeList=n[1-2] BatchHost=n1 NumNodes=2 NumCPUs=4 NumTasks=2 "
    "ReqTRES=cpu=4,mem=8G,node=2,billing=4 AllocTRES=cpu=4,mem=8G,node=2,billing=4 Socks/Node=* "
    "Comment=JobState=FAILED NumNodes=9 TresPerTask=cpu=1 \n"
)


def test_controller_of_newer_versions_with_fields_that_hold_equals_signs() -> None:
    view = slurm.scontrol(["5"], FakeSlurm({"scontrol": ToolAnswer(0, SCONTROL_24)}))["5"]
    assert (view.state.name, view.elapsed_s, view.nodes, view.node_list) == ("COMPLETED", 61, 2, "n[1-2]")


def test_reasons_of_several_words_stay_whole() -> None:
    row = "5|PENDING|0:00|2||Nodes required for job are DOWN, DRAINED or reserved\n"
    views = slurm.squeue(["5"], FakeSlurm({"squeue": ToolAnswer(0, row)}))
    assert views is not None
    assert views["5"].reason.endswith("DOWN, DRAINED or reserved")


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (("COMPLETED", "COMPLETED"), "COMPLETED"),
        (("COMPLETED", "FAILED"), "FAILED"),
        (("RUNNING", "FAILED"), "RUNNING"),
        (("PENDING", "PENDING"), "PENDING"),
        (("COMPLETED", "COMPLETING"), "COMPLETING"),
    ],
)
@pytest.mark.parametrize("turned", [False, True])
def test_components_of_a_heterogeneous_job_count_together(
    states: tuple[str, str], expected: str, turned: bool
) -> None:
    first, second = reversed(states) if turned else states
    queue = ToolAnswer(
        0, f"12+0|{first}|0:01|1|n1|None\n12+1|{second}|0:01|2|n[2-3]|None\n13|RUNNING|||n9|\n"
    )
    accounted = ToolAnswer(0, f"12+0|t0|{first}|9|1|n1|0:0\n12+1|t0|{second}|9|2|n[2-3]|0:0\n")
    shown = ToolAnswer(
        0,
        f"JobId=12 HetJobId=12 HetJobOffset=0 JobState={first} RunTime=00:00:09 NodeList=n1 NumNodes=1\n"
        f"JobId=13 HetJobId=12 HetJobOffset=1 JobState={second} RunTime=9 NodeList=n[2-3] NumNodes=2\n",
    )
    by_queue, by_accounting = (
        slurm.squeue(["12"], FakeSlurm({"squeue": queue})),
        slurm.sacct(["12"], FakeSlurm({"sacct": accounted})),
    )
    by_controller = slurm.scontrol(["12"], FakeSlurm({"scontrol": shown}))
    assert by_queue is not None
    assert by_accounting is not None
    assert set(by_queue) == {"12"}
    for view in (by_queue["12"], by_accounting["12"], by_controller["12"]):
        assert (view.state.name, view.nodes, view.node_list) == (expected, 3, "n1,n[2-3]")


def test_attempts_of_a_requeued_component_are_not_two_components() -> None:
    rows = ToolAnswer(
        0,
        "12+0|2026-01-01T00:00:00|NODE_FAIL|9|1|n1|0:0\n12+1|2026-01-01T00:00:00|CANCELLED|9|1|n2|0:0\n"
        "12+0|2026-01-01T00:05:00|COMPLETED|9|1|n3|0:0\n12+1|2026-01-01T00:05:00|COMPLETED|9|1|n4|0:0\n",
    )
    views = slurm.sacct(["12"], FakeSlurm({"sacct": rows}))
    assert views is not None
    assert (views["12"].state.name, views["12"].nodes, views["12"].node_list) == ("COMPLETED", 2, "n3,n4")


def test_recycled_ids_of_arrays_heterogeneous_and_plain_jobs_do_not_mix() -> None:
    queue = ToolAnswer(
        0, "12|RUNNING|0:01|1|n1|None\n12_1|FAILED|0:01|1|n1|None\n112+0|FAILED|0:01|1|n1|None\n"
    )
    views = slurm.squeue(["12"], FakeSlurm({"squeue": queue}))
    assert views is not None
    assert {job_id: view.state.name for job_id, view in views.items()} == {"12": "RUNNING"}
