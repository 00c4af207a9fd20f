"""The hooks around FSDP2's, without FSDP2, and what stays in place of a sharded model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from aorta.instrument.collectives import CollectiveRunner
from aorta.instrument.sharding import ShardedExchange
from aorta.instrument.streams import HostClock


def exchange(module: nn.Module, compiled: bool) -> ShardedExchange:
    made = ShardedExchange(
        CollectiveRunner(HostClock(), torch.device("cpu"), lambda: None), lambda: None, compiled=compiled
    )
    made._parts = [(module, False)]
    return made


def order(module: nn.Module) -> list[str]:
    """Of the hooks of a forward pass."""
    hooks = [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
    return [hook.__name__ for hook in hooks]


def fsdp(module: nn.Module, args: Any) -> None:
    """In place of FSDP2's hook."""


WATCHED = ["_before_weights", "fsdp", "_after_weights", "_first_on_gradient", "_last_on_gradient"]


def test_hooks_are_there_while_somebody_watches() -> None:
    module = nn.Linear(1, 1)
    module.register_forward_pre_hook(fsdp)
    made = exchange(module, compiled=False)
    for _ in range(2):
        made.watch(True)
        assert order(module) == WATCHED
        made.watch(True)  # again: nothing twice
        assert order(module) == WATCHED
        made.watch(False)
        assert order(module) == ["fsdp"]


def test_hooks_of_a_model_that_may_be_compiled_stay() -> None:
    module = nn.Linear(1, 1)
    made = exchange(module, compiled=True)
    made.watch(True)
    before = list(module._forward_pre_hooks)
    made.watch(False)
    assert list(module._forward_pre_hooks) == before
    assert len(before) == 2


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Own:
    """An all-gather of the program's."""


@pytest.mark.usefixtures("alone")
@pytest.mark.skipif(not hasattr(FSDPModule, "set_custom_all_gather"), reason="a newer torch has it")
@pytest.mark.parametrize("choice", ["none", "own", "meshes"])
def test_collectives_of_the_programs_choice_stay(choice: str) -> None:
    model: Any = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    mesh = init_device_mesh("cpu", (1,))
    for part in (*model, model):
        fully_shard(part, mesh=mesh)
    states = [part._get_fsdp_state() for part in model]
    groups, held = getattr(states[0], "_fsdp_param_groups", None), [one._fsdp_param_group for one in states]
    if choice == "own":
        model[0].set_custom_all_gather(Own())
    if choice == "meshes":
        if groups is None:
            pytest.skip("one mesh for each module")
        groups.append(groups[0])
    usual = type(held[0]._all_gather_comm)
    for _ in range(2):  # a second recorder takes over from the first
        made = ShardedExchange(CollectiveRunner(HostClock(), torch.device("cpu"), lambda: None), lambda: None)
        made.install(model)
        assert held[1]._all_gather_comm is made._gathers[id(model[1])]
        if choice == "none":
            assert held[0]._all_gather_comm is made._gathers[id(model[0])]
        else:
            assert type(held[0]._all_gather_comm) is usual
