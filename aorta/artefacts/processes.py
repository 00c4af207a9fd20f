"""Reads what the kernel says of processes in `/proc/<pid>/stat` (proc(5))."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_STATE, _PARENT, _TIMES, _START = 0, 1, slice(11, 15), 19
"""Places behind the name, which stands in parentheses and may hold anything."""


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """One reading of a process."""

    state: str
    """The kernel's letter: R runs, S sleeps, D waits for a device, T is stopped, Z and X have ended."""
    parent: int
    cpu_ticks: int
    """CPU time of the process and of the children that it has waited for, in clock ticks."""
    start_ticks: int
    """Clock ticks from boot to its start."""


def process_stat(pid: int, proc: Path = Path("/proc")) -> ProcessStat | None:
    """Returns what the kernel says of a process; None where there is none."""
    try:
        text = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return ProcessStat(
        state=fields[_STATE],
        parent=int(fields[_PARENT]),
        cpu_ticks=sum(map(int, fields[_TIMES])),
        start_ticks=int(fields[_START]),
    )


def started(pid: int) -> int | None:
    """Returns when the process `pid` started, in clock ticks since boot; None where it does not run.

    Together with the id this is one process for good: ids are given again, and wall clocks are set.
    """
    found = process_stat(pid)
    return None if found is None or found.state in {"Z", "X"} else found.start_ticks


class ProcessTable:
    """One reading of many processes, and who started whom.

    Args:
        pids: ids of processes; the ones that have ended are left out.
        proc: where procfs is.
    """

    def __init__(self, pids: Iterable[int], proc: Path = Path("/proc")) -> None:
        self._stats = {pid: found for pid in pids if (found := process_stat(pid, proc)) is not None}
        self._children: defaultdict[int, list[int]] = defaultdict(list)
        for pid, found in self._stats.items():
            self._children[found.parent].append(pid)

    def family(self, root: int) -> dict[int, ProcessStat]:
        """Returns a process and its living descendants; empty where it has ended."""
        found: dict[int, ProcessStat] = {}
        ahead = [root] if root in self._stats else []
        while ahead:
            pid = ahead.pop()
            if pid not in found:
                found[pid] = self._stats[pid]
                ahead += self._children[pid]
        return found
