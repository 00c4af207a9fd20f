"""The waits for torch's loaders, and the batches that they give, by their number of workers. No torch."""

from __future__ import annotations

from collections import Counter
from threading import get_ident
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aorta.inject.driver import Driver
    from aorta.inject.parts import StepMarks


class LoaderWorkers:
    """Knows how many workers the loader has that gives most of the batches: the one of the training loop."""

    def __init__(self) -> None:
        self._batches: Counter[int] = Counter()

    def gave(self, iterator: Any) -> None:
        """Count a batch of an iterator over a DataLoader; other iterators do not say their workers."""
        workers = getattr(iterator, "_num_workers", None)
        if isinstance(workers, int):
            self._batches[workers] += 1

    @property
    def most(self) -> int | None:
        """The number of workers; None: no DataLoader gave a batch."""
        return max(self._batches, key=self._batches.__getitem__, default=None)


class LoaderHooks:
    """Notes the waits of the training thread for its loaders.

    Args:
        driver: knows the open step.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.workers = LoaderWorkers()

    def iteration_begins(self, loader: Any) -> tuple[Any, int | None]:
        """Return the loader that is started, and the moment; None where nobody wants to know it."""
        parts = self._driver.here()
        return loader, None if parts is None else parts.waits()

    def iteration_begun(self, begun: tuple[Any, int | None], iterator: Any) -> None:
        """Note that a loader was started."""
        self._waited(begun[1])
        if iterator is not None:
            self._driver.epochs.began(begun[0], iterator)

    def wait_begins(self, iterator: Any) -> tuple[Any, int | None]:
        """Return the iterator that is asked, and the moment; None where nobody wants to know it."""
        parts = self._driver.here()
        self._driver.epochs.asked(iterator, training=get_ident() == self._driver.thread)
        return iterator, None if parts is None else parts.waits()

    def wait_ended(self, begun: tuple[Any, int | None], batch: Any) -> None:
        """Note the loader's answer; None: it has no more."""
        if batch is None:
            self._driver.epochs.ended(begun[0])
        parts = self._waited(begun[1])
        if parts is not None:
            self.workers.gave(begun[0])
            parts.came(batch)

    def _waited(self, start: int | None) -> StepMarks | None:
        parts = self._driver.open_step
        if start is None or parts is None:
            return None
        self._driver.hooks.seen.add("loader")
        parts.waited(start)
        return parts
