"""Jobs that are meshes, with a known fault: `python -m aorta.workloads.mesh JOB FAULT RANK`, on gloo.

Computation is slept, so that a few cores carry any number of ranks.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.rendezvous import rendezvous

from aorta.instrument import StepRecorder
from aorta.workloads.mesh_exchanges import EXCHANGES

STEPS = 36
"""Ten of them are warm-up, and so many more may not count as steady."""
MICROBATCHES = 8
UNIT_S = 0.02
EXCHANGE_UNITS = 8
"""A step of a job without a pipeline, in units."""
SLOW = 3.0
UNEVEN = (0.4, 1.9, 0.6, 1.5, 0.3, 1.7, 0.5, 1.1)
"""Time of each microbatch, in units; 1 on average."""
WIDTH = 8
SENT = 2048
"""Numbers per row that a stage sends on: with two rows, 16 KiB."""
ROWS = 512
"""Rows that a tensor group exchanges: 16 KiB."""
NAMESPACES = "AORTA_MESH_NAMESPACES"
"""Prefix of the ranks' network namespaces, in the environment; without it they use this machine's network."""
CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class MeshFault:
    """A fault, and the rank that has it."""

    name: str
    rank: int

    def factor(self, rank: int, stage_of: Callable[[int], int] = lambda rank: rank) -> float:
        """Factor by which a rank computes longer."""
        if self.name == "slow_rank":
            return SLOW if rank == self.rank else 1.0
        if self.name == "slow_stage":
            return SLOW if stage_of(rank) == stage_of(self.rank) else 1.0
        return 1.0


class _Slept(torch.autograd.Function):
    """Takes its time forwards, and twice its time backwards."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds = seconds
        time.sleep(seconds)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        time.sleep(2 * ctx.seconds)
        return gradients[0], None


class Layer(nn.Module):
    """A layer of a stage; each call is the next microbatch."""

    def __init__(self, seconds: float, uneven: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(SENT))
        self._seconds, self._uneven, self._calls = seconds, uneven, 0

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """One microbatch."""
        share = UNEVEN[self._calls % MICROBATCHES] if self._uneven else 1.0
        self._calls += 1
        slept: torch.Tensor = _Slept.apply(self.weight * value, self._seconds * share)
        return slept


def _loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target).square().mean()


def _pipeline(name: str, fault: MeshFault) -> Callable[[], None]:
    from torch.distributed.pipelining import (
        PipelineStage,
        Schedule1F1B,
        ScheduleGPipe,
        ScheduleInterleaved1F1B,
    )

    rank, size = dist.get_rank(), dist.get_world_size()
    chunks = 2 if name == "interleaved" else 1
    seconds = UNIT_S * fault.factor(rank) / chunks
    made = [
        PipelineStage(Layer(seconds, fault.name == "uneven"), rank + size * chunk, size * chunks, CPU)
        for chunk in range(chunks)
    ]
    schedule: Any
    if name == "interleaved":
        schedule = ScheduleInterleaved1F1B(list(made), MICROBATCHES, loss_fn=_loss)
    else:
        kind = ScheduleGPipe if name == "gpipe" else Schedule1F1B
        schedule = kind(made[0], MICROBATCHES, loss_fn=_loss)
    return lambda: _run(schedule, first=rank == 0, last=rank == size - 1)


def _run(schedule: Any, *, first: bool, last: bool) -> None:
    batch = torch.ones(2 * MICROBATCHES, SENT)
    arguments = (batch,) if first else ()
    schedule.step(*arguments, **({"target": batch, "losses": []} if last else {}))


def _replicated_pipeline(fault: MeshFault) -> Callable[[], None]:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("pp", "dp"))
    stage, replicas = mesh["pp"].get_local_rank(), mesh["dp"].get_group()
    seconds = UNIT_S * fault.factor(dist.get_rank(), lambda rank: rank // 2)
    layer = Layer(seconds, fault.name == "uneven")
    made = PipelineStage(layer, stage, 2, CPU, group=mesh["pp"].get_group())
    schedule = Schedule1F1B(made, MICROBATCHES, loss_fn=_loss)

    def step() -> None:
        _run(schedule, first=stage == 0, last=stage == 1)
        for parameter in layer.parameters():
            dist.all_reduce(parameter.grad, group=replicas)

    return step


def _sharded(fault: MeshFault) -> Callable[[], None]:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("dp", "tp"))
    model: Any = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH))
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    seconds = 3 * UNIT_S * fault.factor(dist.get_rank())

    def step() -> None:
        for _ in range(2):
            time.sleep(seconds)
            model(torch.ones(ROWS, WIDTH)).sum().backward()

    return step


def _experts(fault: MeshFault) -> Callable[[], None]:
    """Tokens go to the expert of each rank and back; an expert takes as long as it gets tokens."""
    size, rank = dist.get_world_size(), dist.get_rank()
    each = 16
    popular = fault.rank if fault.name == "uneven" else None
    few = each // 4
    to = [each if popular is None else few for _ in range(size)]
    if popular is not None:
        to[popular] = each * size - few * (size - 1)
    got = to[rank] * size
    share = got / (each * size)
    seconds = 3 * UNIT_S * fault.factor(rank)

    def step() -> None:
        for _ in range(2):
            tokens, found = torch.ones(sum(to), WIDTH), torch.empty(got, WIDTH)
            dist.all_to_all_single(found, tokens, [to[rank]] * size, to)
            time.sleep(seconds * share)
            dist.all_to_all_single(tokens, found, to, [to[rank]] * size)

    return step


def job(name: str, fault: MeshFault) -> Callable[[], None]:
    """The step of a job."""
    if name == "ddp_pp":
        return _replicated_pipeline(fault)
    if name == "fsdp_tp":
        return _sharded(fault)
    if name == "experts":
        return _experts(fault)
    if name in EXCHANGES:
        return EXCHANGES[name](EXCHANGE_UNITS * UNIT_S * fault.factor(dist.get_rank()))
    return _pipeline(name, fault)


def _connect() -> None:
    """Make the process group, in the network namespace of the rank where there is one."""
    prefix = os.environ.get(NAMESPACES)
    if prefix is None:
        dist.init_process_group("gloo")
        return
    # The ranks meet in this machine's network; the links between them are of their own.
    store, rank, size = next(rendezvous("env://"))
    with (Path("/run/netns") / f"{prefix}{rank}").open() as place:
        if ctypes.CDLL(None, use_errno=True).setns(place.fileno(), 0):
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {prefix}{rank}")
    os.environ["GLOO_SOCKET_IFNAME"] = f"to{0 if rank else 1}"
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)


def main(arguments: list[str]) -> None:
    """Run a job for `STEPS` steps."""
    name, fault, rank = arguments
    _connect()
    step = job(name, MeshFault(fault, int(rank)))
    with StepRecorder("artifacts", CPU) as recorder:
        for index in range(STEPS):
            with recorder.step(epoch=0, step=index) as opened:
                with recorder.forward():
                    step()
                opened.result(samples=2 * MICROBATCHES, lr=0.1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
