"""Finds steps that hold something that other steps do not hold: validation, or a checkpoint. Pure."""

from __future__ import annotations

from collections import deque

MEMORY = 8
"""Steps that are looked back on."""


class Rare:
    """Tells a thing that now and then falls into a step from one that belongs to every step.

    A forward pass without gradients is validation where it comes between two epochs. In a program with a
    teacher model it is part of each step.
    """

    def __init__(self) -> None:
        self._past: deque[bool] = deque(maxlen=MEMORY)

    def happened(self, now: bool) -> bool:
        """Return whether the thing happened in this step and is rare.

        Args:
            now: whether it happened in this step.
        """
        usual = sum(self._past) * 2 >= max(len(self._past), 2)
        self._past.append(now)
        return now and not usual
