"""Finds the training processes of a job on this node, from procfs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from aorta.artefacts import names
from aorta.artefacts.files import owner_name
from aorta.artefacts.processes import ProcessTable, process_stat
from aorta.errors import RunError

_JOB = ("SLURM_JOB_ID", "SLURM_JOBID", names.JOB_ID)
_NODE = "SLURMD_NODENAME"
"""Several nodes of a cluster may be one machine, which shows each of them all processes."""
_STEP = "SLURM_STEP_ID"
_TORCH = b"libtorch"
_OF_THE_JOB = (*_JOB, _NODE, _STEP, names.NODE_INDEX, names.RUN_DIR)
"""Variables that tell the job. A program that sets its title overwrites them, its parent has them, too."""
_ANCESTORS = 6


@dataclass(frozen=True, slots=True)
class TorchProcess:
    """One process that has torch loaded."""

    pid: int
    parent: int
    command: str
    environment: dict[str, str]
    child_of_rank: bool = False
    """Another one of these processes, with the same rank, started it: a loader worker, a compiler."""

    @property
    def program(self) -> str:
        """One text for all ranks of one training: several may run in one allocation."""
        port = self.environment.get("MASTER_PORT")
        if port is not None:
            return f"{self.environment.get('MASTER_ADDR', '')}:{port}"
        return f"step {self.step}" if self.step is not None else ""

    @property
    def step(self) -> str | None:
        """Number of the Slurm step. None if there are none, as in a batch script without srun."""
        return self.environment.get(_STEP)

    def number(self, name: str) -> int | None:
        """A variable of its environment as a whole number. None if absent or not a number."""
        value = self.environment.get(name, "")
        return int(value) if value.isdigit() else None


def of_job(
    job: str, node_index: int | None = None, step: str | None = None, proc: Path = Path("/proc")
) -> list[TorchProcess]:
    """This user's training processes of a job on this node, by process id.

    Args:
        job: id of the job.
        node_index: of a job that aorta started: the index of the node. None means any.
        step: number of the Slurm step. None means all.
        proc: where procfs is.
    """
    node = os.environ.get(_NODE)
    return [
        process
        for process in _training(_own(proc), proc)
        if any(process.environment.get(name) == job for name in _JOB)
        and (node is None or process.environment.get(_NODE, node) == node)
        and (node_index is None or process.environment.get(names.NODE_INDEX) == str(node_index))
        and step in (None, process.step)
    ]


def of_pids(pids: Sequence[int], proc: Path = Path("/proc")) -> list[TorchProcess]:
    """The processes named, with their children that have torch loaded.

    Raises:
        RunError: a process does not exist, or belongs to another user.
    """
    for pid in pids:
        _check_owner(pid, proc)
        _check_readable(pid, proc)
    found = _training(_own(proc), proc)
    named, parents = set(pids), {process.pid: process.parent for process in found}
    return [process for process in found if _descends(process.pid, named, parents)]


def _descends(pid: int, named: set[int], parents: dict[int, int]) -> bool:
    while pid in parents and pid not in named:
        pid = parents[pid]
    return pid in named


def _check_owner(pid: int, proc: Path) -> None:
    # The folder of a process that may not be read belongs to root, whoever runs the process.
    try:
        text = (proc / str(pid) / "status").read_text(errors="replace")
    except OSError as error:
        raise RunError(f"process {pid}: {error.strerror}", "name a process that runs on this node") from error
    owner = next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Uid:"))
    if owner != os.getuid():
        raise RunError(
            f"process {pid} belongs to {owner_name(owner)}",
            "attach to your own processes; aorta cannot read those of other users",
        )


def _check_readable(pid: int, proc: Path) -> None:
    try:
        (proc / str(pid) / "maps").read_bytes()
    except PermissionError as error:
        raise RunError(f"process {pid}: {permission_words()}", "docs/attach.md says more") from error
    except OSError as error:
        raise RunError(f"process {pid}: {error.strerror}", "name a process that runs on this node") from error


def permission_words(scope: Path = Path("/proc/sys/kernel/yama/ptrace_scope")) -> str:
    """The permission that is missing to read another process's memory, and how to get it."""
    try:
        level = scope.read_text().strip()
    except OSError:
        level = ""
    if level in ("1", "2"):
        return (
            f"this node does not let one process read another (kernel.yama.ptrace_scope is {level}); ask the "
            "site for ptrace_scope 0, or for CAP_SYS_PTRACE"
        )
    if level == "3":
        return "this node forbids reading other processes (kernel.yama.ptrace_scope is 3), for all users"
    return (
        "reading the process was refused, because CAP_SYS_PTRACE is missing; if the process is in a "
        "container, run aorta attach inside that container, or ask for the capability"
    )


