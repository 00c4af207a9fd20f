"""Real runs on this machine: agents as processes, ranks under torchrun and gloo."""

from __future__ import annotations

import os
import shutil
import signal
import time

import psutil
import pytest

from aorta.artefacts.io import read_json
from aorta.artefacts.layout import RunDir
from aorta.artefacts.records import Manifest, RunStatus
from tests.runner.test_processes import gone, until
from tests.support.agents import LIMIT_S, LONG, Job

pytest.importorskip("torch", reason="the agent starts torchrun")


def test_two_nodes_from_start_to_end(job):
    for index in range(2):
        job.start(index, 2)
    assert job.wait() == [0, 0], job.output(0) + job.output(1)
    status = job.status
    assert (status.state, status.nodes_missing) == ("completed", [])
    assert [(rank.rank, rank.exit_code) for node in status.nodes for rank in node.ranks] == [(0, 0), (1, 0)]
    assert [node.lost for node in status.nodes] == [[], []]
    manifest = read_json(job.run.manifest, Manifest)
    assert (manifest.world_size, len(manifest.nodes), manifest.shared_machine) == (2, 2, True)
    assert manifest.plan.command[-2:] == [str(job.folder), "5"]
    for index in range(2):
        node = job.run.node(index)
        assert (node.logs / f"rank{index}/stdout.log").read_text() == f"rank {index} of 2: sum 3\n"
        assert f"[rank{index}] rank {index} of 2: sum 3" in job.output(index)
        assert len(node.cpu_csv.read_text().splitlines()) > 1
    assert f"AORTA_RUN_DIR={job.run.root.resolve()}" in (job.folder / "env1.txt").read_text().splitlines()
    assert job.run.config.exists()
    assert "node 1:" in job.run.job_metadata.read_text()
    assert (job.folder / "results/cpu_2node_j").resolve() == job.run.root.resolve()


def test_a_killed_rank_is_named_and_the_other_node_ends_too(job):
    # `alone`: the ranks exchange nothing, so only the marker tells node 0 of the failure.
    for index in range(2):
        job.start(index, 2, steps=LONG, behaviour="alone")
    pids = job.running(2)
    os.kill(pids[1], signal.SIGKILL)
    codes = job.wait()
    assert 0 not in codes
    status = job.status
    assert status.state == "failed"
    first, second = status.nodes
    assert [(rank.rank, rank.signal, rank.exit_code) for rank in second.ranks] == [(1, "SIGKILL", None)]
    assert second.lost == ["first failure on this node: rank 1 was killed by SIGKILL"]
    assert first.state == "failed"
    assert any("node 1" in words and "ended earlier: failed" in words for words in first.lost)
    assert gone(pids[0])


def test_an_error_of_a_rank_is_kept(job):
    job.start(0, 1, steps=LONG, behaviour="fail1", options=["--procs-per-node", "2"])
    assert job.wait() == [1]
    (node,) = job.status.nodes
    assert node.ranks[1].error == "ValueError: the toy breaks here"
    assert node.ranks[1].exit_code == 1


def test_what_the_runtime_said_before_it_aborted_is_kept(job):
    job.start(0, 1, behaviour="abort")
    assert job.wait() == [1]
    (node,) = job.status.nodes
    (rank,) = node.ranks
    assert (rank.signal, rank.error) == ("SIGABRT", "terminate called without an active exception")


def finished(job, index):
    """Wait until the ranks of a node have ended, and a little longer."""
    until(lambda: f"rank {index} of 2" in job.output(index))
    time.sleep(1)


def test_a_node_that_has_finished_is_not_failed_by_another_nor_kept_waiting(job):
    job.environ["AORTA_PEER_GRACE_S"] = str(LIMIT_S)
    for index in range(2):
        job.start(index, 2, steps=LONG, behaviour="early0")
    pids = job.running(2)
    finished(job, 0)
    os.kill(pids[1], signal.SIGKILL)
    assert job.wait() == [0, 1]
    status = job.status
    assert status.state == "failed"
    first, second = status.nodes
    assert (first.state, first.exit_code, first.lost) == ("completed", 0, [])
    assert [(rank.exit_code, rank.signal) for rank in first.ranks] == [(0, None)]
    assert second.state == "failed"


