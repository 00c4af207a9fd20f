from __future__ import annotations

import numpy as np
import torch

from aorta.workloads.dcrnn.data import Samples
from aorta.workloads.dcrnn.graph import transitions
from aorta.workloads.dcrnn.traffic import PER_DAY, generate
from tests.support.baselines import HistoricalAverage, last_value


def test_the_same_seed_gives_the_same_traffic() -> None:
    one, two, other = generate(5, 300, 1), generate(5, 300, 1), generate(5, 300, 2)
    assert np.array_equal(one.readings, two.readings, equal_nan=True)
    assert np.array_equal(one.weights, two.weights)
    assert not np.array_equal(one.weights, other.weights)


def test_shapes_ranges_and_a_few_missing_readings() -> None:
    traffic = generate(8, 1000, 3)
    assert traffic.readings.shape == (1000, 8)
    assert traffic.weights.shape == (8, 8)
    missing = np.isnan(traffic.readings).mean()
    assert 0.002 < missing < 0.05
    assert np.nanmin(traffic.readings) >= 3
    assert np.nanmax(traffic.readings) <= 80
    assert traffic.time_of_day is not None
    assert traffic.time_of_day[PER_DAY] == 0
    assert traffic.time_of_day[PER_DAY // 2] == 0.5


def test_the_graph_has_directions_and_not_all_edges() -> None:
    weights = generate(32, 10, 0).weights
    assert not np.array_equal(weights, weights.T)
    assert (np.diagonal(weights) == 1).all()
    assert 0.03 < (weights > 0).mean() < 0.5


def test_one_sensor_is_a_network_too() -> None:
    assert generate(1, 10, 0).weights.tolist() == [[1.0]]


def test_congestion_comes_from_the_sensors_ahead() -> None:
    traffic = generate(16, 3000, 5)
    slots = np.arange(3000) % PER_DAY
    daily = np.stack([np.nanmean(traffic.readings[slots == slot], axis=0) for slot in range(PER_DAY)])
    left = np.nan_to_num(traffic.readings - daily[slots])
    walk = transitions(traffic.weights)[0]
    ahead = walk - np.diag(np.diagonal(walk))
    # What comes next is explained better by own and neighbours' congestion than by own alone.
    now, then = left[:-1], left[1:]
    own = np.linalg.lstsq(now.reshape(-1, 1), then.reshape(-1), rcond=None)[1]
    both = np.stack((now.reshape(-1), (now @ ahead.T).reshape(-1)), axis=1)
    weights, joint, *_ = np.linalg.lstsq(both, then.reshape(-1), rcond=None)
    assert joint[0] < 0.97 * own[0]
    assert weights[1] > 0.2


def test_the_last_value_passes_over_what_is_missing() -> None:
    history = torch.tensor([[1.0, 5.0], [2.0, torch.nan], [torch.nan, torch.nan]]).reshape(1, 3, 2, 1)
    assert last_value(history, 2, 9.0).tolist() == [[[2.0, 5.0], [2.0, 5.0]]]
    empty = torch.full((1, 3, 1, 1), torch.nan)
    assert last_value(empty, 1, 9.0).tolist() == [[[9.0]]]
    assert last_value(torch.zeros(1, 3, 1, 1), 1, 9.0).tolist() == [[[0.0]]]


def test_the_historical_average_is_of_the_same_time_of_day() -> None:
    # Four moments a day, two days; the third has no reading at all in one slot.
    readings = np.array([1, 2, 3, np.nan, 3, 4, 5, np.nan], dtype=np.float32)
    clock = np.array([0, 0.25, 0.5, 0.75] * 2, dtype=np.float32)
    signals = np.stack((readings, clock), axis=-1)[:, None, :]
    average = HistoricalAverage(Samples(signals, 1, 1), per_day=4)
    history = torch.from_numpy(signals[1:2][None])
    overall = (1 + 2 + 3 + 3 + 4 + 5) / 6
    assert average.forecast(history, 3).flatten().tolist() == [4.0, overall, 2.0]
