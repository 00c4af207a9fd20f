"""Checkpoints: the weights after an epoch."""

from __future__ import annotations

import io
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from aorta.artefacts.io import write_bytes
from aorta.workloads.trainer.world import World


def save_checkpoint(path: Path, model: nn.Module, world: World, *, epoch: int, steps: int) -> None:
    """Write `{"model": state dict, "epoch": 0-based, "steps": optimizer steps so far}` from rank 0.

    `torch.load(path, weights_only=True)` reads it. Every rank calls this and leaves when the file is
    complete, so that the next step does not wait for a rank that is still writing.
    """
    whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state = get_model_state_dict(model, options=whole)
    if world.rank == 0:
        content = io.BytesIO()
        torch.save({"model": state, "epoch": epoch, "steps": steps}, content)
        write_bytes(path, content.getvalue())
    if world.control is not None:
        dist.barrier(group=world.control)
