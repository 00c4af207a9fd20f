"""Losses of several steps in one copy; memory of the host stands in for a GPU's."""

from __future__ import annotations

import math

import pytest
import torch

from aorta.instrument import scalars
from aorta.instrument.scalars import Landing, Scalars


@pytest.fixture(autouse=True)
def on_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors are kept until they land; pinned memory needs a GPU, so there is some already."""
    monkeypatch.setattr(scalars, "_kept", lambda value: value)
    monkeypatch.setattr(scalars, "_FREE", [torch.zeros(16)])


def test_numbers_of_several_steps_come_back_to_their_steps() -> None:
    steps = [
        Scalars(torch.tensor(1.5), torch.tensor(2.0, dtype=torch.float64)),
        Scalars(3.0, None),
        Scalars(None, torch.tensor(4.0)),
    ]
    landing = Landing(steps)
    assert landing.queued
    assert landing.read() == [[1.5, 2.0], [3.0, None], [None, 4.0]]
    assert landing.read() == [[1.5, 2.0], [3.0, None], [None, 4.0]]
    assert len(scalars._FREE) == 1  # given back once


def test_a_measured_zero_is_a_number_and_what_json_lacks_is_none() -> None:
    values = [torch.tensor(0.0), torch.tensor(math.nan), torch.tensor(-math.inf)]
    assert Landing([Scalars(*values)]).read() == [[0.0, None, None]]


def test_a_tensor_changed_before_it_was_fetched_is_lost_and_no_other() -> None:
    first, second = torch.tensor(1.0), torch.tensor(2.0)
    steps = [Scalars(first), Scalars(second)]
    first.add_(5)
    landing = Landing(steps)
    second.add_(5)  # too late to matter
    assert landing.read() == [[None], [2.0]]


def test_numbers_of_the_host_need_no_copy() -> None:
    landing = Landing([Scalars(1.0, None)])
    assert not landing.queued
    assert landing.read() == [[1.0, None]]
