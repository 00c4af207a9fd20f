"""Watching torchrun, with a clock that only moves when somebody sleeps."""

from __future__ import annotations

import signal

import pytest

from aorta.runner.options import TimeLimits
from aorta.runner.peers import Peer
from aorta.runner.processes import Interrupts
from aorta.runner.supervise import RanksOutcome, SupervisionHooks, await_reason, supervise

LIMITS = TimeLimits(gather_s=1, grace_s=10, peer_grace_s=5, signal_lead_s=150)
PEER = Peer(1, "b", "failed")


class Scene:
    """A child that ends when told to, and the clock."""

    def __init__(self, ends_at=None, obeys=True, told=False, finished_at=None, needed_until=0):
        self.finished_at, self.needed_until = finished_at, needed_until
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

    def around(self, peer_at=None, gone=lambda now: False):
        return SupervisionHooks(
            peer_failed=lambda: PEER if peer_at is not None and self.now >= peer_at else None,
            ranks_finished=lambda: self.finished_at is not None and self.now >= self.finished_at,
            may_leave=lambda: self.now >= self.needed_until,
            kill=self.kill,
            tick=self.tick,
            folder_gone=lambda: gone(self.now),
            clock=lambda: self.now,
            sleep=self.sleep,
        )

    def run(self, interrupts=None, peer_at=None, gone=lambda now: False):
        return supervise(self, interrupts or Interrupts(), LIMITS, self.around(peer_at, gone))


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


def test_a_removed_folder_ends_the_ranks():
    scene = Scene()
    scene.run(gone=lambda now: now >= 20)
    ((at, signum),) = scene.sent
    assert signum == signal.SIGTERM
    assert 29 <= at <= 31
    assert scene.kills == []


def test_ranks_that_ignore_a_removed_folder_are_killed():
    scene = Scene(obeys=False)
    assert scene.run(gone=lambda now: now >= 20).killed
    assert 39 <= scene.kills[0] <= 41


def test_a_folder_that_comes_back_ends_nothing():
    scene = Scene(ends_at=60)
    scene.run(gone=lambda now: 20 <= now < 28)
    assert (scene.sent, scene.kills) == ([], [])


def test_a_node_whose_ranks_have_finished_does_not_wait_for_a_failed_one():
    scene = Scene(obeys=False, finished_at=2)
    outcome = scene.run(peer_at=3)
    (at,) = scene.kills
    assert 3 + 1 <= at <= 3 + 2
    assert (outcome.finished, outcome.killed, outcome.good, outcome.peer) == (True, False, True, PEER)
    assert scene.sent == []


def test_a_finished_node_waits_for_the_others_as_long_as_nothing_is_wrong():
    scene = Scene(ends_at=60, finished_at=2)
    outcome = scene.run()
    assert (outcome.finished, scene.kills) == (False, [])


def test_ranks_that_finish_while_a_peer_has_failed_are_noticed():
    scene = Scene(obeys=False, finished_at=6)
    assert scene.run(peer_at=3).finished
    assert 6 + 1 <= scene.kills[0] <= 6 + 3


def test_the_node_that_others_need_leaves_after_them():
    scene = Scene(obeys=False, finished_at=2, needed_until=7)
    assert scene.run(peer_at=3).finished
    assert 7 <= scene.kills[0] <= 7 + 2


def test_a_finished_node_that_is_needed_to_the_end_is_still_not_called_killed():
    scene = Scene(obeys=False, finished_at=2, needed_until=1000)
    outcome = scene.run(peer_at=3)
    assert (outcome.finished, outcome.killed) == (True, False)
    assert 3 + 5 + 10 <= scene.kills[0] <= 3 + 5 + 10 + 1


def test_a_signal_ends_a_finished_node_at_once():
    scene = Scene(obeys=False, finished_at=2, needed_until=1000)
    outcome = scene.run(interrupt(scene, 4))
    assert (outcome.finished, outcome.killed, outcome.interrupted) == (True, False, signal.SIGTERM)
    assert 4 + 1 <= scene.kills[0] <= 4 + 3


def bad(**fields):
    return RanksOutcome(**{"code": 1, "interrupted": None, "peer": None, "killed": False, **fields})


def test_the_word_to_end_may_come_after_the_end():
    scene = Scene()
    interrupts = interrupt(scene, 2)
    outcome = await_reason(bad(), interrupts, scene.around())
    assert (outcome.interrupted, outcome.peer) == (signal.SIGTERM, None)
    assert 2 <= scene.now < 3


def test_so_may_the_marker_of_a_peer():
    scene = Scene()
    assert await_reason(bad(), Interrupts(), scene.around(peer_at=1)).peer == PEER
    assert 1 <= scene.now < 2


def test_no_word_is_not_awaited_for_long():
    scene = Scene()
    assert await_reason(bad(), Interrupts(), scene.around()) == bad()
    assert 3 <= scene.now < 4


@pytest.mark.parametrize("known", [{"code": 0}, {"finished": True}, {"peer": PEER}])
def test_what_needs_no_explanation_waits_for_none(known):
    scene = Scene()
    assert await_reason(bad(**known), Interrupts(), scene.around(peer_at=1)) == bad(**known)
    assert scene.now == 0
