"""Makes a model train on all ranks, by the configured strategy."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import msgspec
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from aorta.config import schema
from aorta.errors import ConfigError
from aorta.instrument import StepRecorder
from aorta.workloads.trainer.compiled import Compiled
from aorta.workloads.trainer.fsdp import Sharded, check_fsdp
from aorta.workloads.trainer.weights import Weights, Whole
from aorta.workloads.trainer.workload import Batch, Workload
from aorta.workloads.trainer.world import World

log = logging.getLogger(__name__)


class Parallel(Protocol):
    """A model on its device, shared by all ranks."""

    module: nn.Module
    """The model, for its state and its mode."""
    weights: Weights

    def __call__(self, batch: Batch) -> torch.Tensor:
        """The model's output for this rank's batch."""

    def exchange(self, last: bool) -> AbstractContextManager[None]:
        """The context of one micro-batch: only the last of a step exchanges gradients."""


def check_strategy(config: schema.Config, rank: int) -> None:
    """Refuse what the strategy cannot do, and say at the start what is not in use with it.

    Raises:
        ConfigError: names the key, and why.
    """
    if config.distributed.strategy == "fsdp":
        check_fsdp(config)
        unused = _changed(config.distributed, "distributed", ("bucket_cap_mb",))
    else:
        for key in ("overlap_reduce_scatter", "overlap_clone_for_reduce_scatter"):
            if getattr(config.distributed, key):
                raise ConfigError(
                    f"distributed.{key} is true, but distributed.strategy is 'ddp':"
                    " DDP exchanges gradients by all-reduce and has no reduce-scatter",
                    f"set distributed.{key}=false, or distributed.strategy=fsdp",
                )
        unused = _changed(config.fsdp, "fsdp", tuple(_names(config.fsdp)))
    if rank == 0:
        log.info("strategy: %s", config.distributed.strategy)
        if unused:
            log.warning("strategy %s ignores these keys: %s", config.distributed.strategy, ", ".join(unused))


def _names(block: schema.ConfigBlock) -> list[str]:
    return [item.name for item in msgspec.structs.fields(type(block))]


def _changed(block: schema.ConfigBlock, name: str, keys: tuple[str, ...]) -> list[str]:
    return [
        f"{name}.{item.name}={getattr(block, item.name)}"
        for item in msgspec.structs.fields(type(block))
        if item.name in keys and getattr(block, item.name) != item.default
    ]


def parallelize(config: schema.Config, workload: Workload, world: World, recorder: StepRecorder) -> Parallel:
    """The workload's model by the configured strategy. Every rank calls it, with the same random state."""
    if config.distributed.strategy == "fsdp":
        return Sharded(workload, config, world, recorder)
    return Replicated(workload, config, world, recorder)


_FIRST_BUCKET = "_DEFAULT_FIRST_BUCKET_BYTES"


def _fit_first_bucket(ddp: DistributedDataParallel) -> None:
    """Make the compiler's first bucket no larger than the others, which it insists on.

    torch.compile cuts the graph at DDP's buckets. It takes 1 MiB for the first one whatever `bucket_cap_mb`
    says, and refuses to compile where the others are smaller. DDP itself takes `bucket_cap_mb` for all.
    """
    first = getattr(dist, _FIRST_BUCKET, None)
    if first is not None:
        setattr(dist, _FIRST_BUCKET, min(first, ddp.bucket_bytes_cap))


class Replicated:
    """DDP: rank 0's weights are broadcast once, gradients are averaged in the recorder's process group, or
    without overlap by its hook. One rank needs no wrapper and no exchange.
    """

    def __init__(
        self, workload: Workload, config: schema.Config, world: World, recorder: StepRecorder
    ) -> None:
        self.module = workload.model().to(world.device)
        self.weights: Weights = Whole(self.module)
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
                process_group=recorder.ddp_group() if config.distributed.enable_overlap else None,
            )
            if not config.distributed.enable_overlap:
                self._ddp.register_comm_hook(None, recorder.ddp_hook(overlap=False))
            if config.compile.enabled:
                _fit_first_bucket(self._ddp)
        wrapped = self._ddp if self._ddp is not None else self.module
        self._call = Compiled(wrapped, config.compile) if config.compile.enabled else wrapped

    def __call__(self, batch: Batch) -> torch.Tensor:
        """See `Parallel`."""
        output: torch.Tensor = self._call(batch)
        return output

    def exchange(self, last: bool) -> AbstractContextManager[None]:
        """See `Parallel`."""
        if last or self._ddp is None:
            return nullcontext()
        return self._ddp.no_sync()
