"""Validation: every sample once, on whichever rank, added up exactly."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from aorta.config import schema
from aorta.workloads.trainer.workload import Batch, Validation
from aorta.workloads.trainer.world import World

COUNTED = "_counted"
"""Added to each sample: 1, or 0 for one that only keeps the ranks in step."""


class Share(Dataset[dict[str, torch.Tensor]]):
    """The samples of one rank: rank, rank + ranks, ...

    Every rank has the same number, so that models whose forward pass communicates stay in step. Where the
    samples do not divide, the last one of a rank is a sample that another rank counts.
    """

    def __init__(self, samples: Dataset[dict[str, torch.Tensor]], size: int, rank: int, ranks: int) -> None:
        self._samples = samples
        self._size = size
        self._rank = rank
        self._ranks = ranks

    def __len__(self) -> int:
        return (self._size + self._ranks - 1) // self._ranks

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        position = self._rank + index * self._ranks
        sample = self._samples[position % self._size]
        return {**sample, COUNTED: torch.tensor(position < self._size, dtype=torch.float64)}


class Validator:
    """Runs a workload's validation on this rank's share of the samples.

    The loader has no processes of its own: they would be started and ended in every epoch, or wait beside
    those of the training.
    """

    def __init__(self, validation: Validation, config: schema.Config, world: World) -> None:
        self._validation = validation
        self._world = world
        samples: Dataset[dict[str, torch.Tensor]] = validation.dataset
        size = len(samples)  # type: ignore[arg-type]
        self._loader: DataLoader[dict[str, torch.Tensor]] = DataLoader(
            Share(samples, size, world.rank, world.size), batch_size=config.training.batch_size
        )

    @torch.no_grad()
    def run(self, model: Callable[[Batch], torch.Tensor]) -> dict[str, float]:
        """The result of `summarise` for all samples of all ranks; every rank calls it and gets the
        same.
        """
        total: torch.Tensor | None = None
        for loaded in self._loader:
            batch = {name: value.to(self._world.device) for name, value in loaded.items()}
            counted = batch.pop(COUNTED)
            rows = self._validation.score(model(batch), batch)
            part = torch.einsum("s,s...->...", counted, rows)
            total = part if total is None else total + part
        assert total is not None, "a data set of no samples is refused before"
        total = total.cpu()
        if self._world.control is not None:
            dist.all_reduce(total, group=self._world.control)
        return self._validation.summarise(total)
