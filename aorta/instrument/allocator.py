"""Counters of the GPU's caching allocator for each step; the allocator keeps them on the host anyway."""

from __future__ import annotations

from typing import Any

import torch

from aorta.instrument.wire import AllocatorPeaks


class AllocatorCounts:
    """Reads the allocator around each step; on a CPU there is none.

    One call gives every counter, without a synchronisation; `torch.cuda.memory_stats` would sort and flatten
    all of them for a few.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._cuda = device.type == "cuda"
        self._retries: int | None = None
        self._ooms = 0

    def start(self) -> None:
        """Reset the peaks before a step; the counters of calls are never reset."""
        if not self._cuda:
            return
        torch.cuda.reset_peak_memory_stats(self._device)
        if self._retries is None:
            stats = self._stats()
            self._retries, self._ooms = _calls(stats)

    def skip(self) -> None:
        """A step that is not counted, or failed: what is called in it belongs to no step."""
        self._retries = None

    def read(self) -> AllocatorPeaks | None:
        """Memory use of the step since `start`; None without a GPU."""
        if not self._cuda:
            return None
        stats = self._stats()
        retries, ooms = _calls(stats)
        made = AllocatorPeaks(
            peak_bytes=int(stats["allocated_bytes"]["all"]["peak"]),
            reserved_bytes=int(stats["reserved_bytes"]["all"]["peak"]),
            retries=retries - (self._retries or 0),
            ooms=ooms - self._ooms,
        )
        self._retries, self._ooms = retries, ooms
        return made

    def _stats(self) -> dict[str, Any]:
        return torch.cuda.memory_stats_as_nested_dict(self._device)


def _calls(stats: dict[str, Any]) -> tuple[int, int]:
    return int(stats["num_alloc_retries"]), int(stats["num_ooms"])
