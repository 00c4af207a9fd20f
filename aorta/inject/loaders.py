"""The waits for torch's loaders, and the batches that they give, by their number of workers. No torch."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from threading import get_ident
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aorta.inject.driver import Driver
    from aorta.inject.parts import StepMarks


class LoaderWorkers:
    """Knows how many workers the loader has that gives most of the batches: the one of the training loop.

    It also counts how often workers start while steps are recorded, and how long the training thread waits
    for the first batch of workers that have just started.
    """

    def __init__(self) -> None:
        self._batches: Counter[int] = Counter()
        self.starts = 0
        self.start_ns = 0
        self._asked = self._ready = 0
        self.new = 0
        """Identity of an iterator whose workers have started and that has given no batch yet; 0: none."""

    def started(self, iterator: Any, took_ns: int) -> None:
        """Note that the workers of an iterator were started, which took the training thread so long."""
        if getattr(iterator, "_num_workers", 0):
            self.starts += 1
            self.start_ns += took_ns
            self.new = id(iterator)

    def first(self, iterator: Any, took_ns: int) -> None:
        """Note how long an iterator was waited for; only its first batch counts."""
        if self.new == id(iterator):
            self.start_ns += took_ns
            self.new = 0

    def gave(self, iterator: Any) -> None:
        """Count a batch of an iterator over a DataLoader; other iterators do not say their workers."""
        workers = getattr(iterator, "_num_workers", None)
        if isinstance(workers, int):
            self._batches[workers] += 1

    def asked(self, iterator: Any) -> None:
        """Count the batches that workers have ready when the training thread asks for one."""
        queue = getattr(iterator, "_data_queue", None)
        if queue is not None:
            with contextlib.suppress(
                NotImplementedError, OSError, ValueError
            ):  # closed, or not on this system
                self._ready += queue.qsize()
                self._asked += 1

    @property
    def ready(self) -> float | None:
        """Mean of these batches; None: no loader with workers was asked."""
        return self._ready / self._asked if self._asked else None

    def ended(self, iterator: Any, took_ns: int) -> None:
        """Note how long the end of an iterator took: workers that do not persist are shut down."""
        if getattr(iterator, "_num_workers", 0) and not getattr(iterator, "_persistent_workers", True):
            self.start_ns += took_ns

    @property
    def most(self) -> int | None:
        """The number of workers. None if no DataLoader gave a batch."""
        return max(self._batches, key=self._batches.__getitem__, default=None)


class LoaderHooks:
    """Notes the waits of the training thread for its loaders.

    Args:
        driver: knows the open step.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.workers = LoaderWorkers()
        self._starts = False
        """The loader that begins has no workers yet: persistent ones belong to its iterator."""
        self.newest = self.trained = 0
        """Identity of the iterator that gave the newest batch; of the one before the newest forward pass with
        gradients. 0: none.
        """

    @property
    def another(self) -> bool:
        """Return whether the newest batch is from a loader that the model does not train with."""
        return self.newest != self.trained

    def iteration_begins(self, loader: Any) -> tuple[Any, int | None]:
        """Return the loader that is started, and the moment; None if it is not needed."""
        parts = self._driver.here()
        self._starts = getattr(loader, "_iterator", None) is None
        return loader, None if parts is None else parts.waits()

    def iteration_begun(self, begun: tuple[Any, int | None], iterator: Any) -> None:
        """Note that a loader was started."""
        parts = self._waited(begun[1])
        if parts is not None and begun[1] is not None and self._starts and parts.step.phase == "steady":
            self.workers.started(iterator, time.monotonic_ns() - begun[1])
        if iterator is not None:
            self._driver.epochs.began(begun[0], iterator)

    def wait_begins(self, iterator: Any) -> tuple[Any, int | None]:
        """Return the iterator that is asked, and the moment; None if it is not needed."""
        parts = self._driver.here()
        self._driver.epochs.asked(iterator, training=get_ident() == self._driver.thread)
        if parts is not None and parts.step.phase == "steady":
            self.workers.asked(iterator)
        return iterator, None if parts is None else parts.waits()

    def wait_ended(self, begun: tuple[Any, int | None], batch: Any) -> None:
        """Note the loader's answer. None if it has no more."""
        if batch is None:
            self._driver.epochs.ended(begun[0])
        parts = self._waited(begun[1])
        if parts is not None:
            if batch is None and begun[1] is not None and parts.step.phase == "steady":
                self.workers.ended(begun[0], time.monotonic_ns() - begun[1])
            if self.workers.new and begun[1] is not None:
                self.workers.first(begun[0], time.monotonic_ns() - begun[1])
            if batch is not None:
                self.newest = id(begun[0])
            self.workers.gave(begun[0])
            parts.came(batch)

    def _waited(self, start: int | None) -> StepMarks | None:
        parts = self._driver.open_step
        if start is None or parts is None:
            return None
        self._driver.hooks.seen.add("loader")
        parts.waited(start)
        return parts
