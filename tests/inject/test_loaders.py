"""The workers of the loader that gives most batches."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader, TensorDataset

from aorta.inject.loaders import LoaderWorkers

DATA = TensorDataset(torch.zeros(6, 1))


def test_the_loader_that_gives_most_batches_counts() -> None:
    found = LoaderWorkers()
    for _ in range(4):
        found.gave(iter(DataLoader(DATA, num_workers=0)))
    found.gave(type("Iterator", (), {"_num_workers": 3})())
    assert found.most == 0, "none is a number of workers, too"


def test_iterators_that_are_no_loader_s_say_nothing() -> None:
    found = LoaderWorkers()
    found.gave(iter([1]))
    assert found.most is None


def test_torch_still_calls_the_attribute_so() -> None:
    assert iter(DataLoader(DATA))._num_workers == 0
