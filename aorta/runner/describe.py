"""Description of this node: the record that it writes before its first process starts."""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
import shutil
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

import msgspec

from aorta import __version__
from aorta.artefacts.records import NodeInfo, ProfilerChoice
from aorta.monitors import cgroup
from aorta.monitors.gpu import Gpus
from aorta.runner import environment, network
from aorta.runner.clock import read_clocks
from aorta.runner.options import NodeOptions

_TIMEOUTS_S = (10.0, 20.0)
"""Limits of the first and second try: a program that answers in milliseconds has been seen to hang."""

PACKAGES = (
    "torch", "triton", "numpy", "msgspec", "omegaconf", "submitit", "psutil", "nvidia-ml-py", "amdsmi",
    "nvidia-nccl-cu12", "nvidia-nccl-cu13", "nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime",
    "nvidia-cudnn-cu12", "nvidia-cudnn-cu13",
)  # fmt: skip


def packages() -> dict[str, str]:
    """Versions of Python and the packages that matter, from their metadata: torch is not imported."""
    found = {"python": platform.python_version(), "aorta": __version__}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def code_version() -> str:
    """Our version and, in a git checkout, the commit (with `-dirty` where files were changed)."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return __version__
    commit = _first_line(["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"])
    return f"{__version__}+{commit}" if commit else __version__


def program_commit(folder: Path) -> str | None:
    """The commit of the git checkout that `folder` is in (with `-dirty`); None outside of one."""
    if not any((parent / ".git").exists() for parent in (folder, *folder.parents)):
        return None
    options = ["-c", "core.fsmonitor=false", "-C", str(folder)]
    return _first_line(["git", *options, "describe", "--always", "--dirty", "--abbrev=12"])


def with_version(choice: ProfilerChoice) -> ProfilerChoice:
    """`choice` with the version that its program states."""
    if choice.resolved == "none":
        return choice
    return msgspec.structs.replace(
        choice, version=_first_line([choice.program or choice.resolved, "--version"])
    )


def _first_line(argv: list[str]) -> str | None:
    """First line that a program prints; None where it is absent, fails or hangs again."""
    if shutil.which(argv[0]) is None:
        return None
    for limit_s in _TIMEOUTS_S:
        try:
            done = subprocess.run(
                argv, capture_output=True, text=True, timeout=limit_s, check=True, stdin=subprocess.DEVNULL
            )
        except subprocess.TimeoutExpired:
            continue
        except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
            return None
        lines = done.stdout.strip().splitlines()
        return lines[0].strip() if lines else None
    return None


def cpus_usable(proc: Path = Path("/proc/self")) -> int:
    """CPUs of this process's affinity mask, or the whole CPUs of its cgroup's quota if that is less; at
    least 1.

    Args:
        proc: this process's folder in procfs.
    """
    count = len(os.sched_getaffinity(0))
    quota = cgroup.cpu_limit(cgroup.find_group("cpu", proc))
    return count if quota is None else max(1, min(count, math.floor(quota)))


def memory_of_job(job_id: str, group: cgroup.CgroupFolder | None) -> bool:
    """Return True if a cgroup is that of a Slurm job, or one below it: Slurm names it by the job's id."""
    return group is not None and f"job_{job_id}" in group.folder.parts


def describe_node(
    options: NodeOptions, gpus: Gpus, profiler: ProfilerChoice, environ: Mapping[str, str]
) -> NodeInfo:
    """The node's record. Ranks: as many as asked for, else one per GPU, else one.

    Args:
        environ: the environment that the ranks will get.
    """
    return NodeInfo(
        node_index=options.node_index,
        host=socket.gethostname(),
        slurm_node=options.slurm_node,
        attempt=options.attempt,
        cpus_usable=cpus_usable(),
        memory_limit_bytes=cgroup.memory_limit_bytes(cgroup.find_group("memory")),
        gpus=gpus.visible,
        processes=options.procs_per_node or len(gpus.visible) or 1,
        clock=read_clocks(),
        profiler=profiler,
        packages=packages(),
        environment=environment.recorded(environ),
        machine=network.machine_id(),
        network=network.network_id(),
        addresses=network.own_addresses(),
        memory_of_job=memory_of_job(options.job_id, cgroup.find_group("memory")),
        cpus_machine=os.cpu_count(),
    )
