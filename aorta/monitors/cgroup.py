"""CPU and memory of the job by its cgroup, version 1 or 2.

The job's cgroup is the one of this process; below a Slurm job it is the job's level (`job_<id>`), so that the
steps of the job count together. Where this process has no cgroup below the root there is nothing that is the
job's alone: every value is None. Documents: `Documentation/admin-guide/cgroup-v2.rst` and `cgroup-v1/` of the
Linux kernel.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from aorta.units import BYTES_PER_MIB, NS_PER_US

_UNLIMITED = 1 << 62  # version 1 writes "no limit" as the largest multiple of the page size
_OCTAL = re.compile(r"\\(\d{3})")


class OpenFile:
    """A file of procfs or cgroupfs kept open: no search for its name at each sample."""

    def __init__(self, path: Path) -> None:
        self._fd: int | None = None
        with contextlib.suppress(OSError):
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> str | None:
        """The content now, None where there is no such file or the cgroup is gone."""
        if self._fd is None:
            return None
        data = b""
        try:
            # Tables of many records come a page at a time, however much is asked for.
            while chunk := os.pread(self._fd, 1 << 16, len(data)):
                data += chunk
        except OSError:
            return None
        return data.decode("ascii", "replace")

    def close(self) -> None:
        """Give the descriptor back."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


@dataclass(frozen=True, slots=True)
class CgroupFolder:
    """A folder of one cgroup hierarchy, with the folders above it, nearest first."""

    folder: Path
    above: tuple[Path, ...]
    version: int

    def levels(self) -> tuple[Path, ...]:
        """The folder and those above it: a limit of any of them binds."""
        return (self.folder, *self.above)


def find_group(controller: str, proc: Path = Path("/proc/self")) -> CgroupFolder | None:
    """The job's cgroup in the hierarchy that holds `controller` (`memory`, `cpu`, `cpuacct`); None at the
    root.

    Version 1 wins where it holds the controller: a hybrid system mounts both.
    """
    try:
        own = dict(_own(proc.joinpath("cgroup").read_text()))
        mounts = dict(_mounts(proc.joinpath("mountinfo").read_text()))
    except OSError:
        return None
    for key, version in ((controller, 1), ("", 2)):
        if key in own and key in mounts:
            return _group(own[key], *mounts[key], version)
    return None


def _own(text: str) -> Iterator[tuple[str, str]]:
    """Controller (empty for version 2) and path of each line of /proc/<pid>/cgroup."""
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            yield controller, path


def _mounts(text: str) -> Iterator[tuple[str, tuple[str, Path]]]:
    """Controller, root within the hierarchy, and mount point of each cgroup mount of mountinfo."""
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or len(kind) < 3:
            continue
        place = (_plain(fields[3]), Path(_plain(fields[4])))
        if kind[0] == "cgroup2":
            yield "", place
        elif kind[0] == "cgroup":
            for controller in kind[2].split(","):
                yield controller, place


def _plain(text: str) -> str:
    """Mountinfo without its octal escapes."""
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)


def _group(path: str, root: str, mount: Path, version: int) -> CgroupFolder | None:
    inside = os.path.relpath(path, root)
    if inside.startswith(".."):  # the mount shows another part of the hierarchy, or a namespace hides ours
        return None
    parts = [] if inside == "." else inside.split("/")
    level = _job_level(parts)
    folders = [mount.joinpath(*parts[:depth]) for depth in range(level + 1, -1, -1)]
    # A mount point is a group of its own inside a container; the true root is the whole machine.
    contained = root != "/" or (version == 2 and (mount / "memory.current").exists())
    if not parts and not contained:
        return None
    return CgroupFolder(folders[0], tuple(folders[1:]), version) if folders[0].is_dir() else None


def _job_level(parts: Sequence[str]) -> int:
    """The place of the job in a path: `job_<id>`, else what is above `step_<id>`, else the last part.

    Slurm 26 names the job's level after an id of its own.
    """
    jobs = [place for place, part in enumerate(parts) if re.fullmatch(r"job_\d+", part)]
    steps = [place - 1 for place, part in enumerate(parts) if place and re.fullmatch(r"step_\w+", part)]
    return (jobs or steps or [len(parts) - 1])[-1 if jobs else 0]


def memory_limit_bytes(
    group: CgroupFolder | None, environment: Mapping[str, str] | None = None
) -> int | None:
    """The smallest limit of the group and those above it; where none shows, what Slurm gave the job per node.

    A container may mount its own level alone, which has no limit.
    """
    requested = _by_slurm(os.environ if environment is None else environment)
    if group is None:
        return requested
    name = "memory.limit_in_bytes" if group.version == 1 else "memory.max"
    found = [_integer(_once(folder / name)) for folder in group.levels()]
    limits = [value for value in found if value is not None and value < _UNLIMITED]
    return min(limits, default=requested)


