"""One sample of the host's CPUs, memory, disks and network, and of the job (its cgroup, or its processes).

Counters of disks and network are totals since boot. Disks are the physical ones (a volume over a disk is not
counted twice), network interfaces all but loopback, bridges and bonds; RDMA traffic does not pass the kernel
and is not in them.
"""

from __future__ import annotations

import os
from pathlib import Path

from aorta.monitors import procfs
from aorta.monitors.cgroup import JobUsage, OpenFile, cpu_limit, find_group, memory_limit_bytes
from aorta.monitors.infiniband import Ports
from aorta.monitors.output import Cell
from aorta.monitors.process_tree import ProcessTree
from aorta.units import BYTES_PER_GIB


class CpuSampler:
    """The measured cells of `artefacts.columns.CPU`, sample after sample.

    The first sample has no percentages: they are means since the sample before.

    Args:
        proc: where procfs is.
        sysfs: where sysfs is.
        root: the process below which all of the job's on this node are. None if not known. Their CPU time is
            taken where no cgroup is the job's.
    """

    def __init__(
        self, proc: Path = Path("/proc"), sysfs: Path = Path("/sys"), root: int | None = None
    ) -> None:
        memory, cpu, cpuacct = (find_group(name, proc / "self") for name in ("memory", "cpu", "cpuacct"))
        self._job = JobUsage(memory, cpuacct)
        self._tree = ProcessTree(root, proc) if root is not None and cpuacct is None else None
        self._memory_limit = memory_limit_bytes(memory)
        self._cpus_usable = _usable(cpu_limit(cpu))
        self._disks = frozenset(path.parent.name for path in sysfs.glob("block/*/device"))
        doubles = [path for kind in ("bridge", "bonding") for path in sysfs.glob(f"class/net/*/{kind}")]
        self._links_left_out = frozenset({"lo"} | {path.parent.name for path in doubles})
        names = ("stat", "meminfo", "diskstats", "self/net/dev", "vmstat", "pressure/memory")
        self._files = tuple(OpenFile(proc / name) for name in names)
        self._ports = Ports(sysfs)
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._last_ticks: procfs.CpuTicks | None = None
        self._last_cpu: tuple[int, int] | None = None

    def sample(self, mono_ns: int) -> dict[str, Cell]:
        """The measured cells by the name of their column. None if not measured."""
        stat, meminfo, diskstats, net, vmstat, pressure = (file.read() for file in self._files)
        ticks, memory, job = procfs.cpu_ticks(stat), procfs.memory(meminfo), self._job.memory()
        percent = procfs.busy_percent(self._last_ticks, ticks)
        # Two samples within one clock tick: the next percentage covers both.
        self._last_ticks = ticks if percent is not None or self._last_ticks is None else self._last_ticks
        read, written = procfs.disk_bytes(diskstats, self._disks)
        sent, received = procfs.network_bytes(net, self._links_left_out)
        ib_sent, ib_received = self._ports.bytes()
        swapped_in, swapped_out = procfs.swap_bytes(vmstat, self._page_bytes)
        used, total = memory.used, memory.total
        return {
            "cpu_percent": percent,
            "memory_percent": round(100 * used / total, 2) if used is not None and total else None,
            "memory_used_gb": _gib(used),
            "memory_total_gb": _gib(total),
            "job_cpu_percent": self._job_cpu_percent(mono_ns),
            "job_memory_used_bytes": job.used_bytes,
            "job_memory_limit_bytes": self._memory_limit,
            "cpus_usable": self._cpus_usable,
            "disk_read_bytes": read,
            "disk_write_bytes": written,
            "net_sent_bytes": sent,
            "net_recv_bytes": received,
            "swap_used_bytes": memory.swap_used,
            "swap_in_bytes": swapped_in,
            "swap_out_bytes": swapped_out,
            "job_swap_used_bytes": job.swap_bytes,
            "job_memory_limit_hits": job.limit_hits,
            "ib_sent_bytes": ib_sent,
            "ib_recv_bytes": ib_received,
            "memory_stall_ms": procfs.stall_ms(self._job.pressure() or pressure),
        }

    def close(self) -> None:
        """Close what is kept open."""
        self._job.close()
        self._ports.close()
        for file in self._files:
            file.close()

    def _job_cpu_percent(self, mono_ns: int) -> float | None:
        """CPU time of the job over wall time since the sample before: 100 is one full core."""
        now = self._tree.cpu_ns() if self._tree is not None else self._job.cpu_ns()
        last, self._last_cpu = self._last_cpu, (mono_ns, now) if now is not None else None
        if last is None or now is None or mono_ns <= last[0]:
            return None
        return round(100 * (now - last[1]) / (mono_ns - last[0]), 2)


def _gib(value: int | None) -> float | None:
    return round(value / BYTES_PER_GIB, 4) if value is not None else None


def _usable(quota: float | None) -> float:
    """CPUs that this process may use: its affinity, or the cgroup's quota where that is smaller."""
    allowed = len(os.sched_getaffinity(0))
    return min(allowed, quota) if quota is not None else allowed
