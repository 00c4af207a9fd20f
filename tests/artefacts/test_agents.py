"""Markers of agents that were killed, and runs whose owner was."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from aorta.artefacts.agents import as_it_is, is_gone, started, this_process
from aorta.artefacts.io import append_line, write_json
from aorta.artefacts.layout import RunDir, Scenario
from aorta.artefacts.records import FIRST_FAILURE, NodeStatus, ProcessId, SubmittedJob
from aorta.artefacts.submissions import SubmissionDir
from aorta.launch.markers import read_markers
from aorta.runner.options import NodeOptions
from aorta.runner.peers import Heartbeat, Peer
from tests.support import commands

OTHER_ERROR = "RuntimeError: Connection closed by peer [127.0.0.1]:4711"


@pytest.fixture
def killed() -> ProcessId:
    """A process that has run on this machine and was killed."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        own, ticks = this_process(), started(child.pid)
        assert own is not None
        assert ticks is not None
        process = ProcessId(pid=child.pid, started_ticks=ticks, machine=own.machine)
        assert not is_gone(process)
        child.kill()
    return process


def marker(index: int, state: str, agent: ProcessId | None = None, **more: object) -> NodeStatus:
    fields = {
        "node_index": index,
        "host": f"h{index}",
        "attempt": 0,
        "state": state,
        "started_wall_ns": 1,
        **more,
    }
    return msgspec.convert({**fields, "agent": msgspec.to_builtins(agent)}, NodeStatus)


def test_only_a_process_that_can_be_seen_is_known_to_be_gone(killed: ProcessId) -> None:
    assert is_gone(killed)
    assert not is_gone(this_process())
    assert not is_gone(None)
    assert not is_gone(msgspec.structs.replace(killed, machine="another boot 1"))
    own = this_process()
    assert own is not None
    assert is_gone(
        msgspec.structs.replace(own, started_ticks=own.started_ticks + 1)
    )  # its id was given again


def test_a_marker_of_a_killed_agent_says_that_it_failed(killed: ProcessId, tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    path.write_text("")
    os.utime(path, ns=(5, 5_000_000_000))
    found = as_it_is(marker(1, "running", killed), path)
    assert (found.state, found.ended_wall_ns) == ("failed", 5_000_000_000)
    assert found.lost == [f"{FIRST_FAILURE}the node agent (process {killed.pid}) was killed"]
    for other in (marker(1, "running", this_process()), marker(1, "completed", killed), marker(1, "running")):
        assert as_it_is(other, path) == other


@pytest.fixture
def run(tmp_path: Path, killed: ProcessId) -> RunDir:
    """Node 1's agent was killed; node 0 then lost its peer and says so."""
    made = RunDir(tmp_path / "results" / "2node" / "run_local-1")
    write_json(made.node(1).status, marker(1, "running", killed))
    os.utime(made.node(1).status, (1_000_000_000, 1_000_000_000))
    lost = [f"{FIRST_FAILURE}rank 0 exited with 1: {OTHER_ERROR}"]
    ended = {"ended_wall_ns": 1_000_000_001 * 10**9, "exit_code": 1, "lost": lost}
    write_json(made.node(0).status, marker(0, "failed", killed, **ended))
    return made


def test_the_node_that_died_first_is_named_and_not_its_victim(run: RunDir, killed: ProcessId) -> None:
    found = read_markers(run, "local-1", 2)
    assert found.state.name == "FAILED"
    assert found.running == ()
    assert found.reason == f"node1: the node agent (process {killed.pid}) was killed"


def test_a_victim_of_an_earlier_failure_is_not_blamed(run: RunDir) -> None:
    """The agent was killed after the other node had failed by itself."""
    os.utime(run.node(1).status, (1_000_000_009, 1_000_000_009))
    assert read_markers(run, "local-1", 2).reason == f"node0: rank 0 exited with 1: {OTHER_ERROR}"


def test_status_sees_at_once_that_the_owner_of_a_local_run_is_gone(tmp_path: Path, killed: ProcessId) -> None:
    results = tmp_path / "results"
    submission = SubmissionDir(results / "run_20260101_000000")
    states = {}
    for number, (name, owner) in enumerate(
        {"gone": killed, "lives": this_process(), "unknown": None}.items()
    ):
        run = RunDir(results / f"{number + 1}node" / f"run_local-{number}")
        job = SubmittedJob(
            job_id=f"local-{number}", scenario=f"{number + 1}node", nodes=1, run_dir=str(run.root),
            submitted_wall_ns=1, executor="local", owner=owner,
        )  # fmt: skip
        append_line(submission.jobs, msgspec.json.encode(job).decode())
        run.root.mkdir(parents=True)
        states[name] = job.job_id
    done = commands.run("status", "--results", str(results))
    assert done.exception is None
    rows = {name: line for name, job in states.items() for line in done.output.splitlines() if job in line}
    assert "FAILED" in rows["gone"]
    assert "UNKNOWN" in rows["lives"]
    assert "UNKNOWN" in rows["unknown"]


def test_an_agent_of_this_machine_is_missed_at_the_next_beat(run: RunDir, killed: ProcessId) -> None:
    """Without the machine's word, silence of a minute would have to tell."""
    clock = iter(range(0, 1000, 10))
    results = run.root.parents[1]
    options = NodeOptions(
        scenario=Scenario("2node"), results=results, config=None, executor="local", job_id="local-1",
        node_index=0, nodes=2,
    )  # fmt: skip
    heartbeat = Heartbeat(options, 60.0, clock=lambda: float(next(clock)))
    heartbeat.beat()
    assert heartbeat.silent() == Peer(1, "h1", "failed", gone=True)
    assert str(heartbeat.silent()) == "node 1's agent (h1) was killed"
