"""Callbacks of frameworks, with the classes that they derive from in place of the frameworks."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from aorta.inject import callbacks
from aorta.inject.epochs import Epochs


class Told:
    """Stands for the driver."""

    def __init__(self) -> None:
        self.epochs = Epochs()
        self.said: list[str] = []

    def validates(self) -> None:
        self.said.append("validation")

    def saves(self) -> None:
        self.said.append("checkpoint")


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    driver = Told()
    monkeypatch.setattr(callbacks, "ACTIVE", [driver])
    for name, base in (("transformers", "TrainerCallback"), ("pytorch_lightning", "Callback")):
        module = ModuleType(name)
        setattr(module, base, type(base, (), {}))
        monkeypatch.setitem(sys.modules, name, module)
    return driver


def test_the_trainers_epoch_is_the_whole_part_of_its_number(told: Told) -> None:
    one = callbacks.hf_callback()
    one.on_epoch_begin(None, SimpleNamespace(epoch=2.0), None)
    assert told.epochs.step() == (2, 0)
    one.on_epoch_begin(None, SimpleNamespace(epoch=None), None)
    assert told.epochs.step() == (2, 1)
    one.on_evaluate(None, None, None, metrics={})
    one.on_save(None, None, None)
    assert told.said == ["validation", "checkpoint"]


def test_lightnings_first_look_at_the_validation_is_none(told: Told) -> None:
    one = callbacks.lightning_callback()
    one.on_train_epoch_start(SimpleNamespace(current_epoch=0), None)
    assert told.epochs.step() == (0, 0)
    one.on_validation_start(SimpleNamespace(sanity_checking=True), None)
    assert told.said == []
    one.on_validation_start(SimpleNamespace(sanity_checking=False), None)
    one.on_save_checkpoint(None, None, {})
    assert told.said == ["validation", "checkpoint"]


def test_without_hooks_they_do_nothing(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callbacks, "ACTIVE", [])
    callbacks.hf_callback().on_epoch_begin(None, SimpleNamespace(epoch=1.0), None)
    assert told.epochs.step() == (None, 0)
