"""`torch_ddp`: torch's own DistributedDataParallel, the reference."""

from __future__ import annotations

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from aorta.instrument.collectives import CollectiveRunner
from aorta.instrument.streams import current_stream
from aorta.instrument.watching import Watching
from aorta.workloads.ddp_benchmark.communicator import Communicator
from aorta.workloads.ddp_benchmark.interface import Implementation


class TorchDdp(Implementation):
    """DistributedDataParallel with gradients as views of its buckets, its fastest way.

    Args:
        communicator: for its device, clock and tape.
        bucket_bytes: largest bucket.
        observed: time each collective. Its reducer runs in C++ and shows nothing otherwise.
        find_unused: have it look for parameters without a gradient, each step.
    """

    name = "torch_ddp"

    def __init__(
        self,
        communicator: Communicator,
        bucket_bytes: int,
        observed: bool = False,
        find_unused: bool = False,
    ) -> None:
        self._communicator = communicator
        self._bound = bucket_bytes
        self._observed = observed
        self._find_unused = find_unused
        self._watching: Watching | None = None

    def prepare(self, model: nn.Module) -> nn.Module:
        """See `Implementation`."""
        shared = self._communicator
        if self._observed:
            collectives = CollectiveRunner(shared.clock, shared.device, shared.tape)
            on = current_stream(shared.device) if shared.device.type == "cuda" else None
            self._watching = Watching(collectives, lambda: on)
            self._watching.watch(True)
        return DistributedDataParallel(
            model,
            device_ids=[shared.device.index] if shared.device.type == "cuda" else None,
            bucket_cap_mb=self._bound / (1 << 20),
            gradient_as_bucket_view=True,
            find_unused_parameters=self._find_unused,
        )

    def after_backward(self) -> None:
        """Does nothing: DDP's reducer has averaged the gradients."""

    def finish(self) -> None:
        """Backward ended with the wait."""

    def close(self) -> None:
        """See `Implementation`."""
        if self._watching is not None:
            self._watching.watch(False)
