"""Finds the optimizer whose update ends a step. Pure."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any


class Optimizers:
    """Numbers optimizers. The place of one that is gone may be given to a new one, so it does not tell them
    apart.
    """

    def __init__(self) -> None:
        self._numbers: dict[int, tuple[Callable[[], Any], int]] = {}
        """The optimizer that was last seen at an address, and its number. A program's class may say that two
        optimizers are equal, or have no hash."""
        self.asked: Callable[[], Any] = _nothing
        """Gives the optimizer that was asked about last; None once it is gone."""
        self._made = 0
        self.newest = -1
        """The number of the optimizer that was asked about last."""

    def is_new(self, optimizer: Any) -> bool:
        """Return True if this optimizer was not asked about before."""
        if self.asked() is optimizer:  # in most programs there is one
            return False
        self.asked, number = self._numbers.get(id(optimizer), (_nothing, 0))
        if self.asked() is optimizer:
            self.newest = number
            return False
        self.asked, self.newest = weakref.ref(optimizer), self._made
        self._numbers[id(optimizer)] = self.asked, self._made
        self._made += 1
        return True


def _nothing() -> None:
    """Return nothing, as a reference to an object that is gone does."""


class Cycle:
    """Learns the order in which a program's optimizers update.

    A step ends with the last update before an optimizer comes round again. With one optimizer, each update
    ends a step. With the two optimizers of a GAN, each second update does. With one optimizer per parameter
    (in the backward pass), the update of the last parameter does.
    """

    def __init__(self) -> None:
        self._since: dict[int, None] = {}
        """Optimizers that have updated since a step ended, in order."""
        self._last: int | None = None

    def alone(self, optimizer: int) -> bool:
        """Return whether each update of this optimizer ends a step, as those before did."""
        return optimizer == self._last and not self._since

    def ends(self, optimizer: int) -> bool:
        """Return whether the update of this optimizer ends a step.

        Args:
            optimizer: its number.
        """
        if optimizer == self._last:
            self._since = {}
            return True
        if optimizer in self._since:
            self._last = next(reversed(self._since))
            self._since = {optimizer: None}
            return optimizer == self._last
        self._since[optimizer] = None
        return False