def test_a_finished_node_that_is_cancelled_keeps_what_its_ranks_returned(job):
    job.environ["AORTA_KILL_GRACE_S"] = str(LIMIT_S)
    agents = [job.start(index, 2, steps=LONG, behaviour="early0") for index in range(2)]
    job.running(2)
    finished(job, 0)
    for agent in agents:
        agent.terminate()
    assert job.wait() == [143, 143]
    first, second = job.status.nodes
    assert (first.state, second.state, first.lost) == ("cancelled", "cancelled", [])
    assert [rank.exit_code for rank in first.ranks] == [0]


@pytest.mark.parametrize(("told", "state", "code"), [(True, "cancelled", 143), (False, "failed", 1)])
def test_a_rank_that_ends_on_the_signal_before_its_agent_is_told(job, told, state, code):
    agent = job.start(0, 1, steps=LONG)
    (pid,) = job.running(1)
    os.kill(pid, signal.SIGTERM)
    if told:
        until(lambda: gone(pid))
        time.sleep(0.5)
        agent.terminate()
    assert job.wait() == [code]
    (node,) = job.status.nodes
    assert (node.state, node.ranks[0].signal) == (state, "SIGTERM")


def test_a_killed_agent_leaves_no_process_and_the_other_one_notices(job):
    agents = [job.start(index, 2, steps=LONG, behaviour="alone") for index in range(2)]
    pids = job.running(2)
    children = [child.pid for child in psutil.Process(agents[1].pid).children(recursive=True)]
    assert {pids[1], monitor_of(agents[1]).pid} < set(children)  # torchrun is the third
    agents[1].kill()
    assert agents[0].wait(LIMIT_S) == 1
    assert agents[1].wait() == -signal.SIGKILL
    until(lambda: all(gone(pid) for pid in children))
    first, second = job.status.nodes
    assert (first.state, second.state) == ("failed", "failed")
    assert first.lost[-1] == f"node 1's agent ({second.host}) was killed"
    assert gone(pids[0])


def test_sigterm_ends_the_run_as_cancelled_and_a_second_one_changes_nothing(job):
    agent = job.start(0, 1, steps=LONG)
    pids = job.running(1)
    until(job.run.node(0).cpu_csv.exists)
    agent.terminate()
    monitor_of(agent).terminate()  # Slurm signals every process of a step
    time.sleep(0.2)
    agent.terminate()
    assert job.wait() == [128 + signal.SIGTERM]
    (node,) = job.status.nodes
    assert node.lost == []
    assert (node.state, node.signal, node.exit_code) == ("cancelled", "SIGTERM", 143)
    assert gone(pids[0])


def test_a_signal_near_the_jobs_end_is_its_time_limit(job):
    job.environ["SLURM_JOB_END_TIME"] = str(int(time.time()) + 60)
    agent = job.start(0, 1, steps=LONG)
    job.running(1)
    agent.send_signal(signal.SIGTERM)
    assert job.wait() == [143]
    assert job.status.state == "timeout"


def test_the_other_nodes_know_the_end_from_node_0(job):
    squeue = job.folder / "bin" / "squeue"
    squeue.parent.mkdir()
    squeue.write_text("#!/bin/sh\necho 1:00\n")
    squeue.chmod(0o755)
    job.environ |= {"PATH": f"{squeue.parent}:{job.environ['PATH']}", "SLURM_JOB_ID": "7"}
    agents = [job.start(index, 2, steps=LONG, behaviour="alone") for index in range(2)]
    job.running(2)
    agents[1].terminate()
    until(lambda: agents[1].poll() is not None)
    agents[0].terminate()
    assert job.wait() == [143, 143]
    assert job.status.nodes[1].state == "timeout"


