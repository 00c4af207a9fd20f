"""`ddp_bucketed`: gradients travel in flat buckets."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import torch

from aorta.train.ddp_benchmark.communicator import Communicator
from aorta.train.ddp_benchmark.individual import Overlapped, adopt


def assign_buckets(sizes: Sequence[tuple[int, Hashable]], bound: int) -> list[list[int]]:
    """Group neighbours into buckets.

    Args:
        sizes: bytes and kind (what may share a bucket) of each parameter, in the order of sending.
        bound: the most bytes of a bucket. A larger parameter has one to itself.

    Returns:
        Indices by bucket; order is kept, no bucket is empty.
    """
    buckets: list[list[int]] = []
    filled, kind = 0, None
    for index, (size, current) in enumerate(sizes):
        if not buckets or current != kind or filled + size > bound:
            buckets.append([])
            filled, kind = 0, current
        buckets[-1].append(index)
        filled += size
    return buckets


class Bucketed(Overlapped):
    """Buckets of bounded size in reverse order of the parameters: the first one is full early in the
    backward pass, and what is exposed at its end is at most the last one.

    Buckets are made once. Each `.grad` becomes a view into its bucket: a new gradient is copied there when
    its bucket is full, by one kernel a bucket. The shares of ranks that used each parameter ride at the end
    of the last bucket, which leaves when all of that is known.

    Args:
        communicator: averages the buckets.
        bucket_bytes: the bound.
    """

    name = "ddp_bucketed"

    def __init__(self, communicator: Communicator, bucket_bytes: int) -> None:
        super().__init__(communicator)
        self._bound = bucket_bytes

    def build(self) -> None:
        """Buckets, views and hooks."""
        parameters = self.parameters
        sizes = [(value.numel() * value.element_size(), value.dtype) for value in parameters]
        self.buckets = assign_buckets(sizes, self._bound)
        self.assign(self.buckets)
        self.flats = [self._flat(members, last=members is self.buckets[-1]) for members in self.buckets]
        self._views = [
            view for bucket in zip(self.buckets, self.flats, strict=True) for view in self._cut(*bucket)
        ]
        self._shares = self.flats[-1][-len(parameters) :]
        for index, parameter in enumerate(parameters):
            parameter.register_post_accumulate_grad_hook(self._hook(index))

    def _flat(self, members: list[int], last: bool) -> torch.Tensor:
        elements = sum(self.parameters[index].numel() for index in members)
        first = self.parameters[members[0]]
        return first.new_zeros(elements + (len(self.parameters) if last else 0))

    def _cut(self, members: list[int], flat: torch.Tensor) -> list[torch.Tensor]:
        """Views of a bucket in the shapes of its parameters; what rides behind them is left out."""
        sizes = [self.parameters[index].numel() for index in members]
        parts = flat[: sum(sizes)].split(sizes)
        return [part.view_as(self.parameters[index]) for part, index in zip(parts, members, strict=True)]

    def _hook(self, index: int) -> Callable[[torch.Tensor], None]:
        return lambda _: self.arrive(index)

    def send(self, unit: int) -> None:
        """See `Overlapped`."""
        self._fill(unit)
        if unit == len(self.buckets) - 1:
            self.write_shares(self._shares)
        self.communicator.start(self.flats[unit])

    @torch.no_grad()
    def _fill(self, unit: int) -> None:
        """Bring the gradients of a bucket into it and make them views of it, which frees the originals."""
        members = self.buckets[unit]
        views = [self._views[index] for index in members]
        gradients = [self.parameters[index].grad for index in members]
        fresh = [
            gradient.flatten()
            for index, gradient, view in zip(members, gradients, views, strict=True)
            if self.arrived[index] and gradient is not None and gradient.data_ptr() != view.data_ptr()
        ]
        if len(fresh) == len(members):
            torch.cat(fresh, out=self.flats[unit][: sum(value.numel() for value in fresh)])
        else:
            self._fill_singly(members)
        adopt([self.parameters[index] for index in members], views)

    def _fill_singly(self, members: list[int]) -> None:
        """As `_fill`, where some gradients are absent, or are in the bucket already."""
        for index in members:
            gradient, view = self.parameters[index].grad, self._views[index]
            if not self.arrived[index] or gradient is None:
                view.zero_()
            elif gradient.data_ptr() != view.data_ptr():
                view.copy_(gradient)

    def settle(self) -> None:
        """Every `.grad` is a view already."""
        self.drop_unused(self._shares)
