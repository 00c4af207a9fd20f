"""The hooks around FSDP2's, without FSDP2."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from aorta.instrument.collectives import Collectives
from aorta.instrument.sharding import ShardedExchange
from aorta.instrument.streams import HostClock


def exchange(module: nn.Module, compiled: bool) -> ShardedExchange:
    made = ShardedExchange(
        Collectives(HostClock(), torch.device("cpu"), lambda: None), lambda: None, compiled=compiled
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
