"""Finds the optimizer whose update ends a step. Pure."""

from __future__ import annotations


class Cycle:
    """Learns the order in which a program's optimizers update.

    A step ends with the last update before an optimizer comes round again: with one optimizer that is each
    update, with the two of a GAN each second one, and with one per parameter (an optimizer in the backward
    pass) the last parameter's.
    """

    def __init__(self) -> None:
        self._since: dict[int, None] = {}
        """Optimizers that have updated since a step ended, in order."""
        self._last: int | None = None

    def ends(self, optimizer: int) -> bool:
        """Return whether the update of this optimizer ends a step.

        Args:
            optimizer: its identity.
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
