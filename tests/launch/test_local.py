"""Runs on this machine: real submitit, with a stand-in for the node agent."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from aorta.artefacts.layout import RunDir, job_output
from aorta.artefacts.slurm_environment import clean_environment
from aorta.artefacts.submissions import SubmissionDir
from aorta.launch import local
from aorta.launch.local import LocalRun, agent_environment, share_gpus, start
from aorta.launch.plan import LaunchPlan
from aorta.launch.slurm import JobView
from tests.support.markers import write_marker

AGENT = """
import json, os, pathlib, signal, sys, time
words = sys.argv[1:]
options = dict(zip(words[1::2], words[2::2]))
node = int(options["--node-index"])
names = ("AORTA_SHARED_NODES", "CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID", "SUBMITIT_EXECUTOR")
seen = {"words": words, "cwd": os.getcwd(), "environment": {name: os.environ.get(name) for name in names}}
os.write(1, f"agent {node} speaks\\n".encode())
behaviour = json.loads(pathlib.Path("behaviour.json").read_text())
def told(number, frame):
    os.write(1, f"agent {node} was told {number}\\n".encode())
    os._exit(128 + number)
signal.signal(signal.SIGTERM, signal.SIG_IGN if behaviour.get("ignore") else told)
pathlib.Path(f"seen{node}.json").write_text(json.dumps(seen))
time.sleep(behaviour.get("sleep", 0))
sys.exit(behaviour.get("codes", [0, 0])[node])
"""


@pytest.fixture
def plan(tmp_path: Path) -> LaunchPlan:
    (tmp_path / "agent.py").write_text(AGENT)
    return LaunchPlan(
        scenario="2node",
        nodes=2,
        aorta=(sys.executable, str(tmp_path / "agent.py")),
        project=str(tmp_path),
        results=str(tmp_path / "results"),
        config="c.yaml",
        output="",
        time_limit="30",
        time_limit_s=1800,
    )


def begin(plan: LaunchPlan, tmp_path: Path, gpus: tuple[str, ...] = (), **behaviour: object) -> LocalRun:
    (tmp_path / "behaviour.json").write_text(json.dumps(behaviour))
    (tmp_path / "results").mkdir(exist_ok=True)
    return start(plan, SubmissionDir.of(tmp_path / "results", "T1"), 1, gpus, 4)


def finish(run: LocalRun) -> JobView:
    deadline = time.monotonic() + 60
    while (view := run.poll()).state.phase != "ended":
        assert view.state.name == "RUNNING"
        assert time.monotonic() < deadline, "the run does not end"
        time.sleep(0.05)
    return view


def wait_for_agents(tmp_path: Path) -> None:
    deadline = time.monotonic() + 60
    while not all((tmp_path / f"seen{node}.json").is_file() for node in (0, 1)):
        assert time.monotonic() < deadline, "the agents do not start"
        time.sleep(0.05)


def test_each_node_is_one_agent(plan: LaunchPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    plan = replace(plan, gpus_per_node=1, command=("x.py", "-v"))
    run = begin(plan, tmp_path, gpus=("3", "5"))
    private = tmp_path / "results" / "run_T1" / "local"
    assert private.stat().st_mode & 0o777 == 0o700
    view = finish(run)
    assert (view.state.name, view.reason, view.nodes) == ("COMPLETED", "", 2)
    assert run.job.job_id == "local-T1-1"
    assert run.job.run_dir == str(RunDir(tmp_path / "results" / "2node" / "run_local-T1-1").root)
    for node, device in enumerate(("3", "5")):
        seen = json.loads((tmp_path / f"seen{node}.json").read_text())
        wall = str(run.job.submitted_wall_ns)
        assert seen["words"] == [
            *("run-node", "--scenario", "2node", "--results", plan.results, "--config", "c.yaml"),
            *("--submitted-wall-ns", wall, "--executor", "local", "--job-id", "local-T1-1", "--nodes", "2"),
            *("--node-index", str(node), "--", "x.py", "-v"),
        ]
        assert seen["cwd"] == str(tmp_path)
        assert seen["environment"] == {
            "AORTA_SHARED_NODES": "4",
            "CUDA_VISIBLE_DEVICES": device,
            "SLURM_JOB_ID": None,
            "SUBMITIT_EXECUTOR": None,
        }
    printed = job_output(tmp_path / "results", "2node", "local-T1-1").read_text()
    assert sorted(printed.splitlines()) == ["agent 0 speaks", "agent 1 speaks"]
    assert not private.exists()
    assert run.poll() is view


def test_one_node_that_fails_fails_the_run(plan: LaunchPlan, tmp_path: Path) -> None:
    view = finish(begin(plan, tmp_path, codes=[0, 3]))
    assert (view.state.name, view.reason) == ("FAILED", "the agent of node1 ended with exit code 3")


def test_the_reason_is_the_markers_where_there_are_some(plan: LaunchPlan, tmp_path: Path) -> None:
    run = begin(plan, tmp_path, codes=[0, 3])
    write_marker(RunDir(Path(run.job.run_dir)), 1, "failed", lost=("rank 1 was killed",))
    assert finish(run).reason == "node1: rank 1 was killed"


def test_cancelling_tells_every_agent_once(plan: LaunchPlan, tmp_path: Path) -> None:
    run = begin(plan, tmp_path, sleep=600)
    wait_for_agents(tmp_path)
    run.cancel()
    view = finish(run)
    assert view.state.name == "CANCELLED"
    printed = job_output(tmp_path / "results", "2node", "local-T1-1").read_text()
    told = [line for line in printed.splitlines() if "told" in line]
    assert sorted(told) == [f"agent {node} was told {int(signal.SIGTERM)}" for node in (0, 1)]


def test_agents_that_do_not_listen_are_ended_by_force(
    plan: LaunchPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "CANCEL_S", 0.3)
    run = begin(plan, tmp_path, sleep=600, ignore=True)
    wait_for_agents(tmp_path)
    run.cancel()
    view = finish(run)
    assert (view.state.name, view.reason) == ("CANCELLED", "the agent of node0 was killed")


OWNER = """
import json, sys, time
from pathlib import Path
from aorta.artefacts.submissions import SubmissionDir
from aorta.launch.local import start
from aorta.launch.plan import LaunchPlan
root = Path.cwd()
plan = LaunchPlan(
    scenario="2node", nodes=2, aorta=(sys.executable, str(root / "agent.py")), project=str(root),
    results=str(root / "results"), config="c.yaml", output="", time_limit="30", time_limit_s=1800,
)
start(plan, SubmissionDir.of(root / "results", "T1"), 1, (), 4)
time.sleep(600)
"""


@pytest.mark.parametrize("whole_group", [False, True])
def test_the_run_ends_when_its_owner_is_killed(plan: LaunchPlan, tmp_path: Path, whole_group: bool) -> None:
    (tmp_path / "behaviour.json").write_text(json.dumps({"sleep": 600}))
    (tmp_path / "results").mkdir()
    owner = subprocess.Popen([sys.executable, "-c", OWNER], cwd=tmp_path, start_new_session=True)
    try:
        wait_for_agents(tmp_path)
    finally:
        if whole_group:
            os.killpg(owner.pid, signal.SIGKILL)
        else:
            owner.kill()
        owner.wait()
    printed = job_output(Path(plan.results), "2node", "local-T1-1")
    told = [f"agent {node} was told {int(signal.SIGTERM)}" for node in (0, 1)]
    deadline = time.monotonic() + 60
    while sorted(line for line in printed.read_text().splitlines() if "told" in line) != told:
        assert time.monotonic() < deadline, "the agents live on"
        time.sleep(0.05)
    assert (tmp_path / "results" / "run_T1" / "local").stat().st_mode & 0o777 == 0o700


def test_the_handler_of_ctrl_c_is_back_after_the_start(plan: LaunchPlan, tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    run = begin(plan, tmp_path)
    assert signal.getsignal(signal.SIGINT) is before
    finish(run)


def test_gpus_are_shared_out_in_order() -> None:
    assert share_gpus(["0", "1", "2", "3"], 2, 2) == ("0,1", "2,3")
    assert share_gpus(["0", "1", "2"], 2, 1) == ("0", "1")
    assert share_gpus([], 2, 0) == ("", "")


def test_an_agent_inherits_no_allocation() -> None:
    environment = {"PATH": "/bin", "SUBMITIT_FOLDER": "x", "SLURM_CONF": "/c", "SLURM_JOB_ID": "1"}
    assert agent_environment(environment) == {"PATH": "/bin"}
    assert "SLURM_CONF" in clean_environment(environment)
