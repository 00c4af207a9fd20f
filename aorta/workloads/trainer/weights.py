"""The weights as the optimizer of one rank sees them: plain tensors, whole or a share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import get_total_norm


class Weights(Protocol):
    """The weights that an `Updater` works on."""

    parameters: list[nn.Parameter]

    def collect(self) -> None:
        """Put this rank's gradients where the optimizer looks for them."""

    def clear(self) -> None:
        """Let go of the gradients."""

    def norm(self) -> torch.Tensor:
        """Norm of the gradients of the whole model, the same on all ranks; a scalar."""

    def share_overflow(self) -> None:
        """Make a gradient that is not finite on one rank one on all: they skip the update together."""


class Whole:
    """Every rank has all weights, and after the exchange all gradients."""

    def __init__(self, module: nn.Module) -> None:
        self.parameters = [item for item in module.parameters() if item.requires_grad]

    def collect(self) -> None:
        """Does nothing: the gradients are there already."""

    def clear(self) -> None:
        """Drop all gradients."""
        for item in self.parameters:
            item.grad = None

    def norm(self) -> torch.Tensor:
        """Norm of the gradients, which are equal on all ranks."""
        return get_total_norm([item.grad for item in self.parameters if item.grad is not None])

    def share_overflow(self) -> None:
        """The exchange has: a sum with an infinity in it is not finite."""


class Shares:
    """This rank's rows of every weight that `fully_shard` took, as plain tensors on the same memory.

    An optimizer step is element by element, so it needs no distributed tensors, which cost host time in
    every call. What does concern all ranks, the norm and an overflow, is one collective each, timed like the
    others.

    Args:
        module: after `fully_shard`.
        reduce: adds up a tensor over the ranks that together hold one copy of the weights, in place; None
            where one rank does.
    """

    def __init__(self, module: nn.Module, reduce: Callable[[torch.Tensor, str], None] | None) -> None:
        self._sharded = [item for item in module.parameters() if item.requires_grad]
        self._reduce = reduce
        self.parameters = [nn.Parameter(_local(item).detach()) for item in self._sharded]

    def collect(self) -> None:
        """Take the gradients that FSDP2 left at the sharded weights."""
        for mine, sharded in zip(self.parameters, self._sharded, strict=True):
            mine.grad = _local(sharded.grad) if sharded.grad is not None else None

    def clear(self) -> None:
        """Drop them in both places."""
        for item in (*self.parameters, *self._sharded):
            item.grad = None

    def norm(self) -> torch.Tensor:
        """The root of the sum of squares over all shares."""
        square = get_total_norm(self._gradients()).float().square()
        if self._reduce is not None:
            self._reduce(square, "grad_norm")
        return square.sqrt()

    def share_overflow(self) -> None:
        """0 times the sum of all shares' norms is 0, or NaN: added to one gradient of each rank."""
        if self._reduce is None:
            return
        total = get_total_norm(self._gradients()).float()
        self._reduce(total, "overflow")
        for gradient in self._gradients():
            if gradient.numel():
                gradient.add_(total * 0)
                return

    def _gradients(self) -> list[torch.Tensor]:
        return [item.grad for item in self.parameters if item.grad is not None]


def _local(tensor: torch.Tensor) -> torch.Tensor:
    assert isinstance(tensor, DTensor)
    return tensor.to_local()
