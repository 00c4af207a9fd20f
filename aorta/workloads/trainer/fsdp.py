"""Sharded data parallelism with FSDP2 (`fully_shard`): what each documented key means there.

| key | here |
|---|---|
| full_shard | weights are let go after a block's forward pass and gathered again for its backward pass |
| shard_grad_op | weights stay from the forward to the backward pass |
| hybrid_shard | full_shard within `shard_size` ranks; gradients are all-reduced between such groups |
| no_shard | every rank keeps all weights; gradients are all-reduced block by block |
| backward_prefetch | BACKWARD_PRE: the next weights are asked for before a block's backward pass |
| forward_prefetch | the next weights are asked for before a block's forward pass, not once it is queued |
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from aorta.config import schema
from aorta.errors import ConfigError
from aorta.instrument import StepRecorder
from aorta.workloads.trainer.compiled import Compiled
from aorta.workloads.trainer.optim import AUTOCAST
from aorta.workloads.trainer.weights import Shares, Weights
from aorta.workloads.trainer.workload import Batch, Workload
from aorta.workloads.trainer.world import World

log = logging.getLogger(__name__)

ON_CPU = hasattr(torch.cpu.Stream, "record_event")
"""True if this torch's FSDP2 works without a GPU; 2.6 asks the CPU's streams for events that they lack."""
TWO_BUFFERS = "set_reduce_scatter_max_input_buffers"


def check_fsdp(config: schema.Config) -> None:
    """Refuse what FSDP2 does not have.

    Raises:
        ConfigError: names the key and the reason.
    """
    fsdp, distributed = config.fsdp, config.distributed
    refused = {
        "fsdp.backward_prefetch is 'BACKWARD_POST': FSDP2 cannot prefetch weights after a block's"
        " backward pass": fsdp.backward_prefetch == "BACKWARD_POST",
        "fsdp.use_orig_params is false: FSDP2 always keeps a model's own parameters":
            not fsdp.use_orig_params,
        "fsdp.limit_all_gathers is false: FSDP2 always limits the weights in flight by waits between its"
        " streams": not fsdp.limit_all_gathers,
        "fsdp.sync_module_states is false with fsdp.param_init_device 'meta': only rank 0 creates the "
        "weights":
            fsdp.param_init_device == "meta" and not fsdp.sync_module_states,
        "fsdp.shard_size is set, but fsdp.sharding_strategy is not 'hybrid_shard'":
            fsdp.shard_size is not None and fsdp.sharding_strategy != "hybrid_shard",
        "distributed.overlap_reduce_scatter is true, but distributed.enable_overlap is false":
            distributed.overlap_reduce_scatter is True and not distributed.enable_overlap,
        f"distributed.overlap_clone_for_reduce_scatter is true: torch {torch.__version__} keeps one buffer of"
        f" gradients in flight ({TWO_BUFFERS} came later)":
            distributed.overlap_clone_for_reduce_scatter and not hasattr(FSDPModule, TWO_BUFFERS),
    }  # fmt: skip
    for reason, applies in refused.items():
        if applies:
            raise ConfigError(reason, "leave the key at its default")


def shard_ranks(config: schema.FsdpConfig, world_size: int, local_size: int) -> int:
    """Number of ranks that share one copy of the weights.

    Args:
        config: the `fsdp` block.
        world_size: ranks of the job.
        local_size: ranks of this node.

    Raises:
        ConfigError: groups of that size do not make up the job.
    """
    if config.sharding_strategy == "no_shard":
        return 1
    if config.sharding_strategy != "hybrid_shard":
        return world_size
    size = config.shard_size if config.shard_size is not None else local_size
    if world_size % size:
        raise ConfigError(
            f"fsdp.shard_size is {size}: {world_size} ranks cannot be divided into such groups",
            "choose a divisor of the number of ranks",
        )
    return size


def make_mesh(config: schema.FsdpConfig, world: World) -> DeviceMesh:
    """`(shard,)`, or `(replicate, shard)` where there is more than one copy of the weights.

    Raises:
        ConfigError: this torch cannot shard on the CPU, or groups of that size do not make up the job.
    """
    if world.device.type == "cpu" and not ON_CPU:
        raise ConfigError(
            f"distributed.strategy is 'fsdp' on the CPU: torch {torch.__version__} shards on GPUs only",
            "use distributed.strategy=ddp, or torch 2.7 or newer",
        )
    size = shard_ranks(config, world.size, int(os.environ.get("LOCAL_WORLD_SIZE", world.size)))
    kind = world.device.type
    if config.sharding_strategy in ("hybrid_shard", "no_shard"):
        return init_device_mesh(kind, (world.size // size, size), mesh_dim_names=("replicate", "shard"))
    return init_device_mesh(kind, (world.size,), mesh_dim_names=("shard",))


class Sharded:
    """FSDP2 over the workload's blocks, its collectives timed by the recorder."""

    def __init__(
        self, workload: Workload, config: schema.Config, world: World, recorder: StepRecorder
    ) -> None:
        # Nothing here changes a model's output in place, which is what this warns of.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
        self._mesh = make_mesh(config.fsdp, world)
        module, state = _make(workload, config.fsdp, world)
        blocks = list(workload.blocks(module))
        shard(module, blocks, self._mesh, config)
        if state is not None:
            _materialise(module, state, world)
        self.module = module
        self._root = _sharded(module)
        order(module, blocks, config)
        scatter = config.distributed.overlap_reduce_scatter
        overlap = config.distributed.enable_overlap
        recorder.observe_fsdp(
            module,
            overlap_gather=overlap,
            overlap_scatter=overlap if scatter is None else scatter,
            compiled=config.compile.enabled,
        )
        self.weights: Weights = Shares(module, self._reducer(recorder))
        self._call: Any = Compiled(module, config.compile) if config.compile.enabled else module

    def __call__(self, batch: Batch) -> torch.Tensor:
        """The model's output for this rank's batch, in fp32."""
        output: torch.Tensor = self._call(dict(batch))
        return output

    def exchange(self, last: bool) -> AbstractContextManager[None]:
        """Gradients of the other micro-batches are added up where they are made."""
        self._root.set_requires_gradient_sync(last)
        self._root.set_is_last_backward(last)
        return nullcontext()

    def _reducer(self, recorder: StepRecorder) -> Any:
        group = self._mesh.get_group("shard")
        if group.size() == 1:
            return None
        return lambda tensor, tag: recorder.all_reduce(tensor, group, tag)