def _by_slurm(environment: Mapping[str, str]) -> int | None:
    """The memory of the job on this node, by the variables that Slurm sets; None outside of a job."""
    per_node = _integer(environment.get("SLURM_MEM_PER_NODE"))
    per_cpu = _integer(environment.get("SLURM_MEM_PER_CPU"))
    cpus = _integer(environment.get("SLURM_CPUS_ON_NODE"))
    if not per_node and per_cpu and cpus:
        per_node = per_cpu * cpus
    return per_node * BYTES_PER_MIB if per_node else None


def cpu_limit(group: CgroupFolder | None) -> float | None:
    """CPUs that the quotas of the group and those above it allow: the smallest quota over its period."""
    if group is None:
        return None
    found = [_quota(folder, group.version) for folder in group.levels()]
    return min((value for value in found if value is not None), default=None)


def _quota(folder: Path, version: int) -> float | None:
    if version == 1:
        quota, period = _once(folder / "cpu.cfs_quota_us"), _once(folder / "cpu.cfs_period_us")
    else:
        quota, _, period = (_once(folder / "cpu.max") or "").partition(" ")
    allowed, window = _integer(quota), _integer(period)
    return allowed / window if allowed is not None and window and allowed > 0 else None


def _once(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None


def _integer(text: str | None) -> int | None:
    try:
        return int(text) if text is not None else None
    except ValueError:  # "max"
        return None


def _entry(text: str | None, key: str) -> int | None:
    """The number after `key` in a file of `key number` lines."""
    match = re.search(rf"^{key} (\d+)$", text, re.MULTILINE) if text is not None else None
    return int(match[1]) if match else None


def _now(file: OpenFile | None) -> str | None:
    return file.read() if file is not None else None


@dataclass(frozen=True, slots=True)
class JobMemory:
    """One reading of the job's cgroup; None where it does not tell."""

    used_bytes: int | None = None
    """Without file pages that the kernel can drop: current - inactive_file."""
    swap_bytes: int | None = None
    limit_hits: int | None = None
    """Number of times that the group's own limit made the kernel take pages back, so far."""


class JobUsage:
    """CPU time and memory of the job's cgroups, read again and again."""

    def __init__(self, memory: CgroupFolder | None, cpuacct: CgroupFolder | None) -> None:
        def opened(group: CgroupFolder | None, v1: str, v2: str) -> OpenFile | None:
            return OpenFile(group.folder / (v1 if group.version == 1 else v2)) if group is not None else None

        self._current = opened(memory, "memory.usage_in_bytes", "memory.current")
        self._stat = opened(memory, "memory.stat", "memory.stat")
        self._hits = opened(memory, "memory.failcnt", "memory.events")
        # Version 1 has the swap in memory.stat, and no pressure of a group.
        second = memory if memory is not None and memory.version == 2 else None
        self._swap, self._pressure = (
            opened(second, "", f"memory.{of}") for of in ("swap.current", "pressure")
        )
        self._memory_version = memory.version if memory is not None else None
        self._cpu = opened(cpuacct, "cpuacct.usage", "cpu.stat")
        self._cpu_version = cpuacct.version if cpuacct is not None else None

    def memory(self) -> JobMemory:
        """The job's memory now."""
        if self._current is None or self._stat is None or self._hits is None:
            return JobMemory()
        current, stat, hits = _integer(self._current.read()), self._stat.read(), self._hits.read()
        first = self._memory_version == 1
        inactive = _entry(stat, "total_inactive_file" if first else "inactive_file")
        used = max(current - inactive, 0) if current is not None and inactive is not None else None
        return JobMemory(
            used_bytes=used,
            swap_bytes=_entry(stat, "total_swap") if first else _integer(_now(self._swap)),
            limit_hits=_integer(hits) if first else _entry(hits, "max"),
        )

    def pressure(self) -> str | None:
        """The group's memory.pressure."""
        return _now(self._pressure)

    def cpu_ns(self) -> int | None:
        """CPU time of all the job's processes so far."""
        if self._cpu is None:
            return None
        text = self._cpu.read()
        if self._cpu_version == 1:
            return _integer(text)
        microseconds = _entry(text, "usage_usec")
        return microseconds * NS_PER_US if microseconds is not None else None

    def close(self) -> None:
        """Close the files."""
        for file in (self._current, self._stat, self._hits, self._swap, self._pressure, self._cpu):
            if file is not None:
                file.close()
