"""CPU time of a process and of all that it has started, by procfs: the job's, where no cgroup counts it."""

from __future__ import annotations

import os
from pathlib import Path

from aorta.artefacts.processes import ProcessTable
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
        # One call per second, of thousands of names.
        pids = [int(name) for name in os.listdir(self._proc) if name.isdigit()]  # noqa: PTH208
        family = ProcessTable(pids, self._proc).family(self._root)
        return sum(found.cpu_ticks for found in family.values()) * self._tick_ns if family else None
