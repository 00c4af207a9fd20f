"""Losses and gradient norms of some steps, read together and without stopping the GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import torch

from aorta.errors import RunError

_FREE: list[torch.Tensor] = []
"""Pinned memory that was read: allocating some costs more than the copy into it."""
_PINNED = 128
_LARGEST = 4096
"""Bytes of a storage that may be kept for its one number."""


_REWRITTEN: set[int] = {0}
"""Addresses that programs write their number to again and again: a buffer, or what a CUDA graph replays into.
0 is that of every tensor which stands for another, as the result of a functional collective does.
"""


class KeptScalar(NamedTuple):
    """A tensor on a GPU, and the means to see if the program has written to it since."""

    value: torch.Tensor
    address: int
    version: int

    def moved_on(self) -> bool:
        """True if the tensor was written to since it was kept."""
        try:
            return (self.value.data_ptr(), self.value._version) != (self.address, self.version)
        except RuntimeError:  # torch refuses access to what a compiled graph's next run has overwritten
            return True


def kept(value: torch.Tensor | float | None) -> KeptScalar | float | None:
    """The reference that is kept of a one-element tensor; a number or None is returned as it is. It runs in
    every step, where the host may have no time to spare: each question to a tensor takes a µs or two.

    Raises:
        RunError: the tensor has more elements, or none.
    """
    if not isinstance(value, torch.Tensor):
        return value
    if type(value) is not torch.Tensor and hasattr(value, "full_tensor"):
        return None  # each rank has a part of it, and to put them together would be a collective of ours
    if value.dim():
        if value.numel() != 1:
            raise RunError(
                f"a loss or gradient norm has {value.numel()} elements, expected 1",
                "give the mean of the elements",
            )
        value = value.reshape(())
    if value.requires_grad:
        value = value.detach()
    if not value.is_cuda:
        return float(value)
    address = value.data_ptr()
    try:
        version = value._version
    except RuntimeError:  # of a tensor of the inference mode, whose changes nobody counts
        version = None
    # Nor is a large storage kept for one number.
    if version is None or address in _REWRITTEN or value.untyped_storage().nbytes() > _LARGEST:
        with torch.inference_mode(False):
            value = value.clone()
        address, version = value.data_ptr(), value._version
    return KeptScalar(value, address, version)


@dataclass(slots=True, eq=False)
class Scalars:
    """Numbers of one step that may still be on their way.

    CUDA tensors are kept until a `Landing` copies those of several steps to pinned memory at once, because
    each single copy costs as much host work as a kernel. One that the program overwrites before is lost, and
    None; what it writes to the same place in later steps is copied at once. A NaN or an infinity is None,
    too: JSON has neither; and so is a sharded tensor.
    """

    values: list[KeptScalar | float | None]
    """Each from `kept`."""

    def settle(self, taken: set[int]) -> list[torch.Tensor]:
        """Tensors that `Landing` has to copy; overwritten ones are given up.

        Args:
            taken: addresses that later steps have written to, to which these are added.
        """
        found = []
        for at, one in enumerate(self.values):
            if not isinstance(one, KeptScalar):
                continue
            # Replays of a graph count no version. Memory of a kept tensor is given to no other, though.
            if one.address in taken or one.moved_on():
                _REWRITTEN.add(one.address)
                self.values[at] = None
            else:
                found.append(one)
        taken.update(one.address for one in found)
        return [one.value for one in found]

    def read(self, landed: Sequence[float]) -> list[float | None]:
        """The numbers.

        Args:
            landed: what became of those that `settle` gave, in that order.
        """
        came = iter(landed)
        found = [next(came) if isinstance(one, KeptScalar) else one for one in self.values]
        return [None if value is None or not math.isfinite(value) else value for value in found]


class Landing:
    """The copy of some steps' numbers to the host, queued on the current stream.

    Args:
        steps: in order.
    """

    def __init__(self, steps: Sequence[Scalars]) -> None:
        self._steps = steps
        self._pinned: torch.Tensor | None = None
        self._found: list[list[float | None]] | None = None
        newest_first: list[list[torch.Tensor]] = []
        taken: set[int] = set()
        for step in reversed(steps):
            newest_first.append(step.settle(taken))
        self._counts = [len(found) for found in reversed(newest_first)]
        values = [value for found in reversed(newest_first) for value in found]
        if values:
            device = values[0].device
            with torch.inference_mode(False):  # what is made in that mode cannot be written to outside of it
                self._pinned = _FREE.pop() if _FREE else torch.empty(_PINNED, pin_memory=True)
                together = [value.to(device, torch.float32, non_blocking=True) for value in values]
                self._pinned[: len(values)].copy_(torch.stack(together), non_blocking=True)

    @property
    def queued(self) -> bool:
        """True if any value has to come from the device."""
        return self._pinned is not None

    def read(self) -> list[list[float | None]]:
        """The numbers of each step, once the copy is done."""
        if self._found is None:
            numbers = [] if self._pinned is None else self._pinned[: sum(self._counts)].tolist()
            ends = list(accumulate(self._counts))
            self._found = [
                step.read(numbers[end - count : end])
                for step, count, end in zip(self._steps, self._counts, ends, strict=True)
            ]
            if self._pinned is not None:
                _FREE.append(self._pinned)
        return self._found
