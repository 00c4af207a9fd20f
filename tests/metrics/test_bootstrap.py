"""Block bootstrap: blocks stay within runs, and intervals cover what they should."""

from __future__ import annotations

import numpy as np
import pytest

from aorta.metrics.bootstrap import interval_of, ratio_interval, resampled


def test_constant_steps_have_an_interval_of_no_width() -> None:
    found = ratio_interval(np.full(20, 8.0), np.full(20, 2.0))
    assert found is not None
    assert (found.low, found.high, found.confidence) == (4.0, 4.0, 0.95)


def test_fewer_than_ten_steps_have_none() -> None:
    assert ratio_interval(np.ones(9), np.ones(9)) is None
    assert ratio_interval(np.ones(10), np.ones(10)) is not None


def test_blocks_are_consecutive_and_stay_within_their_runs() -> None:
    drawn = resampled(27, [(0, 13), (13, 27)])
    assert drawn is not None
    assert drawn.shape == (1000, 27)
    assert (drawn.min(), drawn.max()) == (0, 26)
    blocks = drawn.reshape(1000, 9, 3)
    assert (np.diff(blocks, axis=2) == 1).all()
    assert not ((blocks[:, :, 0] < 13) & (blocks[:, :, 2] >= 13)).any()


def test_a_run_shorter_than_a_block_repeats_its_last_step() -> None:
    drawn = resampled(28, [(0, 27), (27, 28)])
    assert drawn is not None
    assert drawn.max() == 27


def test_the_interval_covers_the_mean_in_about_19_of_20_samples() -> None:
    rng = np.random.default_rng(5)
    hits = 0
    for _ in range(200):
        found = ratio_interval(rng.exponential(10.0, 100), np.ones(100))
        assert found is not None
        hits += found.low <= 10.0 <= found.high
    assert 200 * 0.87 < hits < 200 * 0.99


def test_the_same_data_has_the_same_interval() -> None:
    values = np.arange(30, dtype=np.float64) + 1
    assert ratio_interval(values, np.ones(30)) == ratio_interval(values, np.ones(30))


def test_interval_of_known_values() -> None:
    found = interval_of(np.arange(1001, dtype=np.float64))
    assert found.low == pytest.approx(25.0)
    assert found.high == pytest.approx(975.0)
