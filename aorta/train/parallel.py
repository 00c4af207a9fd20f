"""From a model to one that trains on all ranks: DDP with the timed hook, and torch.compile."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext

import msgspec
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from aorta.config import schema
from aorta.errors import ConfigError
from aorta.instrument import StepRecorder
from aorta.train.workload import Batch
from aorta.train.world import World

log = logging.getLogger(__name__)

REASON_LENGTH = 300
"""Characters of a compiler's complaint that are worth a log line."""


def check_strategy(config: schema.Config, rank: int) -> None:
    """Say at the start what of the configuration is not in use with this strategy.

    Raises:
        ConfigError: a switch of sharded training is on, which DDP does not have.
    """
    for key in ("overlap_reduce_scatter", "overlap_clone_for_reduce_scatter"):
        if getattr(config.distributed, key):
            raise ConfigError(
                f"distributed.{key} is true, but distributed.strategy is {config.distributed.strategy!r}:"
                " DDP exchanges gradients by all-reduce and has no reduce-scatter",
                f"set distributed.{key}=false",
            )
    changed = [
        f"fsdp.{item.name}={getattr(config.fsdp, item.name)}"
        for item in msgspec.structs.fields(schema.Fsdp)
        if getattr(config.fsdp, item.name) != item.default
    ]
    if rank == 0:
        log.info("strategy: %s", config.distributed.strategy)
        if changed:
            log.warning("not in use with strategy %s: %s", config.distributed.strategy, ", ".join(changed))


class Parallel:
    """The model on its device, shared by all ranks.

    With one rank there is no wrapper and no exchange. With more, DDP broadcasts rank 0's weights and
    averages gradients through the recorder's hook.
    """

    def __init__(self, model: nn.Module, config: schema.Config, world: World, recorder: StepRecorder) -> None:
        self.module = model.to(world.device)
        self._ddp: DistributedDataParallel | None = None
        if world.size > 1:
            # Buffers follow from the configuration and may be sparse, which no broadcast takes; a broadcast
            # in every step would be timed by nobody.
            buffers = [name for name, _ in self.module.named_buffers()]
            DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(self.module, buffers)
            self._ddp = DistributedDataParallel(
                self.module,
                device_ids=[world.device.index] if world.device.type == "cuda" else None,
                bucket_cap_mb=config.distributed.bucket_cap_mb,
                gradient_as_bucket_view=True,
            )
            self._ddp.register_comm_hook(None, recorder.ddp_hook(overlap=config.distributed.enable_overlap))
        wrapped = self._ddp if self._ddp is not None else self.module
        self._call = Compiled(wrapped, config.compile) if config.compile.enabled else wrapped

    def __call__(self, batch: Batch) -> torch.Tensor:
        """The model's output for this rank's batch."""
        output: torch.Tensor = self._call(batch)
        return output

    def exchange(self, last: bool) -> AbstractContextManager[None]:
        """The context of one micro-batch: only the last of a step exchanges gradients."""
        if last or self._ddp is None:
            return nullcontext()
        return self._ddp.no_sync()


class Compiled:
    """torch.compile that falls back to eager, with the reason, when the first call shows that it cannot
    work here.
    """

    def __init__(self, module: nn.Module, config: schema.Compile) -> None:
        self._eager = module
        self._proven = False
        if config.options:
            log.info("compile.options are given: compile.mode is not in use (torch takes one of the two)")
        self._call = torch.compile(
            module,
            backend=config.backend,
            fullgraph=config.fullgraph,
            dynamic=config.dynamic,
            mode=None if config.options or config.backend != "inductor" else config.mode,
            options=config.options or None,
        )

    def __call__(self, batch: Batch) -> torch.Tensor:
        """The compiled model's output, or the eager one's after a failed first call."""
        if self._proven:
            return self._call(batch)
        self._proven = True
        try:  # a compiler fails in any way it likes
            return self._call(batch)
        except Exception as error:
            reason = " ".join(str(error).split())[:REASON_LENGTH]
            log.warning("torch.compile failed, going on without it: %s: %s", type(error).__name__, reason)
            self._call = self._eager
            return self._call(batch)
