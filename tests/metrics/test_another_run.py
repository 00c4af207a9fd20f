"""The interval of another run: Student's, over stretches."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aorta.metrics.another_run import apart, around, at_least, by_chance, spread


def test_five_stretches_give_students_interval_of_one_more() -> None:
    # Means 98 99 100 101 102: s is the root of (4 + 1 + 0 + 1 + 4) / 4.
    steps = np.repeat(np.array([98.0, 99.0, 100.0, 101.0, 102.0]), 4)
    assert spread(steps) == pytest.approx(2.7764451 * math.sqrt(2.5) * math.sqrt(1.2) / 100)


def test_steps_that_are_alike_leave_what_the_model_misses() -> None:
    assert spread(np.full(20, 8.0)) == 0.0
    assert spread(np.full(20, 8.0), miss=0.02) == pytest.approx(0.02)
    steps = np.repeat(np.array([98.0, 99.0, 100.0, 101.0, 102.0]), 4)
    alone = spread(steps)
    assert alone is not None
    assert spread(steps, miss=0.03) == pytest.approx(math.hypot(alone, 0.03))


def test_fewer_than_ten_steps_have_none_and_ten_have_one() -> None:
    assert spread(np.ones(9)) is None
    assert spread(np.ones(10)) == 0.0
    assert spread(np.empty(0)) is None
    assert around(1.5, None) is None


def test_noise_from_step_to_step_counts_less_than_that_between_stretches() -> None:
    quick, slow = np.tile([90.0, 110.0], 20), np.repeat([90.0, 110.0], 20)
    narrow, wide = spread(quick), spread(slow)
    assert narrow == 0.0
    assert wide is not None
    assert wide > 0.2


@given(st.floats(1.0, 10.0), st.floats(0.0, 1.0))
def test_a_ratio_and_its_inverse_have_the_same_interval(value: float, relative: float) -> None:
    there, back = around(value, relative), around(1 / value, relative)
    assert there is not None
    assert back is not None
    assert there.low == pytest.approx(1 / back.high)
    assert there.low <= value <= there.high
    assert there.confidence == 0.95


def test_it_holds_19_of_20_further_runs_where_runs_differ_as_stretches_do() -> None:
    rng = np.random.default_rng(3)
    hits = 0
    for _ in range(400):
        levels = rng.normal(100.0, 2.0, 6)
        relative = spread(np.repeat(levels[:5], 8))
        found = around(float(levels[:5].mean()), relative)
        assert found is not None
        hits += found.low <= levels[5] <= found.high
    assert 400 * 0.92 < hits < 400 * 0.98


FOUR = [100 * math.exp(0.1 * sign) for sign in (-1, 1, -1, 1)]
"""Logarithms a tenth to each side: their standard deviation is a tenth of the root of 4 / 3."""


def test_four_runs_give_students_interval_of_two_further_ones_and_a_bound_of_one() -> None:
    deviation = 0.1 * math.sqrt(4 / 3)
    assert apart(FOUR) == pytest.approx(3.182446 * deviation * math.sqrt(2), rel=1e-5)
    # Of t with three degrees of freedom, 2.353363 is exceeded in 5 of 100.
    assert by_chance(FOUR) == pytest.approx(2.353363 * deviation * math.sqrt(5 / 4), rel=1e-5)
    assert (apart([70.0] * 4), by_chance([70.0] * 4)) == (0.0, 0.0)


@pytest.mark.parametrize("steps", [[], [100.0] * 3])
def test_three_runs_say_nothing_of_others(steps: list[float]) -> None:
    assert (apart(steps), by_chance(steps)) == (None, None)


def test_an_interval_grows_to_what_other_runs_say_and_never_shrinks() -> None:
    own = around(2.0, 0.1)
    assert at_least(own, 2.0, 0.3) == around(2.0, 0.3)
    assert at_least(own, 2.0, 0.05) == own
    assert at_least(own, 2.0, None) == own
    assert at_least(None, 2.0, 0.3) is None


def test_it_holds_19_of_20_further_runs_where_runs_differ_and_their_steps_do_not() -> None:
    rng = np.random.default_rng(5)
    hits = 0
    for _ in range(400):
        levels = 100.0 * np.exp(rng.normal(0.0, 0.03, 8))
        found = around(float(levels[6]), apart(levels[:6].tolist()))
        assert found is not None
        hits += found.low <= levels[7] <= found.high
    assert 400 * 0.92 < hits < 400 * 0.98
