"""Epochs by passes over loaders."""

from __future__ import annotations

from collections.abc import Iterator

from aorta.inject.epochs import Epochs


class Loader:
    """So many batches; without a length where `known` is False."""

    def __init__(self, batches: int, *, known: bool = True) -> None:
        self.batches, self.known = batches, known

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.batches))

    def __len__(self) -> int:
        if not self.known:
            raise TypeError("a stream")
        return self.batches


def passed(epochs: Epochs, loader: Loader, batches: int | None = None, *, training: bool = True) -> object:
    """One pass; with a number of batches it asks for so many, and else until there are no more."""
    iterator = iter(loader)
    epochs.began(loader, iterator)
    asked = batches if batches is not None else loader.batches + 1
    for _ in range(asked):
        epochs.asked(iterator, training=training)
    if asked > loader.batches:
        epochs.ended(iterator)
    return iterator


def test_each_whole_pass_is_an_epoch() -> None:
    epochs, loader = Epochs(), Loader(2)
    for epoch in range(3):
        passed(epochs, loader)
        assert [epochs.step(), epochs.step()] == [(epoch, 0), (epoch, 1)]


def test_no_loader_is_no_epoch() -> None:
    epochs = Epochs()
    assert [epochs.step(), epochs.step()] == [(None, 0), (None, 1)]


def test_a_pass_that_was_broken_off_leaves_the_epoch_unknown() -> None:
    epochs, loader = Epochs(), Loader(3)
    passed(epochs, loader, 2)
    assert epochs.step() == (0, 0)
    passed(epochs, loader)
    assert epochs.step() == (None, 0)


def test_a_loop_that_counts_the_batches_itself_passes_over_all() -> None:
    epochs, loader = Epochs(), Loader(3)
    passed(epochs, loader, 3)
    passed(epochs, loader, 3)
    assert epochs.step()[0] == 1


def test_a_stream_without_a_length_ends_where_it_has_no_more() -> None:
    epochs, whole, broken = Epochs(), Loader(3, known=False), Loader(3, known=False)
    passed(epochs, whole)
    passed(epochs, whole)
    assert epochs.step()[0] == 1
    passed(epochs, broken, 3)
    passed(epochs, broken, 3)
    assert epochs.step()[0] is None


def test_the_programs_word_counts_for_more_than_passes() -> None:
    epochs, loader = Epochs(), Loader(2)
    epochs.says(5)
    passed(epochs, loader)
    assert epochs.step() == (5, 0)
    epochs.says("six")
    assert epochs.step() == (5, 1)


def test_a_batch_that_another_thread_fetches_belongs_to_no_step() -> None:
    epochs = Epochs()
    passed(epochs, Loader(2), training=False)
    assert epochs.step()[0] is None


def test_a_loader_that_is_new_after_an_update_has_no_known_epoch() -> None:
    epochs, before = Epochs(), Loader(2)
    passed(epochs, before)
    epochs.trained = True
    assert epochs.step() == (0, 0)
    passed(epochs, Loader(2))
    assert epochs.step() == (None, 0)
    passed(epochs, before)
    assert epochs.step() == (1, 0)
