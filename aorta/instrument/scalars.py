"""Losses and gradient norms of some steps, read together and without stopping the GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

import torch

_FREE: list[torch.Tensor] = []
"""Pinned memory that was read: allocating some costs more than the copy into it."""
_PINNED = 64
_LARGEST = 4096
"""Bytes of a storage that may be kept for its one number."""


class Scalars:
    """Numbers of one step that may still be on their way.

    CUDA tensors are kept as they are until `land` copies those of several steps into pinned memory at once:
    a copy for each costs the host as much as a kernel. One that the program changes in place before is
    lost, and None. So is a NaN or an infinity: JSON has neither.

    Args:
        values: each a one-element tensor, a number, or None where it does not exist.
    """

    def __init__(self, *values: torch.Tensor | float | None) -> None:
        self._values = [_kept(value) for value in values]
        self._versions = [
            value._version if isinstance(value, torch.Tensor) else None for value in self._values
        ]

    @property
    def on_device(self) -> list[torch.Tensor]:
        """Those that `land` has to copy."""
        self._values = [
            None if isinstance(value, torch.Tensor) and value._version != version else value
            for value, version in zip(self._values, self._versions, strict=True)
        ]
        return [value for value in self._values if isinstance(value, torch.Tensor)]

    def read(self, landed: Sequence[float]) -> list[float | None]:
        """The numbers.

        Args:
            landed: what became of `on_device`, in that order.
        """
        came = iter(landed)
        found = [next(came) if isinstance(value, torch.Tensor) else value for value in self._values]
        return [None if value is None or not math.isfinite(value) else value for value in found]


class Landing:
    """The copy of some steps' numbers to the host, queued on the current stream.

    Args:
        steps: in order.
    """

    def __init__(self, steps: Sequence[Scalars]) -> None:
        self._steps = steps
        self._counts = [0] * len(steps)
        self._pinned: torch.Tensor | None = None
        self._found: list[list[float | None]] | None = None
        values: list[torch.Tensor] = []
        for place, step in enumerate(steps):
            found = step.on_device
            self._counts[place] = len(found)
            values += found
        if values:
            self._pinned = _FREE.pop() if _FREE else torch.empty(_PINNED, pin_memory=True)
            device = values[0].device
            together = [value.to(device, torch.float32, non_blocking=True) for value in values]
            self._pinned[: len(values)].copy_(torch.stack(together), non_blocking=True)

    @property
    def queued(self) -> bool:
        """Whether anything has to come from the device."""
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


def _kept(value: torch.Tensor | float | None) -> torch.Tensor | float | None:
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach()
    if value.device.type != "cuda":
        return float(value)
    if value.dim():
        value = value.reshape(())
    # Neither a large storage for one number, nor a tensor whose changes nobody counts.
    return value.clone() if value.is_inference() or value.untyped_storage().nbytes() > _LARGEST else value