def shard(module: nn.Module, blocks: Sequence[nn.Module], mesh: DeviceMesh, config: schema.Config) -> None:
    """Blocks first, then the rest as the root, whose weights FSDP2 keeps until its backward pass by default:
    that begins at once.
    """
    keep = config.fsdp.sharding_strategy in ("shard_grad_op", "no_shard")
    dtype = AUTOCAST.get(config.training.mixed_precision)
    inner = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    outer = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, output_dtype=torch.float32)
    for block in blocks:
        fully_shard(block, mesh=mesh, mp_policy=inner, reshard_after_forward=not keep)
    if keep:
        fully_shard(module, mesh=mesh, mp_policy=outer, reshard_after_forward=False)
    else:
        fully_shard(module, mesh=mesh, mp_policy=outer)


def order(module: nn.Module, blocks: Sequence[nn.Module], config: schema.Config) -> None:
    """Set which block asks for which weights ahead, after `shard`."""
    root, parts = _sharded(module), [_sharded(block) for block in blocks]
    overlap = config.distributed.enable_overlap
    if config.fsdp.forward_prefetch and overlap:
        for this, following in pairwise((root, *parts)):
            this.set_modules_to_forward_prefetch([following])
    if config.fsdp.backward_prefetch == "NONE" or not overlap:
        for part in parts:
            # Its own weights are there by then: nothing is asked for ahead.
            part.set_modules_to_backward_prefetch([part])
    if config.distributed.overlap_clone_for_reduce_scatter:
        getattr(root, TWO_BUFFERS)(2)


def _sharded(module: nn.Module) -> FSDPModule:
    assert isinstance(module, FSDPModule)
    return module


def _make(
    workload: Workload, config: schema.FsdpConfig, world: World
) -> tuple[nn.Module, dict[str, torch.Tensor] | None]:
    """The model before it is sharded, and with `meta` the weights that it gets afterwards: rank 0's, and
    nothing on the others.
    """
    if config.param_init_device == "meta":
        state = dict(workload.model().state_dict()) if world.rank == 0 else {}
        with torch.device("meta"):
            return workload.model(), state
    if config.param_init_device == "cuda":
        if world.device.type != "cuda":
            raise ConfigError(
                "fsdp.param_init_device is 'cuda', but training is on the CPU", "use cpu or meta"
            )
        with torch.device(world.device):
            module = workload.model()
    else:
        module = workload.model().to(world.device)
    if config.sync_module_states:
        for item in module.parameters():
            dist.broadcast(item.detach(), src=0)
    return module, None


def _materialise(module: nn.Module, state: dict[str, torch.Tensor], world: World) -> None:
    """Give a sharded model on no device its memory and rank 0's weights."""
    fixed = {name for name, _ in module.named_buffers()} - set(module.state_dict())
    if fixed:
        raise ConfigError(
            f"fsdp.param_init_device is 'meta', but {', '.join(sorted(fixed))} cannot come from rank 0",
            "use fsdp.param_init_device=cpu",
        )
    module.to_empty(device=world.device)
    whole = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(module, dict[str, Any](state), options=whole)
