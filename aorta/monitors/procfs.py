"""The machine's counters out of procfs texts: pure functions of the text, None for what is not in it.

They are read from files kept open, because a sample must cost little: the same five values take psutil 1.0 ms
of CPU time at a sampler's pace (caches are cold by then), reads of open files 0.25 ms. Formats: proc(5), and
`Documentation/admin-guide/iostats.rst` of the Linux kernel.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from aorta.units import NS_PER_MS, NS_PER_US

SECTOR_BYTES = 512  # the unit of diskstats, whatever the disk's own sectors are


@dataclass(frozen=True, slots=True)
class CpuTicks:
    """Clock ticks of all CPUs together since boot."""

    busy: int
    total: int


def cpu_ticks(stat: str | None) -> CpuTicks | None:
    """The `cpu` line of /proc/stat: idle and iowait are not busy; guest time is part of user time already."""
    match = re.match(r"cpu +([\d ]+)", stat or "")
    if match is None:
        return None
    fields = [int(field) for field in match[1].split()[:8]]
    if len(fields) < 5:
        return None
    total = sum(fields)
    return CpuTicks(total - fields[3] - fields[4], total)


def busy_percent(before: CpuTicks | None, after: CpuTicks | None) -> float | None:
    """Share of all CPUs' time that was busy between two instants, 0 to 100; None when no tick passed."""
    if before is None or after is None or after.total <= before.total:
        return None
    share = (after.busy - before.busy) / (after.total - before.total)
    return round(100 * min(max(share, 0.0), 1.0), 2)  # iowait may run backwards


@dataclass(frozen=True, slots=True)
class MachineMemory:
    """Bytes of the machine; in use is what no process could get without swapping."""

    used: int | None
    total: int | None
    swap_used: int | None


def memory(meminfo: str | None) -> MachineMemory:
    """/proc/meminfo: used = MemTotal - MemAvailable."""
    kib = {key: int(value) for key, value in re.findall(r"^(\w+): +(\d+) kB$", meminfo or "", re.MULTILINE)}

    def used(total: str, free: str) -> int | None:
        return 1024 * (kib[total] - kib[free]) if total in kib and free in kib else None

    total = 1024 * kib["MemTotal"] if "MemTotal" in kib else None
    return MachineMemory(used("MemTotal", "MemAvailable"), total, used("SwapTotal", "SwapFree"))


def swap_bytes(vmstat: str | None, page_bytes: int) -> tuple[int | None, int | None]:
    """Bytes read from and written to swap since boot, by /proc/vmstat."""
    pages = dict(re.findall(r"^pswp(in|out) (\d+)$", vmstat or "", re.MULTILINE))
    came, went = (int(pages[way]) * page_bytes if way in pages else None for way in ("in", "out"))
    return came, went


def stall_ms(pressure: str | None) -> float | None:
    """Total time in which some process waited, by a pressure file (`Documentation/accounting/psi.rst`)."""
    match = re.search(r"^some .*total=(\d+)$", pressure or "", re.MULTILINE)
    return int(match[1]) * NS_PER_US / NS_PER_MS if match else None


def disk_bytes(diskstats: str | None, disks: Collection[str]) -> tuple[int | None, int | None]:
    """Bytes read from and written to `disks` together since boot."""
    rows = [line.split() for line in (diskstats or "").splitlines()]
    found = [row for row in rows if len(row) >= 10 and row[2] in disks]
    if not found:
        return None, None
    return SECTOR_BYTES * sum(int(row[5]) for row in found), SECTOR_BYTES * sum(int(row[9]) for row in found)


def network_bytes(net_dev: str | None, left_out: Collection[str]) -> tuple[int | None, int | None]:
    """Bytes sent and received since boot by all interfaces but `left_out`."""
    pairs = [line.rpartition(":") for line in (net_dev or "").splitlines() if ":" in line]
    found = [values.split() for name, _, values in pairs if name.strip() not in left_out]
    found = [values for values in found if len(values) >= 9]
    if not found:
        return None, None
    return sum(int(values[8]) for values in found), sum(int(values[0]) for values in found)