def _own(proc: Path) -> Iterator[int]:
    for entry in sorted(proc.iterdir(), key=lambda path: path.name.zfill(12)):
        if not entry.name.isdigit():
            continue
        try:
            if entry.stat().st_uid == os.getuid() and int(entry.name) != os.getpid():
                yield int(entry.name)
        except OSError:
            continue  # it ended meanwhile


def _training(pids: Iterable[int], proc: Path) -> list[TorchProcess]:
    """The processes that have torch loaded, and Python ranks that have not come to it yet."""
    found = {pid: process for pid in pids if (process := _process(pid, proc)) is not None}
    ranks = {pid: process.environment.get("RANK") for pid, process in found.items()}
    kept = []
    for pid, process in found.items():
        child = ranks[pid] is not None and ranks.get(process.parent) == ranks[pid]
        if _has_torch(proc / str(pid)):
            kept.append(replace(process, child_of_rank=child))
        elif ranks[pid] is not None and not child and "WORLD_SIZE" in process.environment:
            kept.append(process)
    return kept


def _has_torch(folder: Path) -> bool:
    try:
        return _TORCH in (folder / "maps").read_bytes()
    except OSError:
        return False


def _process(pid: int, proc: Path) -> TorchProcess | None:
    """A Python process, or one that has torch loaded; None: another one, or it ended meanwhile."""
    folder = proc / str(pid)
    try:
        if not _has_torch(folder) and "python" not in (folder / "exe").readlink().name:
            return None
        status = process_stat(pid, proc)
        words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        environment = _environment(folder)
    except OSError:
        return None
    if status is None:
        return None
    if not any(name in environment for name in _JOB):
        environment = _inherited(status.parent, proc) | environment
    command = " ".join(word for word in words if word)
    return TorchProcess(pid=pid, parent=status.parent, command=command, environment=environment)


def _environment(folder: Path) -> dict[str, str]:
    pairs = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def _inherited(pid: int, proc: Path) -> dict[str, str]:
    """Variables of the nearest ancestor that knows its job; none where no ancestor does."""
    for _ in range(_ANCESTORS):
        status = process_stat(pid, proc)
        try:
            environment = _environment(proc / str(pid))
        except OSError:
            return {}
        if any(name in environment for name in _JOB):
            return {name: environment[name] for name in _OF_THE_JOB if name in environment}
        if status is None or status.parent <= 1:
            return {}
        pid = status.parent
    return {}


@dataclass(frozen=True, slots=True)
class Work:
    """The work that a process and its children have done so far."""

    cpu_seconds: float
    io_bytes: int | None
    """Bytes read and written. None if the kernel does not say."""
    runs: bool
    """One of them runs or waits for a core."""


def work_of(pids: Iterable[int], proc: Path = Path("/proc")) -> dict[int, Work]:
    """The work of each process, with its living and ended children; ended processes are left out."""
    table, second = ProcessTable(_own(proc), proc), os.sysconf("SC_CLK_TCK")
    found = {}
    for pid in pids:
        family = table.family(pid)
        if not family:
            continue
        moved = [_io_bytes(proc / str(member) / "io") for member in family]
        found[pid] = Work(
            cpu_seconds=sum(item.cpu_ticks for item in family.values()) / second,
            io_bytes=None if None in moved else sum(item for item in moved if item is not None),
            runs=any(item.state == "R" for item in family.values()),
        )
    return found


def _io_bytes(path: Path) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    return sum(int(line.split()[1]) for line in lines if line.startswith(("rchar:", "wchar:")))
