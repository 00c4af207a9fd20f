"""Other nodes: how they ended, and whether their agents live."""

from __future__ import annotations

import os

import pytest

from aorta.artefacts.io import read_json, write_json
from aorta.artefacts.layout import RunDir, Scenario
from aorta.artefacts.records import NodeStatus, RunStatus
from aorta.runner.options import NodeOptions
from aorta.runner.peers import Heartbeat, Peer, failed_peer, others_ended


def status(index, state, attempt=0):
    return NodeStatus(node_index=index, host=f"h{index}", attempt=attempt, state=state, started_wall_ns=1)


@pytest.mark.parametrize(
    ("nodes", "attempt", "expected"),
    [
        ([status(0, "running"), status(1, "failed")], 0, Peer(1, "h1", "failed")),
        ([status(0, "running"), status(1, "cancelled")], 0, Peer(1, "h1", "cancelled")),
        ([status(0, "failed"), status(1, "completed")], 0, None),
        ([status(0, "running"), status(1, "failed")], 1, None),
    ],
)
def test_only_another_nodes_bad_end_of_this_attempt_counts(tmp_path, nodes, attempt, expected):
    run = RunDir(tmp_path)
    merged = RunStatus(job_id="j", attempt=0, state="failed", nodes=nodes, nodes_missing=[])
    write_json(run.status, merged)
    assert failed_peer(run, attempt, own=0) == expected


def test_no_marker_is_no_failure(tmp_path):
    assert failed_peer(RunDir(tmp_path), 0, own=0) is None


@pytest.mark.parametrize(
    ("states", "missing", "expected"),
    [
        (["running", "failed", "completed"], [], True),
        (["running", "failed", "running"], [], False),
        (["running", "failed"], [2], False),
        (["failed", "completed"], [0], True),
    ],
)
def test_the_store_is_needed_until_every_other_node_has_ended(tmp_path, states, missing, expected):
    run = RunDir(tmp_path)
    nodes = [
        status(index + (3 - len(states) if 0 in missing else 0), state) for index, state in enumerate(states)
    ]
    write_json(
        run.status, RunStatus(job_id="j", attempt=0, state="failed", nodes=nodes, nodes_missing=missing)
    )
    assert others_ended(run, 0, own=0) is expected
    assert not others_ended(run, 1, own=0)


class Nodes:
    """A heartbeat of node 0 of 2 that beats every 10 s and gives the other 60 s, and a clock."""

    def __init__(self, folder, nodes=2, index=0):
        self.now = 0.0
        options = NodeOptions(
            scenario=Scenario("2node"),
            results=folder,
            config=None,
            executor="local",
            job_id="j",
            node_index=index,
            nodes=nodes,
        )
        self.run = options.run_dir
        for number in range(nodes):
            write_json(self.run.node(number).status, status(number, "running"))
        self.heart = Heartbeat(options, 60.0, clock=lambda: self.now)

    def path(self, index):
        return self.run.node(index).status

    def pass_time(self, seconds, beating=()):
        """Ticks of 1 s; markers in `beating` change at each."""
        for _ in range(seconds):
            self.now += 1
            for index in beating:
                os.utime(self.path(index), ns=(int(self.now), int(self.now)))
            self.heart.beat()


def test_an_agent_without_a_sign_of_life_is_taken_for_dead(tmp_path):
    nodes = Nodes(tmp_path)
    nodes.pass_time(60)
    assert nodes.heart.silent() is None
    nodes.pass_time(12)
    assert nodes.heart.silent() == Peer(1, "h1", "failed", 60.0)
    assert str(nodes.heart.silent()) == "node 1's agent (h1) went silent for 60 s"


def test_an_agent_that_beats_lives_whatever_its_clock_says(tmp_path):
    nodes = Nodes(tmp_path)
    nodes.pass_time(200, beating=[1])  # its file's times are those of 1970
    assert nodes.heart.silent() is None


def test_an_agent_that_is_back_is_not_silent_any_more(tmp_path):
    nodes = Nodes(tmp_path)
    nodes.pass_time(80)
    assert nodes.heart.silent() is not None
    nodes.pass_time(5, beating=[1])
    assert nodes.heart.silent() is None


@pytest.mark.parametrize("state", ["completed", "failed"])
def test_an_agent_that_has_ended_need_not_beat(tmp_path, state):
    nodes = Nodes(tmp_path)
    write_json(nodes.path(1), status(1, state))
    nodes.pass_time(200)
    assert nodes.heart.silent() is None


def test_a_marker_of_another_attempt_or_none_says_nothing(tmp_path):
    nodes = Nodes(tmp_path)
    write_json(nodes.path(1), status(1, "running", attempt=1))
    nodes.pass_time(200)
    assert nodes.heart.silent() is None
    nodes.path(1).unlink()
    nodes.pass_time(200)
    assert nodes.heart.silent() is None


def test_time_in_which_this_agent_did_not_run_is_not_the_others_silence(tmp_path):
    nodes = Nodes(tmp_path)
    nodes.pass_time(20)
    nodes.now += 10_000
    nodes.heart.beat()
    assert nodes.heart.silent() is None


def test_the_own_marker_is_touched_and_its_content_stays(tmp_path):
    nodes = Nodes(tmp_path)
    before = read_json(nodes.path(0), NodeStatus)
    os.utime(nodes.path(0), (1, 1))
    nodes.pass_time(6)
    assert nodes.path(0).stat().st_mtime > 1
    assert read_json(nodes.path(0), NodeStatus) == before


def test_the_last_node_watches_the_first(tmp_path):
    nodes = Nodes(tmp_path, nodes=3, index=2)
    nodes.pass_time(80, beating=[1])
    assert nodes.heart.silent() == Peer(0, "h0", "failed", 60.0)


def test_a_single_node_watches_nobody(tmp_path):
    nodes = Nodes(tmp_path, nodes=1)
    nodes.pass_time(200)
    assert nodes.heart.silent() is None
