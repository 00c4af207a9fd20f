"""The agents' markers as the only source."""

import os
from pathlib import Path

import pytest

from aorta.artefacts.layout import RunDir
from aorta.artefacts.records import State
from aorta.launch.markers import read_markers
from tests.support.markers import write_marker


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "2node" / "run_5")


def test_no_marker_says_nothing(run: RunDir) -> None:
    markers = read_markers(run, "5", 2)
    assert markers.state.phase == "unknown"
    assert markers.heartbeat_ns == 0


@pytest.mark.parametrize(
    ("states", "state", "worst"),
    [
        (["completed", "completed"], "COMPLETED", "COMPLETED"),
        (["completed", "running"], "RUNNING", "RUNNING"),
        (["failed", "running"], "RUNNING", "FAILED"),
        (["failed", "completed"], "FAILED", "FAILED"),
        (["timeout", "timeout"], "TIMEOUT", "TIMEOUT"),
        (["cancelled", "cancelled"], "CANCELLED", "CANCELLED"),
        (["completed"], "RUNNING", "RUNNING"),
    ],
)
def test_nodes_together(run: RunDir, states: list[State], state: str, worst: str) -> None:
    for index, each in enumerate(states):
        write_marker(run, index, each)
    markers = read_markers(run, "5", 2)
    assert markers.worst.name == worst
    # One of two nodes alone: whether the other lives is not known, so the run has not ended.
    assert markers.state.name == state


def test_an_earlier_attempt_does_not_count(run: RunDir) -> None:
    write_marker(run, 0, "running", attempt=1)
    write_marker(run, 1, "failed", attempt=0)
    markers = read_markers(run, "5", 2)
    assert (markers.worst.name, markers.hosts) == ("RUNNING", ("host0",))


def test_the_reason_is_what_was_lost(run: RunDir) -> None:
    write_marker(run, 0, "completed")
    write_marker(run, 1, "failed", lost=("rank 3 was killed",))
    assert read_markers(run, "5", 2).reason == "node1: rank 3 was killed"
    write_marker(run, 1, "failed")
    assert read_markers(run, "5", 2).reason == "node1: failed, exit code 7"


def test_the_reason_is_that_of_the_node_that_ended_first(run: RunDir) -> None:
    write_marker(run, 0, "failed", lost=("connection closed by peer",), ended=9)
    write_marker(run, 1, "failed", lost=("rank 1 was killed by SIGKILL",), ended=5)
    write_marker(run, 2, "failed", lost=("never said when",))
    assert read_markers(run, "5", 3).reason == "node1: rank 1 was killed by SIGKILL"


def test_a_broken_marker_is_none(run: RunDir) -> None:
    write_marker(run, 0, "completed")
    run.node(1).root.mkdir(parents=True)
    run.node(1).status.write_text("{half")
    assert read_markers(run, "5", 2).state.name == "RUNNING"


def test_the_heartbeat_is_the_newest_file_that_grows(run: RunDir) -> None:
    write_marker(run, 0, "running")
    os.utime(run.node(0).status, ns=(5, 5))
    run.records(0).write_text("{}\n")
    os.utime(run.records(0), ns=(9, 9))
    assert read_markers(run, "5", 1).heartbeat_ns == 9
