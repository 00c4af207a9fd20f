"""The modules inside of models whose methods a program calls, `model.loss(batch)`, and not the model itself.

A call of a model is the forward pass, with everything that it calls. It is not known if a method is one, but
each module that it calls is a piece of the forward pass. Which ones a program calls itself is learned from a
few steps.
"""

from __future__ import annotations

import sys
from typing import Any

FIRST, LAST = 3, 8
"""Numbers of two steps: after the first all modules are watched, after the last only those that count."""


class InnerModules:
    """Learns which modules a program calls outside of every other one."""

    def __init__(self) -> None:
        self.called: set[int] | None = None
        """Modules that were called with gradients; None if they are not needed."""
        self.known: set[int] = set()
        """Modules whose calls are pieces of a forward pass."""

    def begins(self, step: int, *, forward: bool) -> bool:
        """Return whether all modules are to be watched from now on: no model itself has been called.

        Args:
            step: the number of the step that ends.
            forward: a forward pass was seen.
        """
        if step != FIRST or forward or _compiled():
            return False
        self.called = set()
        return True

    def ends(self, step: int) -> bool:
        """Return whether it is known now which modules are to be watched.

        Args:
            step: the number of the step that ends.
        """
        if step != LAST or self.called is None:
            return False
        self.known, self.called = self.called, None
        return True


def _compiled() -> bool:
    """Return whether torch has compiled anything: what is compiled is left as it is."""
    dynamo: Any = sys.modules.get("torch._dynamo.utils")
    return bool(dynamo is not None and dynamo.counters["frames"])


def restore(owner: Any, own: Any, put: Any) -> bool:
    """Take our call out of a class again. Returns False where another library has put one over it.

    Args:
        owner: the class.
        own: the `__call__` that the class had itself; None: it had none.
        put: ours.
    """
    if owner.__dict__.get("__call__") is not put:
        return False
    if own is None:
        del owner.__call__
    else:
        owner.__call__ = own
    return True
