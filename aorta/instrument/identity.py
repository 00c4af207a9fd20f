"""Identity of the writer: run, job, host and rank, from what torchrun and the node agent set."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist

from aorta.artefacts import names
from aorta.artefacts.step_record import RankConstants, RankIdentity
from aorta.errors import RunError

OUTSIDE = "local"
"""Run and job id of a run outside a job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity(RankIdentity):
    """A rank, and the node that it runs on."""

    node_index: int

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Identity:
        """Read `RANK`, `LOCAL_RANK`, `WORLD_SIZE` and `AORTA_*`; a plain `python` process is rank 0 of 1.

        A process group that exists already knows rank and size better than the environment.

        Raises:
            RunError: a number is not one; names the variable.
        """
        env = os.environ if environment is None else environment
        joined = dist.is_available() and dist.is_initialized()
        return cls(
            run_id=env.get(names.RUN_ID, OUTSIDE),
            job_id=env.get(names.JOB_ID) or env.get("SLURM_JOB_ID") or OUTSIDE,
            host=socket.gethostname(),
            attempt=_number(env, names.ATTEMPT, 0),
            rank=dist.get_rank() if joined else _number(env, "RANK", 0),
            local_rank=_number(env, "LOCAL_RANK", 0),
            world_size=dist.get_world_size() if joined else _number(env, "WORLD_SIZE", 1),
            node_index=_number(env, names.NODE_INDEX, _number(env, "GROUP_RANK", 0)),
        )


def run_directory(environment: Mapping[str, str] | None = None) -> Path | None:
    """The run directory of the job that this process belongs to; None outside a job."""
    env = os.environ if environment is None else environment
    folder = env.get(names.RUN_DIR)
    return Path(folder) if folder else None


def device_uuid(device: torch.device) -> str | None:
    """The GPU's UUID as NVML writes it (`GPU-...`): monitor samples are matched by it. None on the host."""
    if device.type != "cuda":
        return None
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"


def constants(
    identity: Identity, device: torch.device, timing: Literal["host", "event_window", "kernel"]
) -> RankConstants:
    """Returns the fields that stay the same during a run, of a rank on `device`."""
    total = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else None
    return RankConstants(
        **{item.name: getattr(identity, item.name) for item in fields(RankIdentity)},
        device=str(device),
        device_uuid=device_uuid(device),
        memory_total_bytes=total,
        timing=timing,
    )


def _number(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name, "")
    if not text:
        return default
    try:
        return int(text)
    except ValueError:
        raise RunError(
            f"environment variable {name} is {text!r}, not a number", "start with torchrun"
        ) from None
