"""Answers of Slurm that are about another job, in another form, or that did not come."""

from __future__ import annotations

import subprocess
import time
from datetime import datetime
from pathlib import Path

import pytest

from aorta.artefacts.slurm_environment import clean_environment
from aorta.errors import SubmitError
from aorta.launch import slurm
from aorta.launch.follow import FollowedJob, Follower
from aorta.launch.tools import ToolAnswer
from aorta.readers.sacct import FIELDS, fetch_accounting
from tests.support.slurm import cluster

NOW_S = datetime(2026, 11, 28, 23, 0).timestamp()
OLD = "4711|2017-06-12T10:00:00|COMPLETED|60|1|vm|0:0"
NEW = "4711|2026-11-28T23:00:01|FAILED|60|1|vm|1:0"


@pytest.mark.parametrize(
    ("rows", "state"), [([OLD], None), ([OLD, NEW], "FAILED"), ([NEW, OLD], "FAILED"), ([NEW], "FAILED")]
)
def test_a_row_that_is_older_than_the_submission_is_of_another_job(
    rows: list[str], state: str | None
) -> None:
    found = slurm.sacct(["4711"], cluster(sacct=ToolAnswer(0, "\n".join(rows) + "\n")), {"4711": NOW_S})
    assert found is not None
    assert (found["4711"].state.name if found else None) == state


def test_without_a_submit_time_the_id_has_to_do() -> None:
    found = slurm.sacct(["4711"], cluster(sacct=ToolAnswer(0, OLD + "\n")))
    assert found is not None
    assert found["4711"].state.name == "COMPLETED"


def test_a_recycled_id_does_not_end_a_wait() -> None:
    job = FollowedJob("4711", "1node", 1, None, submitted_s=NOW_S)
    follower = Follower([job], cluster(squeue=ToolAnswer(0, ""), sacct=ToolAnswer(0, OLD + "\n")))
    follower.poll()
    assert follower.going == [job]


def test_a_revoked_sibling_is_no_attempt() -> None:
    rows = "4711|2026-11-28T23:00:01|COMPLETED|9|1|vm|0:0\n4711|2026-11-28T23:00:02|REVOKED|0|1|None|0:0\n"
    found = slurm.sacct(["4711"], cluster(sacct=ToolAnswer(0, rows)))
    assert found is not None
    assert found["4711"].state.name == "COMPLETED"


def test_the_raw_number_of_an_arrays_task_is_known() -> None:
    queue = ToolAnswer(0, "1043074_91|RUNNING|1:00|1|n1|None|1043166\n")
    accounting = ToolAnswer(0, "1043074_91|2026-11-28T23:00:01|FAILED|9|1|n1|1:0|1043166\n")
    assert slurm.squeue(["1043166"], cluster(squeue=queue))["1043166"].state.name == "RUNNING"  # type: ignore[index]
    assert slurm.sacct(["1043166"], cluster(sacct=accounting))["1043166"].state.name == "FAILED"  # type: ignore[index]


def test_a_mistyped_number_is_said_at_once() -> None:
    follower = Follower([FollowedJob("99", None, None, None)], cluster())
    follower.poll()
    assert follower.going == []
    assert follower.rows()[0][1].reason == "no such job: Slurm does not know it"


def script(folder: Path) -> Path:
    path = folder / "a.sbatch"
    path.write_text("#!/bin/bash\n#SBATCH --job-name=aorta-2node\n")
    return path


TIMED_OUT = ToolAnswer(
    1, err="sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
)


def test_a_job_that_sbatch_sent_without_an_answer_is_found(tmp_path: Path) -> None:
    now = time.strftime("%Y-%m-%dT%H:%M:%S")
    rows = f"4242|{now}|aorta-2node\n17|2020-01-01T00:00:00|aorta-2node\n"
    call = cluster(sbatch=TIMED_OUT, squeue=ToolAnswer(0, rows))
    assert slurm.submit(script(tmp_path), call) == ("4242", None)
    assert call.programs().count("sbatch") == 1


@pytest.mark.parametrize("queue", [ToolAnswer(0, ""), ToolAnswer(1, err="timed out")])
def test_a_job_that_may_exist_is_not_called_refused(tmp_path: Path, queue: ToolAnswer) -> None:
    with pytest.raises(SubmitError) as caught:
        slurm.submit(script(tmp_path), cluster(sbatch=TIMED_OUT, squeue=queue))
    assert "may have been accepted" in caught.value.message
    assert "squeue -n aorta-2node" in caught.value.hint


def test_one_environment_for_all_programs() -> None:
    given = {"SLURM_TIME_FORMAT": "relative", "SBATCH_CLUSTERS": "gpu2", "SLURM_JOB_ID": "7", "PATH": "/bin"}
    assert clean_environment(given) == {"SBATCH_CLUSTERS": "gpu2", "SLURM_CLUSTERS": "gpu2", "PATH": "/bin"}
    assert clean_environment({"SLURM_CLUSTERS": "a"}) == {"SLURM_CLUSTERS": "a"}


def accounted(tmp_path: Path, *rows: dict[str, str]) -> tuple[str | None, list[str]]:
    text = "".join(
        "|".join({**dict.fromkeys(FIELDS, ""), **row}[name] for name in FIELDS) + "\n" for row in rows
    )
    answer = subprocess.CompletedProcess([], 0, text, "")
    found = fetch_accounting("4711", tmp_path / "sacct.txt", lambda _: answer)
    return found.state, list(found.notes)


def test_accounting_of_an_empty_state_says_nothing(tmp_path: Path) -> None:
    state, notes = accounted(tmp_path, {"JobID": "4711"})
    assert state is None
    assert "still says nothing" in notes[0]


def test_a_step_that_ran_out_of_memory_is_said(tmp_path: Path) -> None:
    step = {"JobID": "4711.0", "State": "OUT_OF_MEMORY"}
    state, notes = accounted(tmp_path, {"JobID": "4711", "State": "COMPLETED"}, step)
    assert (state, "step 4711.0 ended OUT_OF_MEMORY" in notes[0]) == ("completed", True)


def test_accounting_leaves_out_a_revoked_sibling(tmp_path: Path) -> None:
    rows = ({"JobID": "4711", "State": "COMPLETED"}, {"JobID": "4711", "State": "REVOKED"})
    assert accounted(tmp_path, *rows) == ("completed", [])
