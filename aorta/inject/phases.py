"""Finds steps that hold something that other steps do not hold: validation, or a checkpoint. Pure."""

from __future__ import annotations

MEMORY = 8
"""Steps that are looked back on."""


class Rare:
    """Tells a thing that now and then falls into a step from one that belongs to every step.

    A forward pass without gradients is validation where it comes between two epochs. In a program with a
    teacher model it is part of each step.
    """

    def __init__(self) -> None:
        self._past = 0
        """A bit per step, the newest lowest."""
        self._steps = 0

    def happened(self, now: bool) -> bool:
        """Return whether the thing happened in this step and is rare.

        Args:
            now: whether it happened in this step.
        """
        usual = now and 2 * self._past.bit_count() >= max(self._steps, 2)
        self._past = (self._past << 1 | now) & (1 << MEMORY) - 1
        self._steps = min(self._steps + 1, MEMORY)
        return now and not usual
