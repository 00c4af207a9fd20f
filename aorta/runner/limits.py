"""What the job may use of this machine: CPUs by affinity and cgroup quota, memory by cgroup limit."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

_UNLIMITED_V1 = 1 << 60
"""cgroup v1 writes a page-rounded 2**63 where there is no limit."""


def cpus_usable(root: Path = Path("/")) -> int:
    """CPUs of this process's affinity mask, or the whole CPUs of the tightest cgroup quota if that is less;
    at least 1.

    Args:
        root: where /proc and /sys are.
    """
    count = len(os.sched_getaffinity(0))
    quotas = list(_cpu_quotas(root))
    return max(1, min([count, *(math.floor(quota) for quota in quotas)]))


def memory_limit_bytes(root: Path = Path("/")) -> int | None:
    """The tightest memory limit of this process's cgroup and its ancestors; None where none is set."""
    limits = []
    for folder in _folders(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = _read(folder / name)
            if text.isdigit() and int(text) < _UNLIMITED_V1:
                limits.append(int(text))
    return min(limits, default=None)


def _cpu_quotas(root: Path) -> Iterator[float]:
    for folder in _folders(root, "cpu"):
        words = _read(folder / "cpu.max").split()
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]) > 0:
            yield int(words[0]) / int(words[1])
        quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period) > 0:
            yield int(quota) / int(period)


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """The cgroup folders of this process that govern `controller`, from its own up to the top, of v2 and of
    v1.
    """
    mount = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            bases = [mount, mount / "unified"]
        elif controller in controllers.split(","):
            bases = [mount / controllers, mount / controller]
        else:
            continue
        for base in bases:
            if base.is_dir():
                relative = Path(path.lstrip("/"))
                yield from (base / part for part in (relative, *relative.parents))
                break


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
