"""What this node is: the record that it writes before its first process starts."""

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
from aorta.runner import network
from aorta.runner.clock import read_clocks
from aorta.runner.options import NodeOptions

_TIMEOUT_S = 10.0

_PACKAGES = (
    "torch", "triton", "numpy", "msgspec", "omegaconf", "submitit", "psutil", "nvidia-ml-py", "amdsmi",
    "nvidia-nccl-cu12", "nvidia-nccl-cu13", "nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime",
    "nvidia-cudnn-cu12", "nvidia-cudnn-cu13",
)  # fmt: skip

_ENVIRONMENT = (
    "AORTA_SHARED_NODES", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING",
    "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "HIP_VISIBLE_DEVICES", "HSA_FORCE_FINE_GRAIN_PCIE",
    "HSA_OVERRIDE_GFX_VERSION", "MKL_NUM_THREADS", "NVIDIA_VISIBLE_DEVICES", "OMP_NUM_THREADS",
    "PYTHONHASHSEED", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF",
    "ROCR_VISIBLE_DEVICES", "SLURM_CLUSTER_NAME", "SLURM_CPUS_ON_NODE", "SLURM_CPUS_PER_TASK",
    "SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE", "SLURM_JOB_ACCOUNT", "SLURM_JOB_CPUS_PER_NODE",
    "SLURM_JOB_END_TIME", "SLURM_JOB_ID", "SLURM_JOB_NAME", "SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES",
    "SLURM_JOB_PARTITION", "SLURM_JOB_QOS", "SLURM_JOB_START_TIME", "SLURM_MEM_PER_NODE",
    "SLURM_NODEID", "SLURM_RESTART_COUNT", "SLURM_STEP_ID", "SLURM_STEP_NODELIST",
    "SLURM_STEP_NUM_NODES", "SLURM_STEP_NUM_TASKS", "TMPDIR",
)  # fmt: skip
_PREFIXES = ("NCCL_", "RCCL_", "GLOO_", "TORCH_NCCL_", "TORCH_DISTRIBUTED_", "UCX_", "FI_", "OMP_", "KMP_")
_SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSW", "CREDENTIAL", "AUTH")


def looks_secret(name: str) -> bool:
    """Whether a variable of this name usually holds something that must not be written down."""
    return any(word in name.upper() for word in _SECRET_WORDS)


def recorded_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that explain a measurement; only listed names and prefixes, and nothing that looks
    secret.
    """
    return {
        name: environ[name]
        for name in sorted(environ)
        if (name in _ENVIRONMENT or name.startswith(_PREFIXES)) and not looks_secret(name)
    }


def packages() -> dict[str, str]:
    """Versions of Python and the packages that matter, from their metadata: torch is not imported."""
    found = {"python": platform.python_version(), "aorta": __version__}
    for name in _PACKAGES:
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


def with_version(choice: ProfilerChoice) -> ProfilerChoice:
    """`choice` with the version that its program states."""
    if choice.resolved == "none":
        return choice
    return msgspec.structs.replace(choice, version=_first_line([choice.resolved, "--version"]))


def _first_line(argv: list[str]) -> str | None:
    """First line that a program prints; None where it is absent, fails or hangs."""
    if shutil.which(argv[0]) is None:
        return None
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    lines = done.stdout.strip().splitlines()
    return lines[0].strip() if lines else None


def cpus_usable(proc: Path = Path("/proc/self")) -> int:
    """CPUs of this process's affinity mask, or the whole CPUs of its cgroup's quota if that is less; at
    least 1.

    Args:
        proc: this process's folder in procfs.
    """
    count = len(os.sched_getaffinity(0))
    quota = cgroup.cpu_limit(cgroup.find_group("cpu", proc))
    return count if quota is None else max(1, min(count, math.floor(quota)))


def describe_node(
    options: NodeOptions, gpus: Gpus, profiler: ProfilerChoice, environ: Mapping[str, str]
) -> NodeInfo:
    """The node's record. Ranks: as asked for, else one a GPU, else one.

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
        environment=recorded_environment(environ),
        machine=network.machine_id(),
        network=network.network_id(),
        addresses=network.own_addresses(),
        cpus_machine=os.cpu_count(),
    )
