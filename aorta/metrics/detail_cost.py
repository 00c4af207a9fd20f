"""Cost of timing a step part by part, against steps of the same run that were timed as a whole."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from aorta.artefacts.measured import DetailCost, Interval
from aorta.metrics.bootstrap import Floats, interval_of, resampled
from aorta.metrics.steady import Steady, consecutive
from aorta.units import NS_PER_MS, plural

MIN_STEPS = 3
"""Fewest detailed and other steps from which a median is usable."""


def detail_cost(steady: Steady) -> DetailCost | None:
    """Returns the ratio of median step times, each step by its slowest rank; None where all are detailed.

    Detailed steps come in blocks. Each block is compared with the steps timed as a whole right before and
    after it, as many on either side as it has. A slow drift of the machine then falls on both kinds alike.
    """
    detailed, whole = (np.isin(steady.numbers, kind.numbers) for kind in (steady.detailed(), steady.whole()))
    if detailed.all():
        return None
    beside = whole & _beside(detailed)
    slowest = np.max([steps.duration_ns for steps in steady.by_rank.values()], axis=0) / NS_PER_MS
    counts = int(detailed.sum()), int(beside.sum())
    reason = None
    if counts[0] < MIN_STEPS:
        reason = f"{plural(counts[0], 'steady step')} timed part by part, but {MIN_STEPS} are needed"
    elif counts[1] < MIN_STEPS:
        reason = (
            f"{plural(counts[1], 'steady step')} timed as a whole next to these steps, but {MIN_STEPS} are "
            "needed"
        )
    of_detailed, of_whole = (
        float(np.median(slowest[kind])) if kind.any() else None for kind in (detailed, beside)
    )
    return DetailCost(
        ratio=None if reason or not of_detailed or not of_whole else of_detailed / of_whole,
        ratio_interval=None if reason else _interval(slowest, detailed, beside),
        detailed_steps=counts[0],
        whole_steps=counts[1],
        detailed_ms=of_detailed,
        whole_ms=of_whole,
        detailed_mean_ms=float(slowest[detailed].mean()) if detailed.any() else None,
        whole_mean_ms=float(slowest[whole].mean()) if whole.any() else None,
        reason=reason,
    )


def _beside(detailed: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Returns which places lie beside a block of detailed ones, no farther from it than the block is long."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], detailed, [False])).astype(np.int8)))
    found = np.zeros(len(detailed), dtype=np.bool_)
    for first, end in edges.reshape(-1, 2).tolist():
        found[max(2 * first - end, 0) : 2 * end - first] = True
    return found & ~detailed


def _interval(slowest: Floats, detailed: NDArray[np.bool_], beside: NDArray[np.bool_]) -> Interval | None:
    """Interval of the ratio of the medians of resampled steps of both kinds."""
    medians = []
    for kind in (detailed, beside):
        places = np.flatnonzero(kind)
        drawn = resampled(len(places), consecutive(places.tolist()))
        if drawn is None:
            return None
        medians.append(np.median(slowest[places][drawn], axis=1))
    return interval_of(medians[0] / medians[1])
