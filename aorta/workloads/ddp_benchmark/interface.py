"""Interface of an implementation of data parallelism, and the code that all implementations here share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import nn

from aorta.workloads.ddp_benchmark.communicator import Communicator


class Implementation(ABC):
    """Keeps a model the same on all ranks.

    A step is `loss.backward()`, `after_backward()`, `finish()`; then every `.grad` is the mean over ranks,
    and the optimizer may use it in the current stream. Gradients are cleared by setting them to None.

    A parameter that this rank did not use counts as zero. One that no rank used keeps `.grad` None, so that
    optimizers leave it alone.
    """

    name: ClassVar[str]

    @abstractmethod
    def prepare(self, model: nn.Module) -> nn.Module:
        """Take `model` (on its device), give every rank rank 0's weights, and return the module to call."""

    @abstractmethod
    def after_backward(self) -> None:
        """Hand over what is not on its way yet."""

    @abstractmethod
    def finish(self) -> None:
        """Wait, and set every `.grad`."""

    def close(self) -> None:  # noqa: B027 - most have nothing
        """Let go of what was watched; no step comes after."""


def broadcast_weights(model: nn.Module) -> None:
    """Give every rank rank 0's parameters and buffers."""
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            dist.broadcast(tensor, src=0)


class OwnImplementation(Implementation):
    """Parameters in reverse order of their registration, near the order in which backward reaches them, and
    a record of which of them were used.
    """

    def __init__(self, communicator: Communicator) -> None:
        self.communicator = communicator
        self.parameters: list[nn.Parameter] = []
        self.arrived: list[bool] = []
        """True, by parameter, where this rank's backward pass gave a gradient."""

    def prepare(self, model: nn.Module) -> nn.Module:
        """See `Implementation`."""
        broadcast_weights(model)
        self.parameters = [value for value in reversed(list(model.parameters())) if value.requires_grad]
        self.arrived = [False] * len(self.parameters)
        self.build()
        return model

    @abstractmethod
    def build(self) -> None:
        """Make buffers and hooks for `parameters`."""

    def new_shares(self) -> torch.Tensor:
        """A tensor of one number a parameter: averaged, it is the share of ranks that used it."""
        return torch.empty(len(self.parameters), device=self.communicator.device)

    def write_shares(self, shares: torch.Tensor) -> None:
        """This rank's 1 or 0 for each parameter."""
        if all(self.arrived):
            shares.fill_(1)
        else:
            shares.copy_(torch.tensor(self.arrived, dtype=shares.dtype))

    def drop_unused(self, shares: torch.Tensor) -> None:
        """Set `.grad` to None where the averaged `shares` say that no rank used the parameter.

        They are read, which stops the host, only where this rank missed one itself: otherwise every
        parameter was used somewhere.
        """
        if all(self.arrived):
            return
        for parameter, share in zip(self.parameters, shares.tolist(), strict=True):
            if share == 0:
                parameter.grad = None
