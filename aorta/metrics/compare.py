"""Runs side by side: metrics of their steady steps, and which differences are more than noise.

Intervals are percentiles of a bootstrap over blocks of neighbouring steps, because their times are not
independent. The seed is fixed, so the same records give the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from aorta.artefacts.comparison import METRICS, Difference, Finding, MetricSpread
from aorta.artefacts.steps import DecodedStep
from aorta.intervals import Intervals, as_intervals, clip, intersection, length
from aorta.units import ms_to_ns, ns_to_ms

Values = NDArray[np.float64]
"""One number per step; NaN: not measured."""

RESAMPLES = 2000
SEED = 20
STREAMS = ("allreduce", "reducescatter", "allgather")


def of_step(step: DecodedStep) -> dict[str, float]:
    """The metrics of one rank's step, NaN for what its record does not say."""
    found = dict.fromkeys(METRICS, math.nan)
    found["step_ms"] = ns_to_ms(step.duration_ns)
    parts = step.breakdown
    if parts is None:
        return found
    found |= {
        "compute_ms": ns_to_ms(parts.compute_ns),
        "communication_ms": ns_to_ms(parts.comm_ns),
        "hidden_communication_ms": ns_to_ms(parts.hidden_comm_ns),
        "exposed_communication_ms": ns_to_ms(parts.exposed_comm_ns),
        "data_wait_ms": ns_to_ms(parts.data_wait_ns),
        "host_ms": ns_to_ms(parts.host_ns),
    }
    if parts.comm_ns:
        found["overlap_ratio"] = parts.hidden_comm_ns / parts.comm_ns
    if step.profile is not None:
        compute = _covered(step, "compute")
        for name in STREAMS:
            stream = _covered(step, name)
            found[f"{name}_ms"] = ns_to_ms(length(stream))
            found[f"compute_{name}_ms"] = ns_to_ms(length(intersection(compute, stream)))
    return found


def _covered(step: DecodedStep, stream: str) -> Intervals:
    assert step.profile is not None
    pieces = as_intervals(
        (ms_to_ns(item.start_ms), ms_to_ns(item.end_ms))
        for item in step.profile.ranges
        if item.stream == stream
    )
    return clip(pieces, 0, step.duration_ns)


def over_ranks(by_rank: Mapping[int, Sequence[DecodedStep]]) -> dict[str, Values]:
    """Each metric step by step; `by_rank` holds the same steps of every rank, in order."""
    ranks = max(len(by_rank), 1)
    rows = [[of_step(step) for step in steps] for steps in zip(*by_rank.values(), strict=True)]
    found = {}
    for name in METRICS:
        table = np.array([[rank[name] for rank in row] for row in rows], dtype=np.float64)
        table = table.reshape(len(rows), ranks)
        found[name] = table.max(axis=1) if name == "step_ms" else table.mean(axis=1)
    return found


def overlap(values: Mapping[str, Values]) -> float | None:
    """Hidden over all communication of all steps; None without any."""
    measured = ~np.isnan(values["communication_ms"])
    total = float(values["communication_ms"][measured].sum())
    return float(values["hidden_communication_ms"][measured].sum()) / total if total else None


def spread(values: Values) -> MetricSpread:
    """Count, mean, median and 95th percentile of what was measured."""
    kept = values[~np.isnan(values)]
    if not len(kept):
        return MetricSpread(count=0, mean=None, median=None, p95=None)
    return MetricSpread(
        count=len(kept),
        mean=float(kept.mean()),
        median=float(np.median(kept)),
        p95=float(np.percentile(kept, 95)),
    )


def differ(reference: Values, candidate: Values) -> Difference:
    """Returns how a candidate's mean differs from the reference's, and whether that is more than noise."""
    kept = [values[~np.isnan(values)] for values in (reference, candidate)]
    if min(len(values) for values in kept) < 2:
        return Difference(
            ratio=None,
            ratio_low=None,
            ratio_high=None,
            difference=None,
            difference_low=None,
            difference_high=None,
            finding="not measurable",
        )
    random = np.random.default_rng(SEED)
    before, after = (_resampled_means(values, random) for values in kept)
    means = float(kept[0].mean()), float(kept[1].mean())
    low, high = _percentiles(after - before)
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    if means[0] > 0 and (before > 0).all():
        ratio = means[1] / means[0]
        ratio_low, ratio_high = _percentiles(after / before)
    finding: Finding = "higher" if low > 0 else "lower" if high < 0 else "no difference beyond noise"
    return Difference(
        ratio=ratio,
        ratio_low=ratio_low,
        ratio_high=ratio_high,
        difference=means[1] - means[0],
        difference_low=low,
        difference_high=high,
        finding=finding,
    )


def _resampled_means(values: Values, random: np.random.Generator) -> Values:
    """Means of resamples made of blocks of about the square root of the length, wrapped around."""
    count = len(values)
    block = math.isqrt(count)
    blocks = -(-count // block)
    starts = random.integers(0, count, size=(RESAMPLES, blocks, 1))
    index = ((starts + np.arange(block)) % count).reshape(RESAMPLES, -1)[:, :count]
    means: Values = values[index].mean(axis=1)
    return means


def _percentiles(values: Values) -> tuple[float, float]:
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)
