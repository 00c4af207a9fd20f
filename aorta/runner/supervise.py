"""Watching torchrun until it ends: signals forwarded, failures of other nodes followed, no hanging."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from aorta.runner.options import TimeLimits
from aorta.runner.peers import Peer
from aorta.runner.processes import Interrupts

_PAUSE_S = 0.1
_PEER_POLL_S = 1.0
_GONE_TICKS = 10
"""A folder that is absent so often in a row was removed; once could be a file server that starts again."""
_FORWARD_AFTER_S = 1.0
_TOLD = "death signal"
"""torchrun says so when a signal has reached it."""
_NEWS_S = 3.0
"""Seconds that the message that explains a bad end may be on its way."""


class SupervisedProcess(Protocol):
    """A process that is supervised: a `Child`, or a stand-in."""

    def poll(self) -> int | None:
        """Exit code, None while it runs."""

    def signal(self, signum: signal.Signals) -> None:
        """Signal its group."""

    def said(self, words: str) -> bool:
        """True if its recent output holds `words`."""


@dataclass(frozen=True, slots=True)
class RanksOutcome:
    """The way in which the node's ranks ended."""

    code: int
    """torchrun's returned code: negative for a signal."""
    interrupted: signal.Signals | None
    peer: Peer | None
    """The node whose end ended ours."""
    killed: bool
    """SIGKILL was needed to end ranks."""
    finished: bool = False
    """Every rank here had returned 0; torchrun only waited for the other nodes, and was ended so that it does
    not wait for one that never comes.
    """

    @property
    def good(self) -> bool:
        """Every rank of this node returned 0."""
        return self.code == 0 or self.finished


@dataclass(slots=True)
class SupervisionHooks:
    """Functions that the supervision asks and calls."""

    peer_failed: Callable[[], Peer | None]
    """Names another node of this attempt that ended badly."""
    ranks_finished: Callable[[], bool]
    """Returns True if all ranks of this node have returned 0 while torchrun still runs."""
    may_leave: Callable[[], bool]
    """Returns True if this node's torchrun is no longer needed."""
    kill: Callable[[], object]
    """Ends torchrun and all that it started."""
    tick: Callable[[], None]
    """Called about every second."""
    folder_gone: Callable[[], bool]
    """Returns True if the run's folder was removed: nothing measured from then on can be kept."""
    clock: Callable[[], float] = time.monotonic
    """Seconds."""
    sleep: Callable[[float], None] = time.sleep


class _Watch:
    """The state of one supervision; infinite times are those that have no reason yet."""

    def __init__(
        self, child: SupervisedProcess, interrupts: Interrupts, limits: TimeLimits, around: SupervisionHooks
    ) -> None:
        self.child, self.interrupts, self.limits, self.around = child, interrupts, limits, around
        self.peer: Peer | None = None
        self.send: signal.Signals | None = None
        self.send_at = self.kill_at = float("inf")
        self.next_tick = around.clock()
        self.finished_ticks = self.gone_ticks = 0
        self.killed = self.finished = False

    def look(self, now: float) -> None:
        """One turn while torchrun runs."""
        if self.interrupts.received is not None and self.send is None:
            # A lost terminal means: end; ranks know that by SIGTERM.
            hangup = self.interrupts.received == signal.SIGHUP
            self.send = signal.SIGTERM if hangup else self.interrupts.received
            self.send_at, self.kill_at = now + _FORWARD_AFTER_S, now + self.limits.grace_s
        if now >= self.next_tick:
            self.next_tick = now + _PEER_POLL_S
            self._tick(now)
        if now >= self.send_at:
            if not self.child.said(_TOLD):
                self.child.signal(self.send or signal.SIGTERM)
            self.send_at = float("inf")
        if now >= self.kill_at:
            self.finished = self.finished or self.around.ranks_finished()
            self.killed = not self.finished
            self.around.kill()
            self.kill_at = now + self.limits.grace_s

    def _tick(self, now: float) -> None:
        self.around.tick()
        self.gone_ticks = self.gone_ticks + 1 if self.around.folder_gone() else 0
        if self.gone_ticks == _GONE_TICKS and self.send_at == self.kill_at == float("inf"):
            self.send_at, self.kill_at = now, now + self.limits.grace_s
        if self.peer is None and self.send is None:
            self.peer = self.around.peer_failed()
            if self.peer is not None:
                self.send_at = now + self.limits.peer_grace_s
                self.kill_at = self.send_at + self.limits.grace_s
        if self.peer is None and self.send is None:
            return
        # Seen twice, so that a torchrun which is about to end by itself does.
        self.finished_ticks = self.finished_ticks + 1 if self.around.ranks_finished() else 0
        if self.finished_ticks > 1 and (self.send is not None or self.around.may_leave()):
            self.finished = True
            self.kill_at = now


def supervise(
    child: SupervisedProcess, interrupts: Interrupts, limits: TimeLimits, around: SupervisionHooks
) -> RanksOutcome:
    """Wait for `child` and see that it ends.

    A signal to the agent is passed on once, after a moment: Slurm signals every process of a step, so
    torchrun may have it already, and a second one would disturb its clean-up. A peer's failure gives the
    ranks here time to fail by themselves (their own message is better than ours), then torchrun gets
    SIGTERM, as it does where the run's folder was removed. Whatever still lives when the grace is over is
    killed. A torchrun whose ranks have all returned waits for the other nodes, deaf to signals: once there is
    a reason to end, it is ended at once.

    Args:
        child: torchrun.
        interrupts: what reached the agent.
        limits: grace times.
        around: what it asks and does besides.
    """
    watch = _Watch(child, interrupts, limits, around)
    while (code := child.poll()) is None:
        watch.look(around.clock())
        around.sleep(_PAUSE_S)
    return RanksOutcome(
        code, interrupts.received, watch.peer or around.peer_failed(), watch.killed, watch.finished
    )


def await_reason(outcome: RanksOutcome, interrupts: Interrupts, around: SupervisionHooks) -> RanksOutcome:
    """`outcome` with what explains a bad end, where that comes a moment later.

    Ranks that are told to end may end before their agent is told, and a rank whose peer was ended fails
    before that peer's node has said why.
    """
    deadline = around.clock() + _NEWS_S
    while not outcome.good and outcome.interrupted is None and outcome.peer is None:
        outcome = replace(outcome, interrupted=interrupts.received, peer=around.peer_failed())
        if around.clock() >= deadline:
            break
        around.sleep(_PAUSE_S)
    return outcome
