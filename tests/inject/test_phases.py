"""What falls into a step now and then, and what is part of each step."""

from __future__ import annotations

from aorta.inject.phases import Rare


def happened(steps: str) -> str:
    rare = Rare()
    return "".join("V" if rare.happened(step == "v") else "." for step in steps)


def test_validation_between_epochs_is_no_training() -> None:
    assert happened("....v.....v....") == "....V.....V...."


def test_a_forward_pass_without_gradients_in_each_step_is_training() -> None:
    assert happened("v" * 20)[2:] == "." * 18


def test_never_is_never() -> None:
    assert happened("." * 9) == "." * 9


def test_data_that_a_policy_collects_every_few_steps_is_training() -> None:
    assert happened("v..." * 5) == "V...V..............."


def test_validation_between_short_epochs_is_no_training() -> None:
    rare = Rare()
    assert all(rare.happened(True, between_epochs=True) for _ in range(9))
