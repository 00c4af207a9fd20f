"""Forecasts that need no model: what a trained one must beat."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from numpy.typing import NDArray

from aorta.workloads.dcrnn.data import Samples


def last_value(history: torch.Tensor, horizon: int, mean: float) -> torch.Tensor:
    """The last reading of each sensor that is there, again and again; `mean` where the history has none.

    History (batch, time, N, channels) to (batch, horizon, N).
    """
    readings = history[..., 0]
    value = torch.full_like(readings[:, 0], mean)
    for step in range(readings.shape[1]):
        value = torch.where(torch.isnan(readings[:, step]), value, readings[:, step])
    return value.unsqueeze(1).expand(-1, horizon, -1)


class HistoricalAverage:
    """The training part's mean of each sensor at each time of day.

    Args:
        train: samples with the time of day in channel 1.
        per_day: moments of a day.
    """

    def __init__(self, train: Samples, per_day: int) -> None:
        readings, clock = train.signals[..., 0], train.signals[:, 0, 1]
        self._per_day = per_day
        slots = self._slot(clock)
        means = np.full((per_day, readings.shape[1]), np.nan)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # slots without a reading stay NaN
            for slot in np.unique(slots):
                means[slot] = np.nanmean(readings[slots == slot], axis=0)
            overall = np.nanmean(readings, axis=0)
        self._means = np.where(np.isnan(means), overall, means)

    def _slot(self, time_of_day: NDArray[np.floating]) -> NDArray[np.int64]:
        slots: NDArray[np.int64] = np.rint(time_of_day * self._per_day).astype(np.int64) % self._per_day
        return slots

    def forecast(self, history: torch.Tensor, horizon: int) -> torch.Tensor:
        """History (batch, time, N, channels) to (batch, horizon, N)."""
        last = self._slot(history[:, -1, 0, 1].numpy())
        slots = (last[:, None] + 1 + np.arange(horizon)) % self._per_day
        return torch.from_numpy(self._means[slots].astype(np.float32))
