"""The interval of another run: Student's, over stretches."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aorta.metrics.another_run import Repeat, apart, around, at_least, by_chance, doubt_of, spread


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


def ran(*steps_ms: float) -> list[Repeat]:
    return [Repeat(step) for step in steps_ms]


FOUR = ran(*(100 * math.exp(0.1 * sign) for sign in (-1, 1, -1, 1)))
"""Logarithms a tenth to each side: their standard deviation is a tenth of the root of 4 / 3."""


def test_four_runs_give_students_interval_of_two_further_ones_and_a_bound_of_one() -> None:
    deviation = 0.1 * math.sqrt(4 / 3)
    assert apart(FOUR) == pytest.approx(3.182446 * deviation * math.sqrt(2), rel=1e-5)
    # Of t with three degrees of freedom, 2.353363 is exceeded in 5 of 100.
    assert by_chance(FOUR) == pytest.approx(2.353363 * deviation * math.sqrt(5 / 4), rel=1e-5)
    assert (apart(ran(*[70.0] * 4)), by_chance(ran(*[70.0] * 4))) == (0.0, 0.0)


@pytest.mark.parametrize("steps", [[], [100.0] * 3])
def test_three_runs_say_nothing_of_others(steps: list[float]) -> None:
    assert (apart(ran(*steps)), by_chance(ran(*steps))) == (None, None)


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
        found = around(float(levels[6]), apart(ran(*levels[:6].tolist())))
        assert found is not None
        hits += found.low <= levels[7] <= found.high
    assert 400 * 0.92 < hits < 400 * 0.98


E = math.e
ONE_SIDE = 2.353363
"""Of t with three degrees of freedom, exceeded in 5 of 100."""


def bound(*repeats: tuple[float, float]) -> float:
    """Of chance, over what it is of a deviation of 1 between four runs."""
    found = by_chance([Repeat(step, doubt) for step, doubt in repeats])
    assert found is not None
    return found / (ONE_SIDE * math.sqrt(5 / 4))


def test_what_is_not_known_of_each_run_is_no_difference_between_runs() -> None:
    # Logarithms 0 and 2, twice: their squares from the mean sum to 4 over s² + u², which is 3 degrees.
    zero, two = (1.0, 0.0), (E**2, 0.0)
    assert bound(zero, two, zero, two) == pytest.approx(math.sqrt(4 / 3), rel=1e-5)
    half = [(step, 0.5) for step, _ in (zero, two, zero, two)]
    assert bound(*half) == pytest.approx(math.sqrt(4 / 3 - 0.25), rel=1e-5)
    # A deviation of 2 each would have them lie further apart than they do.
    assert bound(*[(step, 2.0) for step, _ in half]) == 0.0


def test_one_run_of_which_most_was_taken_does_not_make_the_scatter() -> None:
    """Six runs within 2 % of 57 ms and one of 94, of which 68 % were taken: known to within a quarter, it is
    hardly more than that apart; known exactly, it is the scatter.
    """
    near = ran(58.1, 56.6, 56.1, 58.3, 58.7, 56.2)
    alone, doubted, sure = (by_chance([*near, *more]) for more in ([], [Repeat(94.3, 0.23)], ran(94.3)))
    assert alone is not None
    assert doubted is not None
    assert sure is not None
    assert alone < doubted < 0.1
    assert sure > 0.35


def test_several_runs_apart_are_scatter_unless_each_is_in_doubt() -> None:
    near, far = ran(60.0, 61.0, 60.0, 61.0), (94.0, 96.0, 95.0)
    sure, doubted, hardly = (
        by_chance([*near, *(Repeat(step, doubt) for step in far)]) for doubt in (0.0, 0.05, 0.9)
    )
    assert sure is not None
    assert doubted is not None
    assert hardly is not None
    assert doubted == pytest.approx(sure, rel=0.05)
    assert sure > 0.4
    assert hardly < 0.05


@given(st.lists(st.tuples(st.floats(1.0, 1000.0), st.floats(0.0, 2.0)), min_size=4, max_size=9))
def test_doubt_only_takes_from_what_runs_differ_by(repeats: list[tuple[float, float]]) -> None:
    doubted = by_chance([Repeat(step, doubt) for step, doubt in repeats])
    sure = by_chance([Repeat(step) for step, _ in repeats])
    assert doubted is not None
    assert sure is not None
    assert 0.0 <= doubted <= sure + 1e-6


def test_the_doubt_of_an_interval_is_the_deviation_of_students_t() -> None:
    # Four degrees of freedom: 2.7764451 to each side, and a variance of 4 / 2.
    interval = around(3.0, 2.7764451)
    assert interval is not None
    assert doubt_of(interval, 3.0) == pytest.approx(math.sqrt(2.0))
    nothing = around(3.0, 0.0)
    assert nothing is not None
    assert doubt_of(nothing, 3.0) == 0.0
