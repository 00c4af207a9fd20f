"""Tells how the other nodes ended, and whether their agents still live."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from aorta.artefacts.agents import is_gone
from aorta.artefacts.io import read_json
from aorta.artefacts.layout import RunDir
from aorta.artefacts.records import NodeStatus, RunStatus, State
from aorta.errors import ArtefactError
from aorta.runner.options import NodeOptions

_ENDED_BADLY = ("failed", "cancelled", "timeout")
_BEAT_S = 5.0
_BEATS_IN_SILENCE = 6
"""Fewer missing beats could be a slow file server."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Another node that ended badly."""

    node_index: int
    host: str
    state: State
    silent_s: float | None = None
    """Its marker says that it runs, but its agent has given no sign of life for so long."""

    gone: bool = False
    """Its agent was killed, as this machine tells."""

    def __str__(self) -> str:
        if self.gone:
            return f"node {self.node_index}'s agent ({self.host}) was killed"
        if self.silent_s is not None:
            return f"node {self.node_index}'s agent ({self.host}) went silent for {self.silent_s:g} s"
        return f"node {self.node_index} ({self.host}) ended earlier: {self.state}"


def failed_peer(run: RunDir, attempt: int, own: int) -> Peer | None:
    """Another node of this attempt that ended badly, by the merged markers: one file to read, not
    N.
    """
    merged = _merged(run, attempt)
    for node in merged.nodes if merged is not None else ():
        if node.node_index != own and node.state in _ENDED_BADLY:
            return Peer(node.node_index, node.host, node.state)
    return None


def others_ended(run: RunDir, attempt: int, own: int) -> bool:
    """True if every other node of this attempt has said how it ended."""
    merged = _merged(run, attempt)
    if merged is None or set(merged.nodes_missing) - {own}:
        return False
    return all(node.state != "running" for node in merged.nodes if node.node_index != own)


def _merged(run: RunDir, attempt: int) -> RunStatus | None:
    with contextlib.suppress(ArtefactError):
        merged = read_json(run.status, RunStatus)
        return merged if merged.attempt == attempt else None
    return None


class Heartbeat:
    """Shows that this agent lives by touching its marker, and watches one other agent in the same way.

    Every node watches the next one, the last one the first, so each death is noticed by one, whose own end
    tells the rest; the cost does not grow with the number of nodes. Only whether a marker *changes* counts,
    by this node's clock: clocks of file server and nodes may differ. Time in which this agent did not run
    itself (a suspended job, a file server that hangs) does not count as the other's silence.

    Args:
        options: of this agent.
        silence_s: without a change for so long the other agent is taken for dead.
        clock: seconds.
    """

    def __init__(
        self, options: NodeOptions, silence_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        run = options.run_dir
        self._attempt = options.attempt
        self._own = run.node(options.node_index).status
        self._watched = run.node((options.node_index + 1) % options.nodes).status
        self._alone = options.nodes == 1
        self._silence_s = silence_s
        self._every_s = min(_BEAT_S, silence_s / _BEATS_IN_SILENCE)
        self._clock = clock
        self._next = self._looked = clock()
        self._seen: int | None = None
        self._quiet_s = 0.0
        self._silent: Peer | None = None

    def beat(self) -> None:
        """Touch this node's marker and look at the watched one; does nothing until the next beat is due."""
        now = self._clock()
        if now < self._next or self._alone:
            return
        self._next = now + self._every_s
        with contextlib.suppress(OSError):
            os.utime(self._own)
        self._look(self._clock())

    def silent(self) -> Peer | None:
        """The watched agent, once it is taken for dead."""
        return self._silent

    def _look(self, now: float) -> None:
        passed, self._looked = min(now - self._looked, 2 * self._every_s), now
        try:
            # Reading opens the file, which makes a network filesystem ask the server for its times again.
            status = read_json(self._watched, NodeStatus)
            changed = self._watched.stat().st_mtime_ns
        except (ArtefactError, OSError):
            return
        self._quiet_s = self._quiet_s + passed if changed == self._seen else 0.0
        self._seen = changed
        running = status.state == "running" and status.attempt == self._attempt
        if running and is_gone(status.agent):
            self._silent = Peer(status.node_index, status.host, "failed", gone=True)
            return
        dead = running and self._quiet_s >= self._silence_s
        self._silent = Peer(status.node_index, status.host, "failed", self._silence_s) if dead else None
