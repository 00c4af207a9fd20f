"""One clock beside another: offset, drift, and what is only scatter."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aorta.metrics.clock_lines import ClockLine, clock_line, put

SECONDS = np.arange(0, 90, dtype=np.int64) * 1_000_000_000


def test_an_offset_is_exact_and_has_no_rate() -> None:
    found = clock_line(SECONDS, np.full(90, 5_000_000_007))
    assert found == ClockLine(offset_ns=5_000_000_007)
    assert found.of(np.array([[1, 2]])).tolist() == [[5_000_000_008, 5_000_000_009]]


def test_a_drift_of_20_ppm_is_taken_out() -> None:
    # Each second the other clock shows 20 us more.
    gaps = 7 + SECONDS // 50_000
    found = clock_line(SECONDS, gaps)
    assert found.rate == pytest.approx(20e-6)
    assert found.of(SECONDS).tolist() == (SECONDS + gaps).tolist()
    assert found.uncertainty_ns == 0


def test_ends_that_lie_apart_do_not_turn_the_line() -> None:
    gaps = SECONDS // 50_000
    gaps[::7] += 40_000_000  # one call in seven ends 40 ms apart
    assert clock_line(SECONDS, gaps).rate == pytest.approx(20e-6, rel=0.02)


def test_scatter_is_no_drift() -> None:
    gaps = np.random.default_rng(1).normal(0, 1_000_000, 90).astype(np.int64)
    found = clock_line(SECONDS, gaps)
    assert found.rate == 0.0
    # Half of a normal distribution lies within 0.67 of its deviation.
    assert found.uncertainty_ns == pytest.approx(674_000, rel=0.3)


def test_few_times_and_a_single_one_have_an_offset_alone() -> None:
    assert clock_line(SECONDS[:8], SECONDS[:8] // 50_000).rate == 0.0
    assert clock_line(SECONDS[:1], np.array([3])) == ClockLine(offset_ns=3)
    # All at one time: nothing tells a rate.
    assert clock_line(np.zeros(12, dtype=np.int64), np.arange(12)).rate == 0.0


@given(
    st.tuples(st.integers(-(10**12), 10**12), st.floats(-1e-4, 1e-4), st.integers(0, 10**12)),
    st.tuples(st.integers(-(10**12), 10**12), st.floats(-1e-4, 1e-4), st.integers(0, 10**12)),
    st.integers(0, 10**13),
)
def test_a_chain_of_two_is_one_after_the_other(
    one: tuple[int, float, int], two: tuple[int, float, int], time: int
) -> None:
    first, second = ClockLine(*one), ClockLine(*two)
    at = np.array([time])
    assert abs(int(first.then(second).of(at)[0]) - int(second.of(first.of(at))[0])) <= 2


def test_times_of_several_clocks_go_each_by_its_own_line() -> None:
    lines = [ClockLine(), ClockLine(offset_ns=5), ClockLine(offset_ns=1, rate=0.5, about_ns=100)]
    which = np.array([0, 1, 2, 2])
    assert put(np.array([100, 100, 100, 120]), lines, which).tolist() == [100, 105, 101, 131]
