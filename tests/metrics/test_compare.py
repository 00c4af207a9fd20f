"""Runs side by side: tiny integer steps, and differences that are noise or not."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aorta.artefacts.steps import DecodedStep
from aorta.metrics.compare import differ, of_step, over_ranks, overlap, spread
from tests.support.steps import step


def busy(number: int, start: int, *, compute: int = 60, rank: int = 0, end: int = 100) -> DecodedStep:
    return step(
        number,
        (start, start + end),
        rank=rank,
        data=[(start, start + 5)],
        compute=[(start + 10, start + 10 + compute)],
        collectives=[(start + 40, start + 90)],
    )


def test_the_metrics_of_a_step() -> None:
    found = of_step(busy(0, 1000))
    assert found["step_ms"] == 100
    assert found["compute_ms"] == 60
    assert found["communication_ms"] == found["allreduce_ms"] == 90 - 40
    assert found["hidden_communication_ms"] == found["compute_allreduce_ms"] == 70 - 40
    assert found["exposed_communication_ms"] == 90 - 70
    assert found["data_wait_ms"] == 5
    assert found["overlap_ratio"] == 30 / 50
    assert found["reducescatter_ms"] == 0.0  # measured, and there was none


def test_without_communication_the_ratio_is_absent_and_its_time_zero() -> None:
    found = of_step(step(0, (0, 10), compute=[(0, 10)]))
    assert math.isnan(found["overlap_ratio"])
    assert found["communication_ms"] == 0.0


def test_a_step_is_as_long_as_on_its_slowest_rank_and_else_the_mean() -> None:
    values = over_ranks({0: [busy(0, 0)], 1: [busy(0, 0, rank=1, compute=40, end=120)]})
    assert values["step_ms"].tolist() == [120]
    assert values["compute_ms"].tolist() == [(60 + 40) / 2]
    # hidden: 30 and 10 of 50 and 50
    assert overlap(values) == (30 + 10) / (50 + 50)


def test_without_steps_nothing_is_measured() -> None:
    values = over_ranks({0: [], 1: []})
    assert overlap(values) is None
    assert (spread(values["step_ms"]).count, spread(values["step_ms"]).mean) == (0, None)
    assert differ(values["step_ms"], values["step_ms"]).finding == "not measurable"


def test_a_spread_leaves_out_what_was_not_measured() -> None:
    found = spread(np.array([1.0, math.nan, 3.0, 8.0]))
    assert (found.count, found.mean, found.median) == (3, 4.0, 3.0)
    assert found.p95 == pytest.approx(3 + 0.9 * 5)


def noisy(seed: int, mean: float, count: int = 100) -> np.ndarray:
    return np.random.default_rng(seed).normal(mean, 2.0, count)


def test_noise_is_not_called_a_difference() -> None:
    found = differ(noisy(1, 50), noisy(2, 50))
    assert found.finding == "no difference beyond noise"
    assert found.ratio_low is not None
    assert found.ratio_high is not None
    assert found.ratio_low < 1 < found.ratio_high


def test_a_difference_is_found_in_its_direction() -> None:
    assert differ(noisy(1, 50), noisy(2, 55)).finding == "higher"
    found = differ(noisy(1, 55), noisy(2, 50))
    assert found.finding == "lower"
    assert found.ratio == pytest.approx(50 / 55, rel=0.02)
    assert found.difference == pytest.approx(-5, abs=1)


def test_neighbouring_steps_that_resemble_each_other_widen_the_interval() -> None:
    slow = np.repeat(noisy(1, 50, 10), 10)  # 10 independent values, each seen ten times
    independent = noisy(1, 50, 100)

    def width(values: np.ndarray) -> float:
        found = differ(values, values)
        assert found.difference_high is not None
        assert found.difference_low is not None
        return found.difference_high - found.difference_low

    assert width(slow) > 1.5 * width(independent)


def test_from_nothing_there_is_a_difference_and_no_ratio() -> None:
    found = differ(np.zeros(10), np.full(10, 3.0))
    assert (found.ratio, found.ratio_low) == (None, None)
    assert (found.difference, found.finding) == (3.0, "higher")


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(1, 1000), min_size=2, max_size=40), st.floats(0.5, 2))
def test_a_scaled_run_has_that_ratio_and_the_same_records_the_same_numbers(
    values: list[float], factor: float
) -> None:
    reference = np.array(values)
    found = differ(reference, reference * factor)
    assert found.ratio == pytest.approx(factor)
    assert found == differ(reference, reference * factor)
