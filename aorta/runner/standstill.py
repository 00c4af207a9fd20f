"""Notices that no rank of this node goes on, and keeps where each of them was.

Step records that stop growing raise the suspicion. It is confirmed only if two looks at the ranks' stacks,
some seconds apart, are the same, and no rank works meanwhile. A long compilation, validation or checkpoint
moves its stack, uses a CPU, or reads and writes.
"""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from aorta.artefacts.attached import NodeStandstill, NodeView, ProcessView, decoded
from aorta.artefacts.io import read_json, write_json
from aorta.artefacts.records import NodeInfo, Session
from aorta.config.schema import Config
from aorta.errors import ArtefactError
from aorta.runner.options import NodeOptions
from aorta.runner.stopped import StoppedRanks

_LOOK_S, _LOOKS = 2.0, 2
"""Length of a look, and looks that one process makes: starting it takes about as long as a look."""
_STARTING_S = 60.0
"""Until the first step record: imports and the first step take long."""
_INTERVALS = 1.5
"""Records come in blocks: times the longest wait for a block so far."""
_LONGEST_S = 120.0
_PAUSE_S = 5.0
_BUSY_CPUS = 0.1
_BUSY_IO = 1 << 20
_ON_GPUS = 16
"""Looks that have to agree on GPUs, where the host may wait for one long kernel."""


class StandstillWatch:
    """Watches the records of this node's ranks.

    Args:
        options: of the agent.
        ranks: of this node.
        limit_s: shortest time without a record that raises the suspicion; 0: nothing is watched.
        on_hang: command that is run once. Empty if there are none.
        environ: of that command.
        gpus: the node's ranks use GPUs.
        say: one line in the job's output.
    """

    def __init__(
        self,
        options: NodeOptions,
        ranks: Sequence[int],
        *,
        limit_s: float,
        on_hang: str,
        environ: Mapping[str, str],
        gpus: bool,
        say: Callable[[str], None],
    ) -> None:
        self._options, self._say, self._on_hang = options, say, on_hang
        self._stopped = StoppedRanks(options, ranks)
        self._files = [options.run_dir.records(rank) for rank in ranks]
        self._limit_s, self._environ = limit_s, dict(environ)
        self._needed = _ON_GPUS if gpus else _LOOKS
        self._sizes: list[int] | None = None
        self._last_s, self._last_wall_ns = time.monotonic(), time.time_ns()
        self._longest_s, self._pause_s, self._next_s = 0.0, _PAUSE_S, 0.0
        self._looking: subprocess.Popen[str] | None = None
        self._views: list[NodeView] = []
        self._told: NodeStandstill | None = None
        self._alarmed = False

    def look(self) -> None:
        """One turn, about every second; it asks for files' sizes and processes' states alone."""
        self._stopped.look()
        if not self._limit_s:
            return
        now = time.monotonic()
        if self._grew(now):
            self._went_on()
        elif self._told is not None:
            self._alarm(self._told)
        elif self._looking is not None:
            self._take()
        elif now - self._last_s > self._patience() and now >= self._next_s:
            self._looking = self._start()

    def close(self) -> None:
        """End a look that is under way."""
        self._stopped.close()
        if self._looking is not None:
            self._looking.kill()
            self._looking.communicate()

    def _grew(self, now: float) -> bool:
        sizes = [_size(path) for path in self._files]
        before, self._sizes = self._sizes, sizes
        if before is None or sizes == before:
            return False
        if sum(before):
            self._longest_s = max(self._longest_s, now - self._last_s)
        self._last_s, self._last_wall_ns = now, time.time_ns()
        return True

    def _patience(self) -> float:
        if not any(self._sizes or ()):
            return max(self._limit_s, _STARTING_S)
        return min(max(self._limit_s, _INTERVALS * self._longest_s), max(self._limit_s, _LONGEST_S))

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "aorta", "attach-node", "--job", self._options.job_id]
        command += ["--node-index", str(self._options.node_index), "--seconds", f"{_LOOK_S:g}"]
        command += ["--looks", str(_LOOKS)]
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def _take(self) -> None:
        assert self._looking is not None
        if self._looking.poll() is None:
            return
        output, _ = self._looking.communicate()
        self._looking = None
        views = [view for line in output.splitlines() if (view := decoded(line)) is not None]
        agree = bool(views)
        for view in views:
            agree = agree and stands_still(self._views[-1:], view)
            self._views = [*self._views, view] if agree else []
        if not agree:
            self._next_s = time.monotonic() + self._pause_s
            self._pause_s = min(2 * self._pause_s, _LONGEST_S)
        elif len(self._views) >= self._needed:
            self._tell(self._views[-1])

    def _tell(self, view: NodeView) -> None:
        self._told = NodeStandstill(
            node_index=self._options.node_index,
            attempt=self._options.attempt,
            since_wall_ns=self._last_wall_ns,
            seen_wall_ns=time.time_ns(),
            view=view,
        )
        self._write(self._told)

    def _alarm(self, told: NodeStandstill) -> None:
        """Say that the job stands still, once the ranks of every node do.

        The ranks of one node may wait for a rank of another node that works.
        """
        if self._alarmed or not all(self._stands(index) for index in range(self._options.nodes)):
            return
        self._alarmed = True
        seconds = (told.seen_wall_ns - told.since_wall_ns) / 1e9
        self._say(f"no rank of this node has made progress for {seconds:.0f} s; the report has their stacks")
        if self._on_hang and not self._options.node_index:
            with contextlib.suppress(OSError, ValueError):
                command = shlex.split(self._on_hang)
                subprocess.Popen(command, env=self._environ, stdin=subprocess.DEVNULL, start_new_session=True)
            self._on_hang = ""

    def _stands(self, index: int) -> bool:
        """True if the ranks of a node stand still in this attempt, as far as its agent knows."""
        try:
            told = read_json(self._options.run_dir.node(index).standstill, NodeStandstill)
        except (ArtefactError, OSError):
            return False
        return told.resumed_wall_ns is None and told.attempt == self._options.attempt

    def _went_on(self) -> None:
        self._views, self._pause_s, self._next_s = [], _PAUSE_S, 0.0
        if self._told is not None:
            self._write(msgspec.structs.replace(self._told, resumed_wall_ns=time.time_ns()))
            if self._alarmed:
                self._say("the ranks of this node make progress again")
            self._told, self._alarmed = None, False

    def _write(self, told: NodeStandstill) -> None:
        with contextlib.suppress(OSError):
            write_json(self._options.run_dir.node(self._options.node_index).standstill, told)


