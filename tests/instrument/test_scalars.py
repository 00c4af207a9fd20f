"""Losses of several steps in one copy; memory of the host stands in for a GPU's."""

from __future__ import annotations

import math

import pytest
import torch

from aorta.errors import RunError
from aorta.instrument import scalars
from aorta.instrument.scalars import Landing, Scalars, kept


class OnGpu(torch.Tensor):
    """A tensor that says so."""

    is_cuda = True


@pytest.fixture(autouse=True)
def on_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pinned memory needs a GPU, so there is some already."""
    monkeypatch.setattr(scalars, "_FREE", [torch.zeros(16)])
    monkeypatch.setattr(scalars, "_REWRITTEN", {*scalars._REWRITTEN})


def of(*values: torch.Tensor | float | None) -> Scalars:
    """Of one step; its tensors are on a GPU."""
    return Scalars([kept(v.as_subclass(OnGpu) if isinstance(v, torch.Tensor) else v) for v in values])


def test_numbers_of_several_steps_come_back_to_their_steps() -> None:
    steps = [
        of(torch.tensor(1.5), torch.tensor(2.0, dtype=torch.float64)),
        of(3.0, None),
        of(None, torch.tensor(4.0)),
    ]
    landing = Landing(steps)
    assert landing.queued
    assert landing.read() == [[1.5, 2.0], [3.0, None], [None, 4.0]]
    assert landing.read() == [[1.5, 2.0], [3.0, None], [None, 4.0]]
    assert len(scalars._FREE) == 1  # given back once


def test_a_measured_zero_is_a_number_and_what_json_lacks_is_none() -> None:
    values = [torch.tensor(0.0), torch.tensor(math.nan), torch.tensor(-math.inf)]
    assert Landing([of(*values)]).read() == [[0.0, None, None]]


def test_a_tensor_changed_before_it_was_fetched_is_lost_and_no_other() -> None:
    first, second = torch.tensor(1.0), torch.tensor(2.0)
    steps = [of(first), of(second)]
    first.add_(5)
    landing = Landing(steps)
    second.add_(5)  # too late to matter
    assert landing.read() == [[None], [2.0]]


def test_one_number_of_a_large_storage_does_not_keep_it_and_its_shape_does_not_matter() -> None:
    large, small = torch.full((2000,), 3.0), torch.tensor([4.0])
    step = of(large[7:8], small)
    landing = Landing([step])
    assert landing.read() == [[3.0, 4.0]]
    assert [one.value.untyped_storage().nbytes() for one in step.values] == [4, 4]  # type: ignore[union-attr]


@pytest.mark.parametrize("elements", [0, 2])
def test_a_tensor_that_is_no_number_is_refused_when_it_is_given(elements: int) -> None:
    for on_gpu in (torch.ones(elements), torch.ones(elements).as_subclass(OnGpu)):
        with pytest.raises(RunError, match=f"has {elements} elements, expected 1"):
            kept(on_gpu)


def test_numbers_of_the_host_need_no_copy() -> None:
    landing = Landing([of(1.0, None)])
    assert not landing.queued
    assert landing.read() == [[1.0, None]]


def test_a_place_that_graphs_replay_into_costs_one_loss_and_then_none() -> None:
    replayed, kept = torch.tensor(0.0), []
    for step in range(6):
        replayed.data.fill_(step)  # as a replay does, this counts no version
        kept.append(of(replayed))
    # Only the newest is still what it was when it was given; of all others that is known.
    assert Landing(kept).read() == [[None]] * 5 + [[5.0]]
    kept = []
    for step in range(3):
        replayed.data.fill_(step)
        kept.append(of(replayed))
    assert Landing(kept).read() == [[0.0], [1.0], [2.0]]


def test_a_buffer_that_is_written_to_in_place_is_copied_from_then_on() -> None:
    buffer = torch.tensor(1.0)
    first = of(buffer)
    buffer.copy_(torch.tensor(2.0))
    assert Landing([first]).read() == [[None]]
    second = of(buffer)
    buffer.copy_(torch.tensor(3.0))
    assert Landing([second]).read() == [[2.0]]


class StandsForAnother(OnGpu):
    """As a functional collective's result: it has no memory, its copy does."""

    def data_ptr(self) -> int:
        return 0

    def clone(self) -> torch.Tensor:  # type: ignore[override]
        return super().clone().as_subclass(OnGpu)


def test_tensors_without_memory_of_their_own_are_not_taken_for_one() -> None:
    steps = [Scalars([kept(torch.tensor(value).as_subclass(StandsForAnother))]) for value in (1.0, 2.0)]
    assert Landing(steps).read() == [[1.0], [2.0]]


def test_what_torch_gives_no_access_to_any_more_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    gone, there = torch.tensor(1.0), torch.tensor(0.0)
    steps = [of(gone), of(there)]
    monkeypatch.setattr(scalars.KeptScalar, "moved_on", lambda one: one.address == gone.data_ptr())
    assert Landing(steps).read() == [[None], [0.0]]


def test_steps_in_inference_mode_leave_nothing_that_training_cannot_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scalars, "_FREE", [])
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda size, pin_memory: empty(size))
    with torch.inference_mode():
        assert Landing([of(torch.tensor(2.0))]).read() == [[2.0]]
    assert Landing([of(torch.tensor(3.0))]).read() == [[3.0]]
    assert len(scalars._FREE) == 1
