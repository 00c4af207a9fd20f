"""Traffic: what the sensors of a road network read; and a generator of it with known dynamics."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aorta.workloads.dcrnn.graph import Matrix, gaussian_kernel, transitions

PER_DAY = 288
"""Readings per day: one every 5 minutes."""

KERNEL_THRESHOLD = 0.5
"""Threshold of the generated graph: each sensor has some neighbours, not most sensors."""
FORGETTING = 0.95
"""Share of the congestion that is still there after 5 minutes."""
SPREAD = 0.4
"""Share of it that has moved upstream."""
INCIDENTS = 0.004
"""Chance of an incident at a sensor in 5 minutes; it takes 10 to 30 mph."""
NOISE = 1.0
"""Standard deviation of a reading, in mph."""
OUTAGES = 0.002
"""Chance that a sensor goes silent, for 6 readings in the mean."""


@dataclass(frozen=True, slots=True, eq=False)
class Traffic:
    """Readings of N sensors at T moments and the graph between them.

    Args:
        readings: (T, N) in the unit of the source, NaN where missing.
        weights: (N, N), from row to column.
        time_of_day: (T,), 0 to 1 from midnight to midnight; None where the moments are unknown.
    """

    readings: Matrix
    weights: Matrix
    time_of_day: NDArray[np.float32] | None


def generate(nodes: int, moments: int, seed: int) -> Traffic:
    """Speeds in mph on a random road network: the same for the same arguments.

    Sensors lie in a unit square, each with a direction of travel. The distance to a sensor ahead is the
    plain one, and up to twice that to one behind; the graph is its thresholded Gaussian kernel. A sensor's
    speed is its free one, less two rush hours of its own depth, less its congestion, plus noise. Congestion
    starts at incidents, decays, and diffuses along the graph to those who are driving towards it:

        c' = FORGETTING · ((1 − SPREAD) · c + SPREAD · D_O⁻¹W c) + incidents

    Sensors fall silent now and then; those readings are missing.
    """
    random = np.random.default_rng(seed)
    weights = _graph(random, nodes)
    clock = np.arange(moments) % PER_DAY / PER_DAY
    free = random.uniform(55, 70, nodes)
    rush = sum(
        np.exp(-np.square((clock[:, None] - hour / 24) / 0.05) / 2) * random.uniform(3, 18, nodes)
        for hour in (8, 17.5)
    )
    congestion = _congestion(random, weights, moments)
    speeds = free - rush - congestion + random.normal(0, NOISE, (moments, nodes))
    readings = np.clip(speeds, 3, 80).astype(np.float32)
    readings[_silent(random, moments, nodes)] = np.nan
    return Traffic(readings, weights, clock.astype(np.float32))


def _graph(random: np.random.Generator, nodes: int) -> Matrix:
    if nodes == 1:
        return np.ones((1, 1), dtype=np.float32)
    positions = random.random((nodes, 2))
    headings = random.uniform(0, 2 * np.pi, nodes)
    offsets = positions[None, :, :] - positions[:, None, :]
    plain = np.linalg.norm(offsets, axis=2)
    ahead = np.cos(np.arctan2(offsets[..., 1], offsets[..., 0]) - headings[:, None])
    return gaussian_kernel(plain * (1.5 - 0.5 * ahead), KERNEL_THRESHOLD)


def _congestion(random: np.random.Generator, weights: Matrix, moments: int) -> NDArray[np.float64]:
    nodes = len(weights)
    walk = transitions(weights)[0].astype(np.float64)
    step = FORGETTING * ((1 - SPREAD) * np.eye(nodes) + SPREAD * walk)
    incidents = (random.random((moments, nodes)) < INCIDENTS) * random.uniform(10, 30, (moments, nodes))
    congestion = np.empty((moments, nodes))
    state = np.zeros(nodes)
    for moment in range(moments):
        state = step @ state + incidents[moment]
        congestion[moment] = state
    return congestion


def _silent(random: np.random.Generator, moments: int, nodes: int) -> NDArray[np.bool_]:
    silent = np.zeros((moments, nodes), dtype=bool)
    starts = np.argwhere(random.random((moments, nodes)) < OUTAGES)
    for (moment, node), length in zip(starts, random.geometric(1 / 6, len(starts)), strict=True):
        silent[moment : moment + length, node] = True
    return silent
