"""Intervals by the moving block bootstrap: steps that follow one another resemble one another.

Künsch, The jackknife and the bootstrap for general stationary observations, Annals of Statistics 17 (1989).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from aorta.artefacts.measured import Interval

Floats = NDArray[np.float64]

CONFIDENCE = 0.95
MIN_VALUES = 10
"""Fewest values from which an interval is calculated."""
_DRAWS = 1000
_SEED = 20231
"""The same data gives the same interval."""


def ratio_interval(
    above: NDArray[np.floating] | NDArray[np.integer],
    below: Floats,
    runs: Sequence[tuple[int, int]] | None = None,
) -> Interval | None:
    """Interval of sum(above) / sum(below), or of products of such; None with fewer than 10 values.

    Args:
        above: (n,), one value per step. below: (n,), of the same steps; > 0. runs: half-open index ranges of
        steps without a break: no block crosses their ends. None if all belong to one.
    """
    drawn = resampled(len(above), runs)
    if drawn is None:
        return None
    return interval_of(above[drawn].sum(axis=1) / below[drawn].sum(axis=1))


def interval_of(values: Floats) -> Interval:
    """The central part of resampled values."""
    tail = 100.0 * (1.0 - CONFIDENCE) / 2.0
    low, high = np.percentile(values, [tail, 100.0 - tail])
    return Interval(low=float(low), high=float(high), confidence=CONFIDENCE)


def resampled(count: int, runs: Sequence[tuple[int, int]] | None = None) -> NDArray[np.int64] | None:
    """(draws, about n) indices, in blocks of about the cube root of n within `runs`; None where n < 10."""
    if count < MIN_VALUES:
        return None
    size = max(round(count ** (1 / 3)), 1)
    spans = runs or [(0, count)]
    begins = np.concatenate([np.arange(a, max(b - size, a) + 1) for a, b in spans])
    ends = np.concatenate([np.full(max(b - size, a) + 1 - a, b) for a, b in spans])
    blocks = -(-count // size)
    picked = np.random.default_rng(_SEED).integers(len(begins), size=(_DRAWS, blocks))
    indices = begins[picked][:, :, None] + np.arange(size)
    # A run shorter than a block gives its last step again.
    indices = np.minimum(indices, ends[picked][:, :, None] - 1)
    return np.asarray(indices.reshape(_DRAWS, -1)[:, :count], dtype=np.int64)
