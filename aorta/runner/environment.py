"""Chooses the environment variables and words of a command that may be written down.

An allow-list: what is not on it is hidden, whatever its name, and so is a listed one whose value looks like a
token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aorta.artefacts import names
from aorta.artefacts.masking import here, looks_like_token, secret_name

_EXPLAINING = (
    names.SHARED_NODES, "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING",
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

_RANK = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT",
    "SLURM_PROCID", "SLURM_LOCALID", "OMPI_COMM_WORLD_RANK", "PMI_RANK",
    *names.OF_A_RANK,
)  # fmt: skip
"""Variables that identify a rank; readers of a trace look for them."""

_RUNNING = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "TERM", "TMP", "TEMP", "TEMPDIR",
    "LD_LIBRARY_PATH", "LD_PRELOAD", "LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "PYTHONUNBUFFERED",
    "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV", "CUDA_HOME", "CUDA_PATH", "ROCM_PATH", "HIP_PATH",
    "XDG_RUNTIME_DIR",
    "CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH",
)  # fmt: skip
"""Variables that a profiler and the interpreter need to start."""
_TOOLS = ("NSYS_", "QUADD_", "ROCP_", "ROCPROF_", "ROCPROFILER_", "HSA_")


def _safe(name: str, value: str) -> bool:
    return (
        not secret_name(name)
        and not any(word in name.upper() for word in _HIDDEN)
        and not looks_like_token(value)
    )


_HIDDEN = ("TOKEN", "SECRET", "PASSW", "CREDENTIAL", "AUTH", "KEY")
"""A listed variable whose name holds one of these anywhere is hidden."""


def without_secrets(command: Sequence[str]) -> list[str]:
    """`command` as it may be written down: secrets are replaced by `***`."""
    return here().command(command)


def recorded(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that explain a measurement, sorted by name."""
    return {name: environ[name] for name in sorted(environ) if _explains(name) and _safe(name, environ[name])}


def shown(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that may stay of an environment that a profiler wrote down: recorded ones, the rank's
    identity, and those that programs need to start; in the order of `environ`.
    """
    needed = _RANK + _RUNNING
    return {
        name: value
        for name, value in environ.items()
        if (_explains(name) or name in needed or name.startswith(_TOOLS)) and _safe(name, value)
    }


def _explains(name: str) -> bool:
    return name in _EXPLAINING or name.startswith(_PREFIXES)
