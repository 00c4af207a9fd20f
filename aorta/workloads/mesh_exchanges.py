"""Jobs whose exchange is not a pipeline's: DDP, tensor parallelism and an all-to-all, on gloo.

Computation is slept. Each function returns the step of a job; `seconds` is what this rank computes per step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

WIDTH = 8
ROWS = 4


def _all_to_all(seconds: float) -> Callable[[], None]:
    """DDP, with an exchange of equal parts that the program makes itself."""
    model = DistributedDataParallel(nn.Linear(WIDTH, WIDTH))

    def step() -> None:
        time.sleep(seconds)
        sent = torch.ones(ROWS * dist.get_world_size(), WIDTH)
        found = torch.empty_like(sent)
        dist.all_to_all_single(found, sent)
        model(found).sum().backward()

    return step


def _buffers(seconds: float) -> Callable[[], None]:
    """DDP that broadcasts buffers in each forward pass, because there is a BatchNorm."""
    model = DistributedDataParallel(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)))

    def step() -> None:
        time.sleep(seconds)
        model(torch.ones(ROWS, WIDTH)).sum().backward()

    return step


def _parallelized(mesh: DeviceMesh) -> nn.Module:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH))
    return parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def _tensor_parallel(seconds: float) -> Callable[[], None]:
    """Columns and rows of weights are split over all ranks."""
    model = _parallelized(init_device_mesh("cpu", (dist.get_world_size(),)))

    def step() -> None:
        time.sleep(seconds)
        model(torch.ones(ROWS, WIDTH)).sum().backward()

    return step


def _replicated_tensors(seconds: float) -> Callable[[], None]:
    """Replicas of a tensor-parallel model exchange their gradients."""
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("dp", "tp"))
    model, replicas = _parallelized(mesh["tp"]), mesh["dp"].get_group()

    def step() -> None:
        time.sleep(seconds)
        model(torch.ones(ROWS, WIDTH)).sum().backward()
        for parameter in model.parameters():
            gradient: Any = parameter.grad
            dist.all_reduce(gradient.to_local(), group=replicas)

    return step


EXCHANGES: dict[str, Callable[[float], Callable[[], None]]] = {
    "all_to_all": _all_to_all,
    "ddp_buffers": _buffers,
    "tp": _tensor_parallel,
    "dp_tp": _replicated_tensors,
}
"""The jobs by name."""
