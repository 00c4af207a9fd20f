"""`ddp_bucketed`: gradients travel in flat buckets."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from aorta.workloads.ddp_benchmark.communicator import Communicator
from aorta.workloads.ddp_benchmark.individual import Overlapped, adopt


def assign_buckets(sizes: Sequence[tuple[int, Hashable]], bound: int) -> list[list[int]]:
    """Group neighbours into buckets, by the rule of DistributedDataParallel.

    The parameter with which a bucket reaches the bound closes the bucket. So only the last bucket of its kind
    is smaller.

    Args:
        sizes: bytes and kind (what may share a bucket) of each parameter, in the order of sending.
        bound: bytes at which a bucket is full.

    Returns:
        Indices by bucket; order is kept, no bucket is empty.
    """
    buckets: list[list[int]] = []
    filled, kind = 0, None
    for index, (size, current) in enumerate(sizes):
        if not buckets or current != kind or filled >= bound:
            buckets.append([])
            filled, kind = 0, current
        buckets[-1].append(index)
        filled += size
    return buckets


@dataclass(frozen=True, slots=True)
class _Bucket:
    """Parameters that travel together, their indices, and where each gradient is in the flat tensor."""

    indices: list[int]
    parameters: list[nn.Parameter]
    flat: torch.Tensor
    gradients: torch.Tensor
    """`flat` without what rides behind the gradients."""
    views: list[torch.Tensor]


class Bucketed(Overlapped):
    """Buckets of bounded size in reverse order of the parameters.

    The first bucket is full early in the backward pass. At the end of the pass, at most the last bucket is
    exposed. Buckets are made once. Each `.grad` becomes a view into its bucket: a new gradient is copied
    there when its bucket is full, by one kernel per bucket. The shares of ranks that used each parameter ride
    at the end of the last bucket, which leaves when all of that is known.

    Args:
        communicator: averages the buckets.
        bucket_bytes: at which a bucket is full.
    """

    name = "ddp_bucketed"

    def __init__(self, communicator: Communicator, bucket_bytes: int) -> None:
        super().__init__(communicator)
        self._bound = bucket_bytes

    def build(self) -> None:
        """Buckets, views and hooks."""
        sizes = [(value.numel() * value.element_size(), value.dtype) for value in self.parameters]
        groups = assign_buckets(sizes, self._bound)
        self.assign(groups)
        self.buckets = [self._bucket(members, last=members is groups[-1]) for members in groups]
        self._shares = self.buckets[-1].flat[-len(self.parameters) :]
        for index, parameter in enumerate(self.parameters):
            parameter.register_post_accumulate_grad_hook(self._hook(index))

    def _bucket(self, members: list[int], last: bool) -> _Bucket:
        """An empty bucket; behind the gradients of the last one is room for the shares."""
        parameters = [self.parameters[index] for index in members]
        sizes = [value.numel() for value in parameters]
        flat = parameters[0].new_zeros(sum(sizes) + (len(self.parameters) if last else 0))
        gradients = flat[: sum(sizes)]
        parts = zip(gradients.split(sizes), parameters, strict=True)
        return _Bucket(members, parameters, flat, gradients, [part.view_as(value) for part, value in parts])

    def _hook(self, index: int) -> Callable[[torch.Tensor], None]:
        return lambda _: self.arrive(index)

    def send(self, unit: int) -> None:
        """See `Overlapped`."""
        bucket = self.buckets[unit]
        self._fill(bucket)
        if unit == len(self.buckets) - 1:
            self.write_shares(self._shares)
        self.communicator.start(bucket.flat)

    @torch.no_grad()
    def _fill(self, bucket: _Bucket) -> None:
        """Bring the gradients of a bucket into it and make them views of it, which frees the originals."""
        fresh = [
            gradient.reshape(-1)
            for index, parameter, view in zip(bucket.indices, bucket.parameters, bucket.views, strict=True)
            if self.arrived[index] and (gradient := parameter.grad) is not None and gradient is not view
        ]
        if len(fresh) == len(bucket.indices):
            torch.cat(fresh, out=bucket.gradients)
        else:
            self._fill_singly(bucket)
        adopt(bucket.parameters, bucket.views)

    def _fill_singly(self, bucket: _Bucket) -> None:
        """Fill a bucket as `_fill` does, where some gradients are absent or in the bucket already."""
        for index, parameter, view in zip(bucket.indices, bucket.parameters, bucket.views, strict=True):
            gradient = parameter.grad
            if not self.arrived[index] or gradient is None:
                view.zero_()
            elif gradient is not view:
                view.copy_(gradient)

    def settle(self) -> None:
        """Every `.grad` is a view already."""
        self.drop_unused(self._shares)
