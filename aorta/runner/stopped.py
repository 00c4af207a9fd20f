"""Notices that the process of a rank cannot run: it was stopped, or waits for a disk or for memory.

Step records tell that a step was long. Where all ranks wait for each other, they do not tell whose process
stood still. The kernel does.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import psutil

from aorta.artefacts.io import write_json
from aorta.artefacts.processes import process_stat
from aorta.artefacts.stops import NodeStops, Standing, Stop
from aorta.runner.options import NodeOptions

_STATES: dict[str, Standing] = {"T": "stopped", "t": "stopped", "D": "blocked"}
_SEARCH_S = 5.0
"""Between two searches for the processes of ranks."""
_MOST = 1000
"""Stops that are kept of one node."""


class StoppedRanks:
    """Looks at the state of each rank's process, and keeps when it could not run.

    Args:
        options: of the agent.
        ranks: of this node.
        now: the wall clock, in ns.
        proc: where procfs is.
    """

    def __init__(
        self,
        options: NodeOptions,
        ranks: Sequence[int],
        now: Callable[[], int] = time.time_ns,
        proc: Path = Path("/proc"),
    ) -> None:
        self._options, self._ranks, self._now, self._proc = options, set(ranks), now, proc
        self._pids: dict[int, int] = {}
        self._open: dict[int, Stop] = {}
        self._ended: list[Stop] = []
        self._next_s = 0.0

    def look(self) -> None:
        """One turn, about every second: one small file of procfs per rank is read."""
        self._search()
        at = self._now()
        for rank, pid in list(self._pids.items()):
            found = process_stat(pid, self._proc)
            if found is None:
                del self._pids[rank]
            self._note(rank, _STATES.get(found.state) if found is not None else None, at)

    def close(self) -> None:
        """Take a last look: what still stands is kept."""
        self.look()
        for rank in list(self._open):
            self._note(rank, None, self._now())

    def _note(self, rank: int, state: Standing | None, at: int) -> None:
        running = self._open.get(rank)
        if running is not None and running.state == state:
            self._open[rank] = msgspec.structs.replace(running, to_wall_ns=at)
            return
        if running is not None:
            del self._open[rank]
            # A wait that one look alone saw is any read of a file.
            if (running.state == "stopped" or running.to_wall_ns > running.from_wall_ns) and (
                len(self._ended) < _MOST
            ):
                self._ended.append(running)
                self._write()
        if state is not None:
            self._open[rank] = Stop(rank=rank, state=state, from_wall_ns=at, to_wall_ns=at)

    def _write(self) -> None:
        own = self._options
        told = NodeStops(node_index=own.node_index, attempt=own.attempt, stops=self._ended)
        with contextlib.suppress(OSError):
            write_json(own.run_dir.node(own.node_index).stops, told)

    def _search(self) -> None:
        now = time.monotonic()
        if now < self._next_s or self._ranks <= self._pids.keys():
            return
        self._next_s = now + _SEARCH_S
        for process in _below():  # parents before their children
            rank = _rank(process)
            if rank in self._ranks and rank not in self._pids:
                self._pids[rank] = process.pid


def _below() -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return psutil.Process().children(recursive=True)
    return []


def _rank(process: psutil.Process) -> int | None:
    """Return the rank of a process that runs Python. None if it is none, such as a profiler around one."""
    with contextlib.suppress(psutil.Error, OSError):
        if "python" not in Path(process.exe()).name:
            return None
        text = process.environ().get("RANK", "")
        return int(text) if text.isdigit() else None
    return None
