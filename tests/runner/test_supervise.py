"""Watching torchrun, with a clock that only moves when somebody sleeps."""

from __future__ import annotations

import signal

import pytest

from aorta.artefacts.io import write_json
from aorta.artefacts.layout import RunDir
from aorta.artefacts.records import NodeStatus, RunStatus
from aorta.runner.options import Limits
from aorta.runner.processes import Interrupts
from aorta.runner.supervise import Peer, failed_peer, hit_time_limit, limit_by_squeue, supervise

LIMITS = Limits(gather_s=1, grace_s=10, peer_grace_s=5, signal_lead_s=150)
PEER = Peer(1, "b", "failed")


class Scene:
    """A child that ends when told to, and the clock."""

    def __init__(self, ends_at=None, obeys=True, told=False):
        self.now, self.code, self.sent, self.kills, self.ticks = 0.0, None, [], [], 0
        self.ends_at, self.obeys, self.told = ends_at, obeys, told
        self.events = {}

    def poll(self):
        if self.ends_at is not None and self.now >= self.ends_at:
            self.code = 1 if self.code is None else self.code
        return self.code

    def signal(self, signum):
        self.sent.append((round(self.now), signum))
        if self.obeys:
            self.code = 1

    def said(self, words):
        return self.told

    def kill(self):
        self.kills.append(round(self.now))
        self.code = -9

    def sleep(self, seconds):
        self.now += seconds
        for at in [at for at in self.events if at <= self.now]:
            self.events.pop(at)()

    def tick(self):
        self.ticks += 1

    def run(self, interrupts=None, peer_at=None):
        return supervise(
            self,
            interrupts or Interrupts(),
            LIMITS,
            peer_failed=lambda: PEER if peer_at is not None and self.now >= peer_at else None,
            kill=self.kill,
            tick=self.tick,
            clock=lambda: self.now,
            sleep=self.sleep,
        )


def interrupt(scene, at, signum=signal.SIGTERM):
    interrupts = Interrupts()
    scene.events[at] = lambda: interrupts._note(signum, None)
    return interrupts


def test_a_child_that_ends_is_left_alone():
    scene = Scene(ends_at=3)
    outcome = scene.run()
    assert (outcome.code, outcome.interrupted, outcome.peer, outcome.killed) == (1, None, None, False)
    assert (scene.sent, scene.kills) == ([], [])
    assert scene.ticks in (3, 4)


def test_a_signal_is_passed_on_once_after_a_moment():
    scene = Scene()
    interrupts = interrupt(scene, 2)
    scene.events[2.5] = lambda: interrupts._note(signal.SIGINT, None)
    outcome = scene.run(interrupts)
    assert scene.sent == [(2 + 1, signal.SIGTERM)]
    assert (outcome.interrupted, outcome.killed) == (signal.SIGTERM, False)


def test_a_signal_that_torchrun_has_already_is_not_sent_again():
    scene = Scene(told=True, ends_at=6)
    assert scene.run(interrupt(scene, 2)).interrupted == signal.SIGTERM
    assert scene.sent == []


def test_a_hangup_reaches_the_ranks_as_sigterm():
    scene = Scene()
    scene.run(interrupt(scene, 2, signal.SIGHUP))
    assert [signum for _, signum in scene.sent] == [signal.SIGTERM]


def test_what_does_not_end_is_killed_after_the_grace():
    scene = Scene(obeys=False)
    outcome = scene.run(interrupt(scene, 2))
    assert scene.kills == [2 + 10]
    assert (outcome.code, outcome.killed) == (-9, True)


def test_a_failed_peer_gives_time_to_fail_alone():
    scene = Scene(ends_at=6)
    outcome = scene.run(peer_at=3)
    assert (scene.sent, scene.kills, outcome.peer) == ([], [], PEER)


def test_a_failed_peer_ends_what_would_hang():
    scene = Scene(obeys=False)
    outcome = scene.run(peer_at=3)
    ((at, signum),) = scene.sent
    assert signum == signal.SIGTERM
    assert 3 + 5 <= at <= 3 + 5 + 1
    assert len(scene.kills) == 1
    assert 3 + 5 + 10 <= scene.kills[0] <= 3 + 5 + 10 + 1
    assert (outcome.peer, outcome.interrupted) == (PEER, None)


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
    ("answer", "expected"),
    [
        ("RUNNING|1:30", True),
        ("RUNNING|1:00:00", False),
        ("RUNNING|1-00:00:10", False),
        ("COMPLETING|1:30", False),
        ("COMPLETING|0:00", True),
        ("RUNNING|UNLIMITED", False),
        ("RUNNING|INVALID", False),
        ("", False),
    ],
)
def test_squeue_tells_a_limit_from_a_cancellation(answer, expected):
    assert limit_by_squeue(answer + "\n", 150) is expected


def test_slurms_end_time_decides_where_it_is_known():
    environ = {"SLURM_JOB_ID": "1", "SLURM_JOB_END_TIME": "1000"}
    assert hit_time_limit(environ, 3, LIMITS, now_s=1000 - 150)
    assert not hit_time_limit(environ, 3, LIMITS, now_s=1000 - 151)
    assert not hit_time_limit({}, 0, LIMITS, now_s=0)
