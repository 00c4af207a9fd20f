"""Counts the batches that torch's loaders give, by their number of workers. No torch."""

from __future__ import annotations

from collections import Counter
from typing import Any


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