def watch_for(
    options: NodeOptions,
    session: Session,
    info: NodeInfo,
    config: Config,
    *,
    environ: Mapping[str, str],
    say: Callable[[str], None],
) -> StandstillWatch:
    """The watch over the ranks of one node of a run."""
    first = session.first_rank[options.node_index]
    return StandstillWatch(
        options,
        range(first, first + info.processes),
        limit_s=config.monitor.hang_after_s,
        on_hang=config.monitor.on_hang,
        environ=environ,
        gpus=bool(info.gpus),
        say=say,
    )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def stands_still(before: Sequence[NodeView], view: NodeView) -> bool:
    """True if no rank's stack moved within `view` and since the view before, and no rank worked meanwhile.

    A rank that waits in a collective may spin, so that its CPU time says nothing.
    """
    ranks = {item.pid: item for item in view.processes if item.role == "rank"}
    if not ranks or any(not _at_rest(item) for item in ranks.values()):
        return False
    for earlier in before:
        places = {item.pid: _place(item) for item in earlier.processes if item.role == "rank"}
        if places != {pid: _place(item) for pid, item in ranks.items()}:
            return False
    return True


def _at_rest(item: ProcessView) -> bool:
    # On a crowded node, a process that works all the time may get hardly any of it.
    busy = item.runs or item.cpu_seconds is None or item.cpu_seconds > _BUSY_CPUS * item.seconds
    moved = item.io_bytes is not None and item.io_bytes > _BUSY_IO
    return len(item.stacks) == 1 and not moved and (not busy or _waits(item))


def _place(item: ProcessView) -> object:
    return item.stacks[0].frames if item.stacks else None


def _waits(item: ProcessView) -> bool:
    """True if the innermost frame, apart from aorta's own, is torch's distributed code."""
    frames = [file for _, file, _ in item.stacks[0].frames if "aorta/instrument/" not in file]
    return bool(frames) and "torch/distributed/" in frames[-1]