def test_a_rank_that_ignores_sigterm_is_killed(job):
    job.environ["AORTA_KILL_GRACE_S"] = "2"
    agent = job.start(0, 1, steps=LONG, behaviour="stubborn")
    pids = job.running(1)
    agent.terminate()
    assert job.wait() == [143]
    (node,) = job.status.nodes
    assert node.state == "cancelled"
    assert node.lost == ["ranks did not end within 2 s and were killed"]
    assert gone(pids[0])


def test_a_missing_node_ends_the_run_with_its_name(job):
    job.environ["AORTA_GATHER_TIMEOUT_S"] = "3"
    job.start(0, 3)
    job.start(1, 3)
    assert job.wait() == [5, 5]
    reason = "node 2 of 3 did not report within 3 s"
    assert f"aorta: {reason}" in job.output(0)
    assert read_json(job.run.manifest, Manifest).nodes_missing == [2]
    status = job.status
    assert (status.state, status.nodes_missing) == ("failed", [2])
    assert [node.lost for node in status.nodes] == [[reason], [f"node 0: {reason}"]]
    assert not (job.folder / "pid0").exists()


def test_a_signal_while_waiting_for_the_others(job):
    agent = job.start(0, 2)
    until(job.run.node(0).info.exists)
    agent.terminate()
    assert job.wait() == [143]
    (node,) = job.status.nodes
    assert (node.state, node.lost) == ("cancelled", ["SIGTERM before the run started"])


def test_a_requeued_job_keeps_its_attempts_apart(tmp_path):
    job = Job(tmp_path, "1node")
    assert job.start_in_slurm(0).wait(LIMIT_S) == 0, job.output(0)
    assert job.start_in_slurm(1).wait(LIMIT_S) == 0, job.output(1)
    assert job.start_in_slurm(1).wait(LIMIT_S) == 5
    assert "already contains attempt 1 of job j" in job.output(2)
    assert read_json(RunDir(job.run.attempt(0)).status, RunStatus).attempt == 0
    assert (job.status.attempt, job.status.state) == (1, "completed")
    manifest = read_json(job.run.manifest, Manifest)
    assert (manifest.attempt, manifest.executor, manifest.nodes[0].slurm_node) == (1, "slurm", "n0")


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--override", "trainig.seed=1"], 2, "unknown key trainig"),
        (["--profiler", "rocprofv3"], 5, "rocprofv3 was requested, but is not installed on this machine"),
        (["--config", "/absent.yaml"], 2, "/absent.yaml does not exist"),
        (["--monitor-interval", "0.001"], 2, "monitor.interval_s"),
    ],
)
def test_what_cannot_work_is_said_and_marked(job, options, code, message):
    job.environ["PATH"] = "/usr/bin:/bin"
    job.start(0, 1, options=options)
    assert job.wait() == [code]
    assert "Traceback" not in job.output(0)
    (node,) = job.status.nodes
    assert node.state == "failed"
    assert message in node.lost[0]
    assert not (job.folder / "pid0").exists()


def monitor_of(agent):
    (monitor,) = [child for child in psutil.Process(agent.pid).children() if "monitor" in child.cmdline()]
    return monitor


def test_a_dead_monitor_does_not_stop_the_training(job):
    agent = job.start(0, 1, steps=60)
    job.running(1)
    monitor_of(agent).kill()
    assert job.wait() == [0]
    (node,) = job.status.nodes
    assert node.state == "completed"
    assert node.lost[0].startswith("monitor samples: the monitor ended early with -9")


def test_a_results_folder_that_goes_away_is_said(job):
    job.start(0, 1, steps=20)
    job.running(1)
    shutil.rmtree(job.folder / "results")
    assert job.wait() == [5]
    assert "disappeared while the job ran" in job.output(0)
