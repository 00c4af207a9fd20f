"""Finds the training processes of a job on this node, from procfs."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from aorta.artefacts import names
from aorta.errors import RunError

_JOB = ("SLURM_JOB_ID", "SLURM_JOBID", names.JOB_ID)
_NODE = "SLURMD_NODENAME"
"""Several nodes of a cluster may be one machine, which shows each of them all processes."""
_TORCH = b"libtorch"


@dataclass(frozen=True, slots=True)
class Process:
    """One process that has torch loaded."""

    pid: int
    parent: int
    command: str
    environment: dict[str, str]

    def number(self, name: str) -> int | None:
        """A variable of its environment as a whole number; None: absent, or no number."""
        value = self.environment.get(name, "")
        return int(value) if value.isdigit() else None


def of_job(job: str, proc: Path = Path("/proc")) -> list[Process]:
    """This user's processes of a job on this node that have torch loaded, by process id."""
    node = os.environ.get(_NODE)
    return [
        process
        for process in _with_torch(_own(proc), proc)
        if any(process.environment.get(name) == job for name in _JOB)
        and (node is None or process.environment.get(_NODE, node) == node)
    ]


def of_pids(pids: Sequence[int], proc: Path = Path("/proc")) -> list[Process]:
    """The processes named, with their children that have torch loaded.

    Raises:
        RunError: a process does not exist, or belongs to another user.
    """
    for pid in pids:
        _check_owner(pid, proc)
    found = list(_with_torch(_own(proc), proc))
    named, parents = set(pids), {process.pid: process.parent for process in found}
    return [process for process in found if _descends(process.pid, named, parents)]


def _descends(pid: int, named: set[int], parents: dict[int, int]) -> bool:
    while pid in parents and pid not in named:
        pid = parents[pid]
    return pid in named


def _check_owner(pid: int, proc: Path) -> None:
    try:
        owner = (proc / str(pid)).stat().st_uid
    except OSError as error:
        raise RunError(f"process {pid}: {error.strerror}", "name a process that runs on this node") from error
    if owner != os.getuid():
        raise RunError(
            f"process {pid} belongs to {_user(owner)}",
            "attach to processes of your own; aorta reads no others",
        )


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _own(proc: Path) -> Iterator[int]:
    for entry in sorted(proc.iterdir(), key=lambda path: path.name.zfill(12)):
        if not entry.name.isdigit():
            continue
        try:
            if entry.stat().st_uid == os.getuid() and int(entry.name) != os.getpid():
                yield int(entry.name)
        except OSError:
            continue  # it ended meanwhile


def _with_torch(pids: Iterator[int], proc: Path) -> Iterator[Process]:
    for pid in pids:
        folder = proc / str(pid)
        try:
            if _TORCH not in (folder / "maps").read_bytes():
                continue
            status = (folder / "stat").read_text(errors="replace")
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            pairs = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        yield Process(
            pid=pid,
            parent=int(status.rpartition(")")[2].split()[1]),
            command=" ".join(word for word in words if word),
            environment=dict(pair.split("=", 1) for pair in pairs if "=" in pair),
        )


def cpu_seconds(pid: int, proc: Path = Path("/proc")) -> float | None:
    """CPU time of all threads of a process so far; None where it has ended."""
    try:
        fields = (proc / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
