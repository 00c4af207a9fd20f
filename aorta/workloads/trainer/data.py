"""Synthetic ranking samples and the loader that brings them to a rank.

A sample is a function of (seed, index) and of nothing else: however many ranks and workers there are, index
17 is the same sample.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Generator, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from aorta.config import schema
from aorta.errors import ConfigError
from aorta.workloads.trainer.workload import Batch
from aorta.workloads.trainer.world import World

SIGNAL = 6.0
"""Scale of the label's logit: large enough that a model beats a coin within some dozen steps."""


class RankingSamples(Dataset[dict[str, torch.Tensor]]):
    """Clicks on items, with a signal that can be learned.

    A sample holds `history` (sequence_length item ids, int64), `sparse` (sparse_features ids of the same
    vocabulary, int64), `dense` (num_dense_features × dense_dim floats, standard normal) and `label` (0 or
    1, float). Ids are skewed towards small ones, as popularity is. The click's logit is the mean of a fixed
    score of each id plus the mean of the first dense feature.
    """

    def __init__(self, config: schema.DatasetConfig) -> None:
        self._config = config
        score = np.random.default_rng(config.seed).standard_normal(config.vocab_size)
        self._score = score.astype(np.float32)

    def __len__(self) -> int:
        return self._config.num_samples

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        config = self._config
        if config.delay_ms:
            time.sleep(config.delay_ms / 1000)
        random = np.random.default_rng((config.seed, index))
        history = self._ids(random, config.sequence_length)
        sparse = self._ids(random, config.sparse_features)
        dense = random.standard_normal((config.num_dense_features, config.dense_dim), dtype=np.float32)
        ids = np.concatenate((history, sparse))
        logit = SIGNAL * (self._score[ids].mean() + dense[0].mean())
        label = random.random() < 1 / (1 + np.exp(-logit))
        return {
            "history": torch.from_numpy(history),
            "sparse": torch.from_numpy(sparse),
            "dense": torch.from_numpy(dense),
            "label": torch.tensor(float(label)),
        }

    def _ids(self, random: np.random.Generator, count: int) -> NDArray[np.int64]:
        return (self._config.vocab_size * random.random(count) ** 3).astype(np.int64)


def start_worker(worker: int) -> None:
    """Loader workers leave signals to their rank: Slurm signals every process of a step, and a rank whose
    loader died under it cannot end its step. Their seeds come from the loader's generator."""
    del worker
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class Batches:
    """The batches of one rank, epoch by epoch; incomplete ones are dropped."""

    def __init__(
        self, dataset: Dataset[dict[str, torch.Tensor]], config: schema.Config, world: World
    ) -> None:
        seed = config.training.seed
        self._sampler: DistributedSampler[dict[str, torch.Tensor]] = DistributedSampler(
            dataset, num_replicas=world.size, rank=world.rank, shuffle=True, seed=seed, drop_last=True
        )
        workers = config.dataloader.num_workers
        self._loader: DataLoader[dict[str, torch.Tensor]] | None = DataLoader(
            dataset,
            batch_size=config.training.batch_size,
            sampler=self._sampler,
            num_workers=workers,
            pin_memory=config.dataloader.pin_memory and world.device.type == "cuda",
            drop_last=True,
            worker_init_fn=start_worker,
            persistent_workers=workers > 0,
            generator=torch.Generator().manual_seed(seed + world.rank),
        )
        self._running: Generator[Batch, None, None] | None = None

    def __len__(self) -> int:
        return len(self._loader) if self._loader is not None else 0

    def epoch(self, number: int) -> Iterator[Batch]:
        """The batches of an epoch, in its own order; workers start with the first one, not before."""
        self._sampler.set_epoch(number)
        self._running = self._draw()
        return self._running

    def _draw(self) -> Generator[Batch, None, None]:
        assert self._loader is not None
        yield from self._loader

    def close(self) -> None:
        """End the workers in order. They ignore the signal by which Python would end them at exit, so a
        rank that fails must do this or it waits for them forever."""
        if self._running is not None:
            self._running.close()
        self._running = self._loader = None


def check_size(config: schema.Config, ranks: int) -> None:
    """Every rank needs the samples of one optimizer step.

    Raises:
        ConfigError: the data set has fewer.
    """
    training = config.training
    needed = training.batch_size * training.gradient_accumulation * ranks
    if config.dataset.num_samples < needed:
        raise ConfigError(
            f"dataset.num_samples is {config.dataset.num_samples}: one step needs {needed}"
            f" (batch_size {training.batch_size} × gradient_accumulation {training.gradient_accumulation}"
            f" × {ranks} ranks)",
            "raise dataset.num_samples or lower training.batch_size",
        )
