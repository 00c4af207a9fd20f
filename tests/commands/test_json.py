"""`--json`: one object on standard output, and everything else on standard error."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import Result
from rich.console import Console

from aorta.artefacts.io import write_json
from aorta.artefacts.layout import RunDir
from aorta.artefacts.records import Planned
from aorta.commands._jobs import job_object, job_rows, job_table, select_jobs
from aorta.launch import tools
from aorta.launch.follow import Follower
from aorta.launch.tools import ToolAnswer
from tests.support.commands import run, without_site
from tests.support.markers import write_marker
from tests.support.slurm import FakeSlurm


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    without_site(monkeypatch)
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "small.yaml").write_text("training: {max_steps: 3}\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def printed(result: Result) -> dict[str, object]:
    """The whole of standard output as JSON."""
    assert result.exception is None, result.exception
    value = json.loads(result.stdout)
    assert isinstance(value, dict)
    return value


def trained(run_dir: object, steps: int, total: int) -> None:
    """What a run leaves that has made `steps` of `total` steps of 20 ms."""
    folder = RunDir(Path(str(run_dir)))
    write_marker(folder, 0, "running")
    write_json(folder.planned, Planned(steps=total))
    lines = [json.dumps({"global_step": i, "wall_end_ns": i * 20_000_000}) for i in range(steps)]
    folder.records(0).write_text("".join(f"{line}\n" for line in lines))


def test_submit_names_its_folder_and_jobs(slurm: FakeSlurm) -> None:
    result = run("submit", "--nodes", "1,2", "--json")
    told = printed(result)
    jobs = told["jobs"]
    assert isinstance(jobs, list)
    assert [(job["scenario"], job["job_id"]) for job in jobs] == [("1node", "101"), ("2node", "102")]
    assert (Path(str(told["submission"])) / "job_ids.txt").is_file()
    assert told["aggregate"] is None
    assert "submitted 1node: job 101" in result.stderr


def test_submit_without_submitting_has_the_scripts(slurm: FakeSlurm) -> None:
    told = printed(run("submit", "--nodes", "1", "--dry-run", "--json"))
    assert (told["submission"], told["jobs"]) == (None, [])
    scripts = told["scripts"]
    assert isinstance(scripts, dict)
    assert scripts["1node"].startswith("#!/bin/bash")
    assert run("submit", "--nodes", "1", "--dry-run").stdout.startswith("### 1node\n#!/bin/bash")


def test_a_sweep_names_its_points(slurm: FakeSlurm) -> None:
    told = printed(run("sweep", "--over", "training.batch_size=2,4", "--json"))
    points = told["points"]
    assert isinstance(points, list)
    assert [point["job_id"] for point in points] == ["101_0", "101_1"]


def test_status_has_progress_of_what_runs_and_null_of_what_waits(slurm: FakeSlurm) -> None:
    submitted = printed(run("submit", "--nodes", "1,2", "--json"))
    jobs = submitted["jobs"]
    assert isinstance(jobs, list)
    trained(jobs[0]["run_dir"], 10, 50)
    slurm.replies["squeue"] = ToolAnswer(0, "101|RUNNING|0:42|1|n0|None\n102|PENDING|0:00|2||Priority\n")
    first, second = printed(run("status", "--json"))["jobs"]  # type: ignore[misc]
    assert (first["state"], first["elapsed_s"], first["node_list"]) == ("RUNNING", 42, "n0")
    # (50 - 10) steps of 20 ms
    assert first["progress"] == {
        "phase": "training", "steps": 10, "total_steps": 50, "step_s": 0.02, "left_s": 0.8
    }  # fmt: skip
    assert (second["state"], second["reason"], second["progress"]) == ("PENDING", "Priority", None)


def test_wait_ends_with_the_jobs_and_the_same_exit_status(slurm: FakeSlurm) -> None:
    run("submit", "--nodes", "1")
    slurm.replies["squeue"] = ToolAnswer(0, "101|FAILED|0:42|1|n0|NonZeroExitCode\n")
    result = run("wait", "--json")
    assert result.return_value == 1
    [job] = printed(result)["jobs"]  # type: ignore[misc]
    assert (job["state"], job["phase"], job["progress"]) == ("FAILED", "ended", None)
    assert "not completed: 101" in result.stderr


def test_the_table_shows_steps_their_time_and_what_is_left(slurm: FakeSlurm) -> None:
    jobs = printed(run("submit", "--nodes", "1,2,4", "--json"))["jobs"]
    assert isinstance(jobs, list)
    trained(jobs[0]["run_dir"], 50, 50)
    trained(jobs[1]["run_dir"], 100, 3000)
    slurm.replies["squeue"] = ToolAnswer(
        0,
        "101|COMPLETED|1:42|1|n0|None\n102|RUNNING|0:42|2|n[0-1]|None\n103|RUNNING|0:02|4|n[0-3]|None\n",
    )
    follower = Follower(select_jobs(None, (), Path("results/profiling"), tools.call), tools.call)
    follower.poll()
    screen = io.StringIO()
    Console(file=screen, width=160).print(job_table(job_rows(follower), 160))
    header, *rows = [line.split() for line in screen.getvalue().splitlines()]
    assert " ".join(header) == "scenario job state elapsed steps per step time left nodes reason"
    assert rows[0][4:8] == ["50/50", "20", "ms", "-"]
    # (3000 - 100) steps of 20 ms are 58 s
    assert rows[1][4:8] == ["100/3000", "20", "ms", "0:58"]
    assert rows[2][4:8] == ["starting", "agents", "-", "-"]
    screen = io.StringIO()
    Console(file=screen, width=80).print(job_table(job_rows(follower), 80))
    narrow = screen.getvalue()
    # Numbers stay whole on a usual terminal; only words fold.
    assert all(word in narrow for word in ("COMPLETED", "00:01:42", "100/3000", "20 ms", "0:58", "starting"))
    assert max(map(len, narrow.splitlines())) <= 80
    screen = io.StringIO()
    Console(file=screen, width=40).print(job_table(job_rows(follower), 40))
    header, *rows = [line.split() for line in screen.getvalue().splitlines()]
    assert header == ["scenario", "job", "state", "steps"]
    assert rows[0] == ["1node", "101", "COMPLETED", "50/50"]


def test_another_program_reads_one_line_per_job(slurm: FakeSlurm) -> None:
    run("submit", "--nodes", "1")
    reason = "ReqNodeNotAvail, UnavailableNodes:" + ",".join(f"node{i}" for i in range(10))
    slurm.replies["squeue"] = ToolAnswer(0, f"101|PENDING|0:00|1||{reason}\n")
    header, row = run("status").stdout.splitlines()
    assert reason in row
    assert header.split()[0] == "scenario"


def test_an_interrupted_wait_prints_the_jobs_as_they_are(
    slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    run("submit", "--nodes", "1")
    slurm.replies["squeue"] = ToolAnswer(0, "101|RUNNING|0:42|1|n0|None\n")
    monkeypatch.setattr("aorta.commands.wait.time.sleep", interrupt)
    result = run("wait", "--json")
    assert result.return_value == 130
    [job] = printed(result)["jobs"]  # type: ignore[misc]
    assert (job["job_id"], job["state"]) == ("101", "RUNNING")
    assert "the jobs keep running" in result.stderr


def test_an_error_leaves_standard_output_empty(project: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "aorta", "status", "--json"],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 4
    assert done.stdout == ""
    assert done.stderr.startswith("aorta: there is no submission below")


def test_a_job_that_nobody_knows_has_null_for_what_is_not_known(slurm: FakeSlurm) -> None:
    follower = Follower(select_jobs(None, ("7",), Path("results"), tools.call), tools.call)
    [row] = job_rows(follower)
    told = job_object(*row)
    assert {told[name] for name in ("scenario", "label", "elapsed_s", "nodes", "run_dir", "progress")} == {
        None
    }


def test_between_two_questions_to_slurm_a_running_job_grows_older(slurm: FakeSlurm) -> None:
    run("submit", "--nodes", "1,2")
    slurm.replies["squeue"] = ToolAnswer(0, "101|RUNNING|0:42|1|n0|None\n102|PENDING|0:00|2||Priority\n")
    follower = Follower(select_jobs(None, (), Path("results/profiling"), tools.call), tools.call)
    follower.poll()
    assert [view.elapsed_s for _, view, _ in job_rows(follower, 9.7)] == [42 + 9, 0]
