"""Loss and gradient norm of a step, read without stopping the GPU."""

from __future__ import annotations

import math

import torch


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

    def read(self) -> list[float | None]:
        """The numbers; call it after the step's end event."""
        return [None if value is None else _finite(float(value)) for value in self._values]


def _landing(value: torch.Tensor | float | None) -> torch.Tensor | float | None:
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach()
    if value.device.type != "cuda":
        return float(value)
    pinned = torch.empty(1, dtype=torch.float32, pin_memory=True)
    pinned.copy_(value.reshape(1), non_blocking=True)
    return pinned


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
