"""One collective per parameter: after backward, from hooks, or from buffers beside the gradients."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import nn

from aorta.workloads.ddp_benchmark.interface import OwnImplementation


class Synchronous(OwnImplementation):
    """`ddp`: after the backward pass, one all-reduce after another. Nothing is hidden."""

    name = "ddp"

    def build(self) -> None:
        """Nothing but the shares."""
        self._shares = self.new_shares()

    def after_backward(self) -> None:
        """Average every gradient, each before the next."""
        self.arrived = [parameter.grad is not None for parameter in self.parameters]
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            self.communicator.average(parameter.grad)
        self.write_shares(self._shares)
        self.communicator.average(self._shares)

    def finish(self) -> None:
        """Gradients are there already."""
        self.drop_unused(self._shares)


class Overlapped(OwnImplementation):
    """Sends units of parameters while backward runs, in the same order on every rank.

    The order is fixed: collectives pair up by order alone, and ranks may reach parameters in different
    orders, or not at all. So a unit waits for the ones before it, and what an unused parameter holds back
    goes after the backward pass.
    """

    def assign(self, units: list[list[int]]) -> None:
        """Set which parameters, by index, travel together."""
        self._units = units
        self._unit_of = {index: unit for unit, members in enumerate(units) for index in members}
        self._reset()

    def _reset(self) -> None:
        self._missing = [len(members) for members in self._units]
        self._next = 0
        self.arrived = [False] * len(self.parameters)

    def arrive(self, index: int) -> None:
        """The gradient of a parameter is complete on the current stream."""
        self.arrived[index] = True
        self._missing[self._unit_of[index]] -= 1
        while self._next < len(self._units) and self._missing[self._next] == 0:
            self._send_next()

    def _send_next(self) -> None:
        unit = self._next
        self._next += 1
        self.send(unit)

    @abstractmethod
    def send(self, unit: int) -> None:
        """Start the collective of a unit; parameters that have not arrived count as zero."""

    def after_backward(self) -> None:
        """Send what unused parameters held back."""
        while self._next < len(self._units):
            self._send_next()

    def finish(self) -> None:
        """Wait for all units."""
        self.communicator.wait()
        self.settle()
        self._reset()

    @abstractmethod
    def settle(self) -> None:
        """Set each `.grad`."""


class Individual(Overlapped):
    """`ddp_individual`: each gradient is averaged in place as soon as it has been accumulated."""

    name = "ddp_individual"

    def build(self) -> None:
        """A hook a parameter."""
        self._shares = self.new_shares()
        self.assign([[index] for index in range(len(self.parameters))])
        for index, parameter in enumerate(self.parameters):
            parameter.register_post_accumulate_grad_hook(self._hook(index))

    def _hook(self, index: int) -> Callable[[torch.Tensor], None]:
        return lambda _: self.arrive(index)

    def send(self, unit: int) -> None:
        """See `Overlapped`."""
        parameter = self.parameters[unit]
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        self.communicator.start(parameter.grad)

    def after_backward(self) -> None:
        """Exchange what is left, and the shares."""
        super().after_backward()
        self.write_shares(self._shares)
        self.communicator.start(self._shares)

    def settle(self) -> None:
        """Gradients were averaged in place."""
        self.drop_unused(self._shares)


class IndividualV2(Individual):
    """`ddp_individual_v2`: each gradient is copied into a buffer of its own before autograd accumulates it,
    and the buffer is averaged while accumulation goes on. The buffers live as long as the model.
    """

    name = "ddp_individual_v2"

    def build(self) -> None:
        """A buffer and a hook a parameter."""
        self._shares = self.new_shares()
        self._buffers = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.assign([[index] for index in range(len(self.parameters))])
        for index, parameter in enumerate(self.parameters):
            parameter.register_hook(self._copy(index))

    def _copy(self, index: int) -> Callable[[torch.Tensor], None]:
        def hook(gradient: torch.Tensor) -> None:
            self._buffers[index].copy_(gradient)
            self.arrive(index)

        return hook

    def send(self, unit: int) -> None:
        """See `Overlapped`."""
        if not self.arrived[unit]:
            self._buffers[unit].zero_()
        self.communicator.start(self._buffers[unit])

    def settle(self) -> None:
        """The averaged buffers become the gradients."""
        adopt(self.parameters, self._buffers)
        self.drop_unused(self._shares)


def adopt(parameters: list[nn.Parameter], gradients: list[torch.Tensor]) -> None:
    """Set each `.grad`, without a copy."""
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
