"""The epoch of a step: the program's word, or the number of the pass over the loader. No torch.

A loader that is started again before it has given all of its batches may have begun a new epoch or not, and
so may a loader that is new when training has begun: their epochs are not known.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary


@dataclass(slots=True, eq=False)
class _Passes:
    """Passes over one loader."""

    epoch: int | None = 0
    iterator: int = 0
    """Identity of the newest iterator."""
    asked: int = 0
    """Calls of its `__next__`."""
    ended: bool = False
    """True if the loader had no more batches."""

    def whole(self, loader: Any) -> bool:
        """Return whether the newest iterator has given all batches."""
        try:
            return self.ended or self.asked >= len(loader)
        except TypeError:  # of a stream without a length
            return False


class Epochs:
    """Knows the epoch as the program says it, or as passes over loaders show it."""

    def __init__(self) -> None:
        self.said: int | None = None
        """The epoch as the program gave it, by `set_epoch` or by a callback."""
        self.trained = False
        """There was an update."""
        self._of_loader: WeakKeyDictionary[Any, _Passes] = WeakKeyDictionary()
        self._of_iterator: dict[int, _Passes] = {}
        self._newest: _Passes | None = None
        """The loader that the training thread has asked last."""
        self._counted: int | None = None
        self._steps = 0

    def says(self, epoch: Any) -> None:
        """Take the program's word."""
        if isinstance(epoch, int) and epoch >= 0:
            self.said = epoch

    def began(self, loader: Any, iterator: Iterable[Any]) -> None:
        """Note a new pass over a loader."""
        try:
            passes = self._of_loader.setdefault(loader, _Passes(None if self.trained else 0))
        except TypeError:  # a loader of the program's own class that cannot be a key
            return
        if passes.asked:
            whole = passes.epoch is not None and passes.whole(loader)
            passes.epoch = passes.epoch + 1 if whole and passes.epoch is not None else None
        self._of_iterator.pop(passes.iterator, None)
        passes.iterator, passes.asked, passes.ended = id(iterator), 0, False
        self._of_iterator[passes.iterator] = passes

    def asked(self, iterator: Any, *, training: bool) -> None:
        """Note that an iterator was asked for a batch, by the training thread or by another one."""
        passes = self._of_iterator.get(id(iterator))
        if passes is not None:
            passes.asked += 1
        if training:
            self._newest = passes

    def ended(self, iterator: Any) -> None:
        """Note that an iterator had no more."""
        passes = self._of_iterator.get(id(iterator))
        if passes is not None:
            passes.ended = True

    def step(self) -> tuple[int | None, int]:
        """Return the epoch of the step that ends now, and the number of its steps before it."""
        epoch = self.said
        if epoch is None and self._newest is not None:
            epoch = self._newest.epoch
        if epoch != self._counted:
            self._counted, self._steps = epoch, 0
        self._steps += 1
        return epoch, self._steps - 1
