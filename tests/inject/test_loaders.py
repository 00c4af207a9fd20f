"""The workers of the loader that gives most batches, and how often workers start."""

from __future__ import annotations

from queue import SimpleQueue

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


def test_a_start_counts_with_the_first_batch_behind_it() -> None:
    found, iterator = LoaderWorkers(), type("Iterator", (), {"_num_workers": 3})()
    found.started(iterator, 50)
    found.first(iter([1]), 1000)
    found.first(iterator, 7)
    found.first(iterator, 1000)
    assert (found.starts, found.start_ns) == (1, 57)
    passing = type("Iterator", (), {"_num_workers": 3, "_persistent_workers": False})()
    found.ended(passing, 3)
    found.ended(iterator, 1000)
    assert found.start_ns == 60, "workers that persist are not shut down"
    found.started(iter(DataLoader(DATA)), 50)
    assert found.starts == 1, "a loader without workers starts none"


class Unknown:
    """An iterator over a queue whose length the system does not tell."""

    def __init__(self) -> None:
        self._data_queue = self

    def qsize(self) -> int:
        raise NotImplementedError


def test_batches_whose_number_is_unknown_are_not_called_none() -> None:
    found = LoaderWorkers()
    found.asked(Unknown())
    assert found.ready is None


def test_batches_that_are_ready_are_counted() -> None:
    found, iterator = LoaderWorkers(), type("Iterator", (), {"_data_queue": SimpleQueue()})()
    assert found.ready is None
    found.asked(iter(DataLoader(DATA)))
    assert found.ready is None, "without workers there is no queue"
    found.asked(iterator)
    assert found.ready == 0.0
    iterator._data_queue.put(1)
    found.asked(iterator)
    assert found.ready == 0.5


def test_torch_still_calls_the_queue_so() -> None:
    iterator = iter(DataLoader(DATA, num_workers=1))
    assert iterator._data_queue.qsize() >= 0
    del iterator


def test_torch_keeps_the_workers_of_a_persistent_loader_in_this_attribute() -> None:
    assert DataLoader(DATA)._iterator is None
    loader = DataLoader(DATA, num_workers=1, persistent_workers=True)
    assert loader._iterator is None
    iterator = iter(loader)
    assert loader._iterator is iterator
    del iterator, loader
