"""`torch_ddp`: torch's own DistributedDataParallel, the reference."""

from __future__ import annotations

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from aorta.instrument.collectives import Collectives
from aorta.instrument.gradients import WatchedGroup
from aorta.workloads.ddp_benchmark.communicator import Communicator
from aorta.workloads.ddp_benchmark.interface import Implementation


class TorchDdp(Implementation):
    """DistributedDataParallel with gradients as views of its buckets, its fastest way.

    Args:
        communicator: for its device, clock and tape.
        bucket_bytes: largest bucket.
        observed: exchange in a process group that times each collective. Its reducer runs in C++ and shows
            nothing otherwise.
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
        self._watched: WatchedGroup | None = None

    def prepare(self, model: nn.Module) -> nn.Module:
        """See `Implementation`."""
        shared = self._communicator
        group: dist.ProcessGroup | None = None
        if self._observed:
            assert dist.group.WORLD is not None
            collectives = Collectives(shared.clock, shared.device, shared.tape)
            self._watched = WatchedGroup(collectives, dist.group.WORLD)
            self._watched.watch(True)
            group = self._watched.group
        return DistributedDataParallel(
            model,
            process_group=group,
            device_ids=[shared.device.index] if shared.device.type == "cuda" else None,
            bucket_cap_mb=self._bound / (1 << 20),
            gradient_as_bucket_view=True,
            find_unused_parameters=self._find_unused,
        )

    def after_backward(self) -> None:
        """Its reducer has done it."""

    def finish(self) -> None:
        """Backward ended with the wait."""

    def close(self) -> None:
        """See `Implementation`."""
        if self._watched is not None:
            self._watched.watch(False)
