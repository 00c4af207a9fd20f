"""One sample of the host's CPUs, memory, disks and network, and of the job's cgroup.

Counters of disks and network are totals since boot. Disks are the physical ones (a volume over a disk is not
counted twice), network interfaces all but loopback, bridges and bonds; traffic of RDMA does not pass the
kernel and is not in them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import psutil

from aorta.monitors.cgroup import JobUsage, cpu_limit, find_group, memory_limit_bytes
from aorta.units import BYTES_PER_GIB

Cell = str | int | float | None


class CpuSampler:
    """The values of `CPU_COLUMNS` after `mono_ns` and before `hostname`, sample after sample.

    The first sample has no percentages: they are means since the sample before.
    """

    def __init__(self, proc: Path = Path("/proc/self"), sysfs: Path = Path("/sys")) -> None:
        memory, cpu, cpuacct = (find_group(name, proc) for name in ("memory", "cpu", "cpuacct"))
        self._job = JobUsage(memory, cpuacct)
        self._memory_limit = memory_limit_bytes(memory)
        self._cpus_usable = _usable(cpu_limit(cpu))
        self._disks = frozenset(path.parent.name for path in sysfs.glob("block/*/device"))
        self._interfaces_off = frozenset(
            {"lo"}
            | {
                path.parent.name
                for kind in ("bridge", "bonding")
                for path in sysfs.glob(f"class/net/*/{kind}")
            }
        )
        self._last_cpu: tuple[int, int] | None = None
        self._first = True

    def sample(self, mono_ns: int) -> tuple[list[Cell], list[Cell]]:
        """The cells before and those after the identity columns, for an instant `mono_ns`."""
        percent = psutil.cpu_percent(None)
        memory = psutil.virtual_memory()
        used = memory.total - memory.available
        before: list[Cell] = [
            None if self._first else percent,
            round(100 * used / memory.total, 2),
            round(used / BYTES_PER_GIB, 4),
            round(memory.total / BYTES_PER_GIB, 4),
        ]
        self._first = False
        after: list[Cell] = [
            self._job_cpu_percent(mono_ns),
            self._job.memory_used_bytes(),
            self._memory_limit,
            self._cpus_usable,
            *self._disk(),
            *self._network(),
            psutil.swap_memory().used,
        ]
        return before, after

    def close(self) -> None:
        """Close what is kept open."""
        self._job.close()

    def _job_cpu_percent(self, mono_ns: int) -> float | None:
        """CPU time of the job over wall time since the sample before: 100 is one full core."""
        now = self._job.cpu_ns()
        last, self._last_cpu = self._last_cpu, (mono_ns, now) if now is not None else None
        if last is None or now is None or mono_ns <= last[0]:
            return None
        return round(100 * (now - last[1]) / (mono_ns - last[0]), 2)

    def _disk(self) -> Sequence[int | None]:
        counters = psutil.disk_io_counters(perdisk=True, nowrap=False) if self._disks else {}
        disks = [value for name, value in counters.items() if name in self._disks]
        return (
            (sum(d.read_bytes for d in disks), sum(d.write_bytes for d in disks)) if disks else (None, None)
        )

    def _network(self) -> Sequence[int | None]:
        counters = psutil.net_io_counters(pernic=True, nowrap=False)
        links = [value for name, value in counters.items() if name not in self._interfaces_off]
        return (sum(n.bytes_sent for n in links), sum(n.bytes_recv for n in links)) if links else (None, None)


def _usable(quota: float | None) -> float:
    """CPUs that this process may use: its affinity, or the cgroup's quota where that is smaller."""
    allowed = len(os.sched_getaffinity(0))
    return min(allowed, quota) if quota is not None else allowed
