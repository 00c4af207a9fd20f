"""One model trained by one implementation, step by step."""

from __future__ import annotations

import logging
from collections import deque

import torch
import torch.distributed as dist
from torch import nn

from aorta.workloads.ddp_benchmark.bucketed import Bucketed
from aorta.workloads.ddp_benchmark.communicator import Communicator
from aorta.workloads.ddp_benchmark.individual import Individual, IndividualV2, Synchronous
from aorta.workloads.ddp_benchmark.interface import Implementation
from aorta.workloads.ddp_benchmark.model import LanguageModel, loss_of, token_batches
from aorta.workloads.ddp_benchmark.options import BenchmarkOptions
from aorta.workloads.ddp_benchmark.reference import TorchDdp
from aorta.workloads.ddp_benchmark.timing import BACKWARD, CLIP, FORWARD, RATE, SYNC, UPDATE, StepTimer
from aorta.workloads.trainer.world import World

log = logging.getLogger(__name__)

BASE_RATE = 1e-3
MAX_NORM = 1.0


def learning_rate(step: int, warmup_steps: int) -> float:
    """Linear from 0 in step 0 to `BASE_RATE` in step `warmup_steps`, then constant."""
    return BASE_RATE * min(step / warmup_steps, 1.0) if warmup_steps else BASE_RATE


def epoch_type(epoch: int, options: BenchmarkOptions) -> str:
    """`warmup` or `training`."""
    return "warmup" if epoch < options.warmup_epochs else "training"


def make(name: str, communicator: Communicator, options: BenchmarkOptions, observed: bool) -> Implementation:
    """The implementation called `name`. Only torch_ddp has a choice of being `observed`."""
    if name == TorchDdp.name:
        return TorchDdp(communicator, options.bucket_bytes, observed)
    if name == Bucketed.name:
        return Bucketed(communicator, options.bucket_bytes)
    simple = {kind.name: kind for kind in (Synchronous, Individual, IndividualV2)}
    return simple[name](communicator)


class BenchmarkTraining:
    """Weights, optimizer, batches and timer of one implementation on this rank.

    Args:
        name: of the implementation.
        options: sizes and schedule.
        world: this rank.
        observed: for torch_ddp, whether its collectives are timed.
    """

    def __init__(self, name: str, options: BenchmarkOptions, world: World, observed: bool = False) -> None:
        self.name = name
        self.options = options
        self.timer = StepTimer(world.device, observed=observed or name != TorchDdp.name)
        torch.manual_seed(options.seed)
        with torch.device(world.device):
            self.model = LanguageModel(options)
        communicator = Communicator(world.device, self.timer.clock, self.timer.open_tape)
        self._implementation = make(name, communicator, options, observed)
        self._call = self._implementation.prepare(self.model)
        self._optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=BASE_RATE, fused=world.device.type == "cuda"
        )
        self._batches = token_batches(options, world.rank, world.device)
        self._autocast = torch.autocast(
            world.device.type, dtype=torch.bfloat16, enabled=options.precision == "bf16"
        )

    def step(self, index: int) -> None:
        """Train one step, timed."""
        with self.timer.step(index):
            self.update(index)

    def update(self, index: int) -> None:
        """Train one step."""
        timer = self.timer
        self._set_rate(index)
        batch = self._batches[index % len(self._batches)]
        with timer.range(FORWARD), self._autocast:
            loss = loss_of(self._call(batch[:, :-1]), batch)
        with timer.range(BACKWARD):
            loss.backward()
        with timer.range(SYNC):
            self._implementation.after_backward()
            self._implementation.finish()
        if index < self.options.warmup_steps:
            with timer.range(CLIP):
                nn.utils.clip_grad_norm_(self.model.parameters(), MAX_NORM)
        with timer.range(UPDATE):
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)
        timer.loss(loss.detach())

    def close(self) -> None:
        """After the last step."""
        self._implementation.close()

    def _set_rate(self, index: int) -> None:
        rate = learning_rate(index, self.options.warmup_steps)
        if rate != self._optimizer.param_groups[0]["lr"]:
            with self.timer.range(RATE):
                self._optimizer.param_groups[0]["lr"] = rate


class EpochLog:
    """Logs each epoch on rank 0 once the device has done it, so that the log never stops the device."""

    def __init__(self, training: BenchmarkTraining, world: World) -> None:
        self._training = training
        self._rank = world.rank
        self._waiting: deque[int] = deque()

    def end_epoch(self, epoch: int) -> None:
        """Epoch `epoch` has been launched."""
        self._waiting.append(epoch)

    def poll(self) -> None:
        """Log what is done."""
        while self._waiting and self._training.timer.passed(self._last_step(self._waiting[0])):
            self._log(self._waiting.popleft())

    def close(self) -> None:
        """Log the rest, waiting for it."""
        while self._waiting:
            self._log(self._waiting.popleft())

    def _last_step(self, epoch: int) -> int:
        return (epoch + 1) * self._training.options.steps_per_epoch - 1

    def _log(self, epoch: int) -> None:
        if self._rank != 0:
            return
        options, last = self._training.options, self._last_step(epoch)
        loss = self._training.timer.loss_of(last)
        log.info(
            "%s epoch %d/%d %s lr %.6f loss %s",
            self._training.name,
            epoch + 1,
            options.num_epochs,
            epoch_type(epoch, options),
            learning_rate(last, options.warmup_steps),
            "not finite" if loss is None else f"{loss:.4f}",
        )


def weights_equal(model: nn.Module) -> bool:
    """True if all ranks have the same weights, bit by bit; every rank calls it.

    It compares sums of each parameter's bits, weighed by position, modulo 2^64.
    """
    sums = torch.stack([_checksum(value.detach()) for value in model.parameters()])
    low, high = sums.clone(), sums
    dist.all_reduce(low, op=dist.ReduceOp.MIN)
    dist.all_reduce(high, op=dist.ReduceOp.MAX)
    return bool((low == high).all())


def _checksum(value: torch.Tensor) -> torch.Tensor:
    bits = value.contiguous().flatten().view(torch.int32).long()
    return (bits * (torch.arange(bits.numel(), device=bits.device) % 65_521 + 1)).sum()
