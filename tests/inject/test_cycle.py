"""Which update ends a step."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aorta.inject.cycle import Cycle, Optimizers


def ends(updates: str) -> str:
    cycle = Cycle()
    return "".join("|" if cycle.ends(ord(one)) else "." for one in updates)


@pytest.mark.parametrize(
    ("updates", "expected"),
    [
        ("aaaa", ".|||"),  # each update
        ("dgdgdg", "...|.|"),  # a GAN: after the generator
        ("xyzxyzxyz", ".....|..|"),  # one optimizer per parameter
        ("dddgdddg", ".||.|||."),  # five updates of a critic: each one is a step
        ("aaabbb", ".||.||"),  # the second stage has an optimizer of its own
    ],
)
def test_a_step_ends_before_an_optimizer_comes_round_again(updates: str, expected: str) -> None:
    assert ends(updates) == expected


@given(st.permutations("abcdef"), st.integers(3, 6), st.integers(1, 6))
def test_a_cycle_of_any_length_is_one_step(order: list[str], rounds: int, length: int) -> None:
    cycle = "".join(order[:length])
    # The first round is learned from; after that each round ends one step, with its last update.
    assert ends(cycle * rounds)[length:] == ("." * (length - 1) + "|") * (rounds - 1)


def test_a_new_optimizer_has_a_number_of_its_own_wherever_it_lies() -> None:
    optimizers, found = Optimizers(), []

    class Optimizer:
        pass

    kept = Optimizer()
    for _ in range(3):
        for one in (Optimizer(), kept):
            found.append((optimizers.is_new(one), optimizers.newest))
    assert found == [(True, 0), (True, 1), (True, 2), (False, 1), (True, 3), (False, 1)]
    assert not optimizers.is_new(kept)


def test_optimizers_are_told_apart_whatever_their_class_says_of_equality() -> None:
    class Alike:
        """Without a hash, as each class that says what is equal."""

        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = None  # type: ignore[assignment]

    optimizers, one, other = Optimizers(), Alike(), Alike()
    found = [(optimizers.is_new(asked), optimizers.newest) for asked in (one, other, one, one)]
    assert found == [(True, 0), (True, 1), (False, 0), (False, 0)]
