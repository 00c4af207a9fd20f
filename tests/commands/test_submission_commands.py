"""submit, wait, status, cancel and configure as a person calls them, against a stand-in for Slurm."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from aorta.launch.tools import ToolAnswer
from tests.support.commands import refused, run, without_site
from tests.support.slurm import FakeSlurm


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project folder with both configurations; no site settings in the environment."""
    without_site(monkeypatch)
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "small.yaml").write_text("training: {max_steps: 3}\n")
    (tmp_path / "config" / "default.yaml").write_text("")
    (tmp_path / "scripts").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_submission_prints_ids_and_what_comes_next(slurm: FakeSlurm, project: Path) -> None:
    result = run("submit", "--override", "training.batch_size=2", "training.seed=7")
    assert result.output.count("warning: training.max_steps is 3, ") == 1
    assert result.exception is None
    for line in (
        "submitted 1node: job 101",
        "submitted 4node: job 103",
        "config/small.yaml (no GPUs)",
        "next: aorta wait && aorta aggregate\n",
    ):
        assert line in result.output
    [ids] = (project / "results" / "profiling").glob("run_*/job_ids.txt")
    assert ids.read_text() == "101\n102\n103\n"
    snapshot = (ids.parent / "2node.yaml").read_text()
    assert "batch_size: 2" in snapshot
    assert "seed: 7" in snapshot
    assert "max_steps: 3" in snapshot


def test_in_the_checkout_make_comes_next(slurm: FakeSlurm, project: Path) -> None:
    (project / "pyproject.toml").write_text('[project]\nname = "aorta"\n')
    assert "next: make wait && make aggregate\n" in run("submit").output


def test_what_comes_next_is_said_for_the_folder_of_the_results(slurm: FakeSlurm) -> None:
    """Typed as it is printed; blanks in the path stay in it."""
    submitted = run("submit", "--nodes", "1", "--results", "my runs").output
    assert "next: aorta wait --results 'my runs' && aorta aggregate 'my runs'\n" in submitted
    slurm.replies["squeue"] = ToolAnswer(0, "101|RUNNING|0:02|1|n|None\n")
    assert "stay: aorta aggregate 'my runs'\n" in run("cancel", "--results", "my runs").output
    slurm.replies["squeue"] = ToolAnswer(0, "101|COMPLETED|0:02|1|n|None\n")
    assert "next: aorta aggregate 'my runs'\n" in run("wait", "--results", "my runs").output


def test_on_one_machine_jobs_follow_each_other_unless_asked_otherwise(slurm: FakeSlurm) -> None:
    assert "previous one has ended" in run("submit", "--nodes", "1,2").output
    assert "--dependency=afterany:101" in slurm.asked[-1]
    run("submit", "--nodes", "1,2", "--at-once")
    assert not any(word.startswith("--dependency") for word in slurm.asked[-1])


def test_a_dry_run_prints_the_scripts_and_touches_nothing(slurm: FakeSlurm, project: Path) -> None:
    before = sorted(project.rglob("*"))
    result = run("submit", "--dry-run", "--nodes", "2", "--qos", "high", "--aggregate")
    assert "#SBATCH --qos=high" in result.output
    assert "exec srun" in result.output
    assert "aggregate" in result.output
    assert "sbatch" not in slurm.programs()
    assert sorted(project.rglob("*")) == before
    assert "warning: training.max_steps is 3" in result.stderr
    assert "cannot be judged" not in run("submit", "--dry-run", "--override", "training.max_steps=99").output


def test_the_printed_script_is_the_submitted_one(
    slurm: FakeSlurm, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time_ns", lambda: 17)
    monkeypatch.setattr("time.strftime", lambda *_: "T")
    printed = run("submit", "--dry-run", "--nodes", "2").stdout
    run("submit", "--nodes", "2")
    script = (project / "results" / "profiling" / "run_T" / "2node.sbatch").read_text()
    assert printed == f"### 2node\n{script}"


def test_the_environment_of_the_site_counts(slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_ACCOUNT", "lab")
    monkeypatch.setenv("SLURM_PARTITION", "gpu")
    monkeypatch.setenv("AORTA_GPUS_PER_NODE", "4")
    output = run("submit", "--dry-run", "--nodes", "1", "--assume-shared").output
    for line in ("--account=lab", "--partition=gpu", "--gpus-per-node=4"):
        assert f"#SBATCH {line}\n" in output
    assert refused("submit", "--partition", "nowhere").exit_code == 2


def test_a_user_program_comes_after_the_dashes(slurm: FakeSlurm, project: Path) -> None:
    (project / "mine.py").write_text("")
    output = run("submit", "--dry-run", "--nodes", "1", "--", "mine.py", "--nodes", "9", "a b").output
    assert "-- mine.py --nodes 9 'a b'" in output


def test_tasks_that_multiply_are_refused_before_anything_is_asked_of_sbatch(slurm: FakeSlurm) -> None:
    error = refused("submit", "--tasks-per-node", "8", "--procs-per-node", "8")
    assert "64 processes per node" in str(error)
    assert "sbatch" not in slurm.programs()


def test_a_wrong_key_is_refused_before_anything_is_submitted(slurm: FakeSlurm) -> None:
    assert "training.batchsize" in str(refused("submit", "--override", "training.batchsize=3"))
    assert slurm.asked == []


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--qos", 'a"b'], "--qos: 'a\"b' contains a character"),
        (["--constraint", "$(x)"], "--constraint: '$(x)'"),
        (["--account", "a\nb"], "--account: 'a\\nb'"),
        (["--results", "it's"], "--output: "),
        (["--profiler", "nsys", "--override", "profiling.enabled=true"], "two profilers"),
        (["--override", "capture.profiler=nsys", "profiling.enabled=true"], "two profilers"),
    ],
)
def test_what_no_job_can_carry_is_refused_before_anything_is_made_or_printed(
    slurm: FakeSlurm, project: Path, words: list[str], said: str, more: list[str]
) -> None:
    before = sorted(project.rglob("*"))
    result = run("submit", *words, *more)
    assert said in str(result.exception)
    assert "###" not in result.output
    assert "sbatch" not in slurm.programs()
    assert sorted(project.rglob("*")) == before


