"""CPU time of a process and of all that it has started, by procfs: the job's, where no cgroup counts it."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

from aorta.artefacts.processes import process_stat
from aorta.units import NS_PER_S


class ProcessTree:
    """The process `root` and its descendants.

    Time of a process that has ended is in the one that waited for it, so that nothing is counted twice.
    """

    def __init__(self, root: int, proc: Path = Path("/proc")) -> None:
        self._root, self._proc = root, proc
        self._tick_ns = NS_PER_S // os.sysconf("SC_CLK_TCK")

    def cpu_ns(self) -> int | None:
        """Return the CPU time so far; None where the process has ended."""
        ticks: dict[int, int] = {}
        children: dict[int, list[int]] = defaultdict(list)
        for name in os.listdir(self._proc):  # noqa: PTH208 - one call per second, of thousands of names
            found = process_stat(int(name), self._proc) if name.isdigit() else None
            if found is not None:
                pid = int(name)
                ticks[pid] = found.cpu_ticks
                children[found.parent].append(pid)
        if self._root not in ticks:
            return None
        total, waiting = 0, [self._root]
        while waiting:
            pid = waiting.pop()
            total += ticks.pop(pid, 0)
            waiting += children.pop(pid, [])
        return total * self._tick_ns
