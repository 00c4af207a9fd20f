from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from aorta.config import schema
from aorta.errors import ConfigError
from aorta.workloads.trainer.data import Batches, RankingSamples, check_size, start_worker
from aorta.workloads.trainer.world import World
from tests.workloads.trainer.tiny import tiny

CPU = torch.device("cpu")


def world(rank: int = 0, size: int = 1) -> World:
    return World(rank, rank, size, 0, CPU, None)


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def test_a_sample_follows_from_seed_and_index_alone() -> None:
    config = schema.DatasetConfig(vocab_size=100)
    data, again = RankingSamples(config), RankingSamples(config)
    again[3]  # what was drawn before does not matter
    assert equal(data[5], again[5])
    assert not equal(data[5], data[6])
    assert not equal(data[5], RankingSamples(schema.DatasetConfig(vocab_size=100, seed=1))[5])


def test_shapes_and_ranges() -> None:
    config = schema.DatasetConfig(
        sequence_length=5, sparse_features=3, vocab_size=9, num_dense_features=2, dense_dim=4
    )
    data = RankingSamples(config)
    for index in range(20):
        sample = data[index]
        assert {key: tuple(value.shape) for key, value in sample.items()} == {
            "history": (5,),
            "sparse": (3,),
            "dense": (2, 4),
            "label": (),
        }
        ids = torch.cat((sample["history"], sample["sparse"]))
        assert 0 <= int(ids.min()) <= int(ids.max()) < 9
        assert float(sample["label"]) in (0.0, 1.0)


def test_the_label_can_be_learned() -> None:
    data = RankingSamples(schema.DatasetConfig(vocab_size=100, dense_dim=4, num_dense_features=1))
    dense = np.array([float(data[index]["dense"][0].mean()) for index in range(600)])
    label = np.array([float(data[index]["label"]) for index in range(600)])
    assert dense[label == 1].mean() > dense[label == 0].mean() + 0.3
    assert 0.2 < label.mean() < 0.8


def test_the_delay_is_slept_once_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("aorta.workloads.trainer.data.time.sleep", slept.append)
    RankingSamples(schema.DatasetConfig(vocab_size=9, delay_ms=30))[0]
    assert slept == [0.03]
    RankingSamples(schema.DatasetConfig(vocab_size=9, delay_ms=0))[0]
    assert slept == [0.03]


def test_ranks_share_an_epoch_without_overlap(tmp_path: Path) -> None:
    config = tiny(tmp_path)
    data = Numbers()
    seen: dict[int, list[int]] = {}
    for epoch in (0, 1):
        for rank in range(2):
            batches = Batches(data, config, world(rank, 2))
            seen[epoch] = seen.get(epoch, []) + [
                int(x) for batch in batches.epoch(epoch) for x in batch["index"]
            ]
            batches.close()
    assert sorted(seen[0]) == sorted(seen[1]) == list(range(32))
    assert seen[0] != seen[1]


def test_a_data_set_below_one_step_is_refused(tmp_path: Path) -> None:
    config = tiny(tmp_path, "dataset.num_samples=15", "training.gradient_accumulation=2")
    check_size(config, 1)
    with pytest.raises(ConfigError, match=r"dataset\.num_samples is 15: one step needs 16"):
        check_size(config, 2)


class Numbers(Dataset[dict[str, torch.Tensor]]):
    """Every sample is its index, and the loader process that made it."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"index": torch.tensor(index), "pid": torch.tensor(os.getpid())}


def test_a_loader_worker_outlives_the_signals_of_its_job() -> None:
    loader = iter(DataLoader(Numbers(), batch_size=2, num_workers=1, worker_init_fn=start_worker))
    pid = int(next(loader)["pid"][0])
    assert pid != os.getpid()
    os.kill(pid, signal.SIGTERM)
    os.kill(pid, signal.SIGINT)
    assert [int(batch["index"][0]) for batch in loader] == list(range(2, 32, 2))


def test_closing_ends_the_workers_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    batches = Batches(Numbers(), tiny(tmp_path, "dataloader.num_workers=1"), world())
    pid = int(next(batches.epoch(0))["pid"][0])
    assert Path(f"/proc/{pid}").exists()
    batches.close()
    assert not Path(f"/proc/{pid}").exists()
    assert len(batches) == 0
