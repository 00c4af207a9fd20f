"""Batches of the plain trainer, with the mistakes of loaders."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from torch.utils.data import DataLoader, Dataset

from aorta.workloads.mistakes.options import MistakeOptions

_SLOW = ("loader_serial", "loader_few_workers", "loader_rank1")
_EPOCH = 12
"""Batches per epoch of `loader_respawn`."""
_BIG = 25_000_000
"""Numbers in the extra input of `pageable_copy`: 100 MB."""


class Tokens(Dataset[torch.Tensor]):
    """Random tokens; a sample takes CPU time where the loader is to be slow."""

    def __init__(self, options: MistakeOptions, rank: int) -> None:
        self._options, self._rank = options, rank
        slow = options.mistake in _SLOW
        if options.mistake == "loader_rank1":
            slow = not options.fixed and rank == 1
        self._seconds = options.load_ms / 1e3 if slow else 0.0

    def __len__(self) -> int:
        batches = _EPOCH if self._options.mistake == "loader_respawn" else 10_000
        return batches * self._options.batch

    def __getitem__(self, index: int) -> torch.Tensor:
        if self._options.device == "cpu":
            # As from slow storage: the ranks compute on the same cores.
            time.sleep(self._seconds)
        until = time.perf_counter() + (0.0 if self._options.device == "cpu" else self._seconds)
        while time.perf_counter() < until:
            pass
        made = torch.Generator().manual_seed(index)
        return torch.randint(0, self._options.vocabulary, (self._options.length + 1,), generator=made)


def batches(options: MistakeOptions, rank: int) -> Iterator[torch.Tensor]:
    """Batches for ever, epoch after epoch."""
    # On a CPU the workers would take the cores that the ranks compute on.
    workers = 2 if options.device == "cuda" else 0
    if options.mistake == "loader_serial":
        workers = 6 if options.fixed else 0
    elif options.mistake == "loader_few_workers":
        workers = 8 if options.fixed else 1
    elif options.mistake == "loader_respawn":
        workers = 6
    elif options.mistake == "loader_rank1":
        workers = 1
    loader = DataLoader(
        Tokens(options, rank),
        batch_size=options.batch,
        num_workers=workers,
        pin_memory=options.device == "cuda",
        drop_last=True,
        persistent_workers=workers > 0 and not options.wrong("loader_respawn"),
    )
    while True:
        yield from loader


class ExtraInput:
    """A second, large input for each step of `pageable_copy`; nothing for the others."""

    def __init__(self, options: MistakeOptions) -> None:
        self._made = torch.randn(_BIG) if options.mistake == "pageable_copy" else None
        self._pinned = options.fixed
        if self._made is not None and self._pinned and options.device == "cuda":
            self._made = self._made.pin_memory()

    def to(self, device: torch.device) -> torch.Tensor | None:
        """The input on the device."""
        return None if self._made is None else self._made.to(device, non_blocking=self._pinned)
