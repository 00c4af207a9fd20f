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


def test_data_that_a_policy_collects_seldom_but_for_long_is_training() -> None:
    """Each tenth step takes 11 of 20 ms. The first three times tell nothing yet."""
    rare, since, found = Rare(), 0, []
    for step in range(60):
        took = 11 if step % 10 == 9 else 1
        since += took
        found.append(rare.happened(took == 11, took_ns=took, since_ns=since))
    assert [at for at, rarely in enumerate(found) if rarely] == [9, 19, 29]


def test_validation_now_and_then_that_takes_little_time_is_no_training() -> None:
    """Each tenth step takes 2 of 11 ms, less than a fifth."""
    rare, since, found = Rare(), 0, []
    for step in range(60):
        took = 2 if step % 10 == 9 else 1
        since += took
        found.append(rare.happened(took == 2, took_ns=took, since_ns=since))
    assert [at for at, rarely in enumerate(found) if rarely] == [9, 19, 29, 39, 49, 59]


def test_long_validation_between_epochs_is_no_training() -> None:
    rare = Rare()
    assert all(rare.happened(True, between_epochs=True, took_ns=9, since_ns=10) for _ in range(9))