@pytest.mark.parametrize(
    "words",
    [
        ["--profiler", "nsys"],
        ["--profiler", "none", "--override", "profiling.enabled=true"],
        ["--override", "profiling.enabled=true"],
        ["--profiler", "nsys", "--override", "capture.steps=5", "--", "mine.py"],
    ],
)
def test_one_tracer_or_one_that_the_node_chooses_is_taken(
    slurm: FakeSlurm, project: Path, words: list[str]
) -> None:
    (project / "mine.py").write_text("")
    assert run("submit", "--nodes", "1", *words).exception is None
    assert "sbatch" in slurm.programs()


def test_a_file_where_runs_belong_is_refused_before_anything_is_submitted(
    slurm: FakeSlurm, project: Path
) -> None:
    results = project / "results" / "profiling"
    results.mkdir(parents=True)
    (results / "2node").write_text("")
    assert f"{results / '2node'} is not a folder" in str(refused("submit"))
    assert "sbatch" not in slurm.programs()
    assert [path.name for path in results.iterdir()] == ["2node"]
    assert run("submit", "--nodes", "1,4").exception is None


def test_a_submission_in_the_same_second_has_its_own_configuration(
    slurm: FakeSlurm, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = project / "results" / "profiling"
    monkeypatch.setattr("time.strftime", lambda *_: "T")
    # Someone takes the name after it was chosen: when the cluster is asked.
    sinfo = slurm.replies["sinfo"]

    def slow(argv: Sequence[str]) -> ToolAnswer:
        (results / "run_T").mkdir(parents=True, exist_ok=True)
        return sinfo(argv) if callable(sinfo) else sinfo

    slurm.replies["sinfo"] = slow
    assert run("submit", "--nodes", "2").exception is None
    script = (results / "run_T-2" / "2node.sbatch").read_text()
    assert f"{results}/run_T-2/2node.yaml" in script
    assert list((results / "run_T").iterdir()) == []


def test_a_torn_line_of_the_record_is_said_and_the_other_jobs_are_followed(
    slurm: FakeSlurm, project: Path
) -> None:
    run("submit", "--nodes", "1,2")
    [jobs] = (project / "results" / "profiling").glob("run_*/jobs.jsonl")
    jobs.write_text(jobs.read_text()[:-9])
    slurm.replies["squeue"] = ToolAnswer(0, "101|COMPLETED|0:01|1|node1|None\n")
    result = run("wait")
    assert result.return_value == 0
    assert f"note: {jobs.relative_to(project)}, line 2 is left out" in result.output


def test_waiting(slurm: FakeSlurm) -> None:
    run("submit", "--nodes", "1,2")
    rows = iter(
        [
            "101|RUNNING|0:01|1|node1|None\n102|PENDING|0:00|2||Dependency\n",
            "101|COMPLETED|0:02|1|node1|None\n102|RUNNING|0:01|2|node[1-2]|None\n",
            "102|RUNNING|0:02|2|node[1-2]|None\n",
            "102|COMPLETED|0:03|2|node[1-2]|None\n",
        ]
    )
    slurm.replies["squeue"] = lambda argv: ToolAnswer(0, next(rows))
    result = run("wait", "--interval", "0.1")
    assert result.return_value == 0
    assert result.output.splitlines() == [
        "1node  101  RUNNING  00:00:01  1 node1  -",
        "2node  102  PENDING  00:00:00  2  Dependency",
        "1node  101  COMPLETED  00:00:02  1 node1  -",
        "2node  102  RUNNING  00:00:01  2 node[1-2]  -",
        "2node  102  COMPLETED  00:00:03  2 node[1-2]  -",
        "all completed; next: aorta aggregate",
    ]


def test_a_wait_says_what_did_not_complete(slurm: FakeSlurm) -> None:
    slurm.replies["squeue"] = ToolAnswer(0, "7|COMPLETED|0:02|1|n|None\n8|TIMEOUT|0:02|1|n|TimeLimit\n")
    result = run("wait", "--job", "7", "--job", "8")
    assert result.return_value == 1
    assert result.output.splitlines()[-1] == "not completed: 8; next: aorta aggregate"


def test_nothing_to_wait_for(slurm: FakeSlurm) -> None:
    assert "no submission" in str(refused("wait"))


def test_ctrl_c_leaves_the_jobs_alone_and_says_how_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    squeue = tmp_path / "bin" / "squeue"
    squeue.write_text("#!/bin/sh\necho '7|RUNNING|0:02|1|n|None'\n")
    squeue.chmod(0o755)
    process = subprocess.Popen(
        [sys.executable, "-m", "aorta", "wait", "--job", "7", "--interval", "30"],
        env=os.environ | {"PATH": f"{squeue.parent}:/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    guard = threading.Timer(60, process.kill)
    guard.start()
    assert process.stdout.readline().startswith("-  7  RUNNING")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    guard.cancel()
    assert process.returncode == 130
    assert "aorta wait --job 7" in errors
    assert "Traceback" not in errors


def test_status_shows_once(slurm: FakeSlurm) -> None:
    run("submit", "--nodes", "1")
    slurm.replies["squeue"] = ToolAnswer(0, "101|RUNNING|0:01|1|node1|None\n")
    output = run("status").output
    assert "RUNNING" in output
    assert slurm.programs().count("squeue") == 1


def test_cancelling_leaves_out_what_has_ended(slurm: FakeSlurm) -> None:
    slurm.replies["squeue"] = ToolAnswer(0, "7|COMPLETED|0:02|1|n|None\n8|RUNNING|0:02|1|n|None\n")
    assert "cancelled: 8" in run("cancel", "--job", "7", "--job", "8").output
    assert slurm.asked[-1] == ["scancel", "8"]
    slurm.replies["squeue"] = ToolAnswer(0, "7|COMPLETED|0:02|1|n|None\n")
    assert "nothing to cancel" in run("cancel", "--job", "7").output
    assert slurm.programs().count("scancel") == 1


def test_an_id_that_slurm_does_not_know_is_not_called_cancelled(slurm: FakeSlurm) -> None:
    slurm.replies["squeue"] = ToolAnswer(0, "8|RUNNING|0:02|1|n|None\n")
    assert "Slurm does not know 999" in str(refused("cancel", "--job", "999", "--job", "8"))
    assert slurm.asked[-1] == ["scancel", "8"]
    slurm.replies["squeue"] = ToolAnswer(0, "")
    assert "Slurm does not know 999" in str(refused("cancel", "--job", "999"))
    assert slurm.programs().count("scancel") == 1


def test_jobs_of_a_submission_that_slurm_has_forgotten_are_named_and_no_error(slurm: FakeSlurm) -> None:
    run("submit", "--nodes", "1,2")
    slurm.replies["squeue"] = ToolAnswer(0, "101|RUNNING|0:01|1|node1|None\n")
    output = run("cancel").output
    assert "cancelled: 101;" in output
    assert "Slurm no longer knows 102" in output


def test_settings_from_flags(slurm: FakeSlurm, project: Path) -> None:
    result = run("configure", "--account", "lab", "--partition", "gpu")
    assert "4 GPUs per node" in result.output
    written = project / "scripts" / "profiling_config.sh"
    assert "export SLURM_PARTITION=gpu\n" in written.read_text()
    assert written.stat().st_mode & 0o777 == 0o600


def test_settings_without_anyone_to_ask_take_what_is_the_only_choice(slurm: FakeSlurm, project: Path) -> None:
    run("configure")
    text = (project / "scripts" / "profiling_config.sh").read_text()
    assert "export SLURM_ACCOUNT=lab\n" in text
    assert "export SLURM_PARTITION=debug\n" in text


def test_settings_do_not_guess(slurm: FakeSlurm, project: Path) -> None:
    slurm.replies["sacctmgr"] = ToolAnswer(0, "a\nb\n")
    assert "which account? there are: a, b" in str(refused("configure"))
    assert not (project / "scripts" / "profiling_config.sh").exists()


def test_settings_without_accounting(slurm: FakeSlurm, project: Path) -> None:
    slurm.replies["sacctmgr"] = ToolAnswer(1, err="Slurm accounting storage is disabled")
    assert "has no accounting" in run("configure").output
    assert "ACCOUNT" not in (project / "scripts" / "profiling_config.sh").read_text()


@pytest.mark.parametrize("program", ["configure", "submit"])
def test_without_a_cluster_the_way_out_is_named(program: str, slurm: FakeSlurm) -> None:
    def gone(argv: Sequence[str]) -> ToolAnswer:
        return ToolAnswer(None, err="sinfo is not installed here")

    slurm.replies["sinfo"] = gone
    error = refused(program)
    assert error.exit_code == 3
    assert "aorta profile" in error.hint
