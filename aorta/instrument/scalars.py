"""Loss and gradient norm of a step, read without stopping the GPU."""

from __future__ import annotations

import math

import torch

_FREE: list[torch.Tensor] = []
"""Pinned numbers that were read: allocating one costs more than the copy into it."""


class Scalars:
    """Two numbers that may still be on their way.

    A CUDA tensor is copied into pinned memory on the current stream; once the step's end event has been
    passed the copy is complete, and reading it costs nothing. A NaN or an infinity is kept as None: JSON
    has neither.

    Args:
        values: each a one-element tensor, a number, or None where it does not exist.
    """

    def __init__(self, *values: torch.Tensor | float | None) -> None:
        self._values = [_landing(value) for value in values]
        self._read: list[float | None] | None = None

    def read(self) -> list[float | None]:
        """The numbers, after the step's end event."""
        if self._read is None:
            self._read = [None if value is None else _finite(float(value)) for value in self._values]
            _FREE.extend(value for value in self._values if isinstance(value, torch.Tensor))
            self._values = []
        return self._read


def _landing(value: torch.Tensor | float | None) -> torch.Tensor | float | None:
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach()
    if value.device.type != "cuda":
        return float(value)
    pinned = _FREE.pop() if _FREE else torch.empty((), dtype=torch.float32, pin_memory=True)
    pinned.copy_(value if value.dim() == 0 else value.reshape(()), non_blocking=True)
    return pinned


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
