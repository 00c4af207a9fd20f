"""Watching torchrun until it ends: signals forwarded, failures of other nodes followed, no hanging."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from aorta.artefacts.io import read_json
from aorta.artefacts.layout import RunDir
from aorta.artefacts.records import RunStatus, State
from aorta.errors import ArtefactError
from aorta.runner.options import Limits
from aorta.runner.processes import Interrupts

_PAUSE_S = 0.1
_PEER_POLL_S = 1.0
_FORWARD_AFTER_S = 1.0
_TOLD = "death signal"
"""torchrun says so when a signal has reached it."""
_ENDED_BADLY = ("failed", "cancelled", "timeout")


class Watched(Protocol):
    """What is supervised: a `Child`, or a stand-in."""

    def poll(self) -> int | None:
        """Exit code, None while it runs."""

    def signal(self, signum: signal.Signals) -> None:
        """Signal its group."""

    def said(self, words: str) -> bool:
        """Whether its recent output holds `words`."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Another node that ended badly."""

    node_index: int
    host: str
    state: State

    def __str__(self) -> str:
        return f"node {self.node_index} ({self.host}) ended before: {self.state}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the node's ranks ended."""

    code: int
    """torchrun's returned code: negative for a signal."""
    interrupted: signal.Signals | None
    peer: Peer | None
    """The node whose end ended ours."""
    killed: bool
    """SIGKILL was needed."""


def supervise(
    child: Watched,
    interrupts: Interrupts,
    limits: Limits,
    *,
    peer_failed: Callable[[], Peer | None],
    kill: Callable[[], object],
    tick: Callable[[], None],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Outcome:
    """Wait for `child` and see that it ends.

    A signal to the agent is passed on once, after a moment: Slurm signals every process of a step, so
    torchrun may have it already, and a second one would disturb its clean-up. A peer's failure gives the
    ranks here time to fail by themselves (their own message is better than ours), then torchrun gets
    SIGTERM. Whatever still lives when the grace is over is killed.

    Args:
        child: torchrun.
        interrupts: what reached the agent.
        limits: grace times.
        peer_failed: names another node of this attempt that ended badly.
        kill: ends torchrun and all that it started.
        tick: called about every second.
        clock: seconds.
        sleep: waits that many seconds.
    """
    peer: Peer | None = None
    killed = False
    send: signal.Signals | None = None
    send_at = kill_at = float("inf")
    next_tick = clock()
    while (code := child.poll()) is None:
        now = clock()
        if interrupts.received is not None and send is None:
            # A lost terminal means: end; ranks know that by SIGTERM.
            hangup = interrupts.received == signal.SIGHUP
            send = signal.SIGTERM if hangup else interrupts.received
            send_at, kill_at = now + _FORWARD_AFTER_S, now + limits.grace_s
        if now >= next_tick:
            next_tick = now + _PEER_POLL_S
            tick()
            if peer is None and send is None:
                peer = peer_failed()
                if peer is not None:
                    send_at, kill_at = now + limits.peer_grace_s, now + limits.peer_grace_s + limits.grace_s
        if now >= send_at:
            if not child.said(_TOLD):
                child.signal(send or signal.SIGTERM)
            send_at = float("inf")
        if now >= kill_at:
            kill()
            killed, kill_at = True, now + limits.grace_s
        sleep(_PAUSE_S)
    return Outcome(code, interrupts.received, peer or peer_failed(), killed)


def failed_peer(run: RunDir, attempt: int, own: int) -> Peer | None:
    """Another node of this attempt that ended badly, by the merged markers: one file to read, not
    N.
    """
    with contextlib.suppress(ArtefactError):
        merged = read_json(run.status, RunStatus)
        if merged.attempt == attempt:
            for node in merged.nodes:
                if node.node_index != own and node.state in _ENDED_BADLY:
                    return Peer(node.node_index, node.host, node.state)
    return None


def hit_time_limit(environ: Mapping[str, str], node_index: int, limits: Limits, now_s: float) -> bool:
    """Whether the signal that just arrived means the job's time limit.

    Slurm's own end time decides where it is in the environment; where it is not (older Slurm), node 0 asks
    squeue.
    """
    end = environ.get("SLURM_JOB_END_TIME", "")
    if end.isdigit():
        return int(end) - now_s <= limits.signal_lead_s
    job = environ.get("SLURM_JOB_ID", "")
    if not job or node_index != 0:
        return False
    try:
        answer = subprocess.run(
            ["squeue", "-h", "-j", job, "-o", "%T|%L"],
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
            stdin=subprocess.DEVNULL,
        ).stdout
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return False
    return limit_by_squeue(answer, limits.signal_lead_s)


def limit_by_squeue(answer: str, lead_s: float) -> bool:
    """The same from `squeue -o '%T|%L'`: no time left, or running with little left.

    A job that was cancelled is completing when the signal comes, however little time it had left.
    """
    state, _, left = answer.strip().partition("|")
    seconds = _parse_left(left)
    if seconds is None:
        return False
    return seconds <= 0 or (state == "RUNNING" and seconds <= lead_s)


def _parse_left(text: str) -> int | None:
    """Seconds of Slurm's `[days-][hours:]minutes:seconds`; None for UNLIMITED and the like."""
    days, _, clock = text.rpartition("-")
    parts = clock.split(":")
    if not all(part.isdigit() for part in parts) or (days and not days.isdigit()):
        return None
    seconds = 0
    for part in parts:
        seconds = seconds * 60 + int(part)
    return int(days or 0) * 86400 + seconds
