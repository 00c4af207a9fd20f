"""The loss of a step of scale: the efficiency as a product of factors, and the factor that loses most.

E_n = (X_n / N_n) / (X_ref / N_ref) is (CompS_n PE_n) / PE_ref where all of the time is in steps: the POP
factors' global efficiency over the reference's. What they leave is time between steps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

from aorta.artefacts.aggregate import ScalingLoss, ScalingPoint
from aorta.artefacts.analysis import Analysis, Finding, Kind
from aorta.artefacts.replayed import Pop

TOLERANCE = 0.02
"""Largest accepted difference between the product of the POP factors and the efficiency by throughput."""
_LOST = 0.995
"""A ratio of efficiencies at or above it has lost nothing worth a word."""
FACTORS = {
    "load_balance": "some ranks compute for longer than others",
    "serialisation": "ranks wait for each other, for host work or for data while no rank computes",
    "transfer": "exchanging data takes time that is not overlapped",
    "communication": "ranks exchange data, wait or idle while no compute runs",
    "computation_scalability": "each sample takes more compute time than at the smaller scale",
    "between_steps": "time is spent between the steps",
}
"""The factors that efficiency is a product of, and what lowers each."""
Likeliest = Callable[[str], Sequence[Kind]]
"""A factor to the findings that may show its loss, the likeliest first."""


def computation_scalability(point: Pop, batch: int, reference: Pop, reference_batch: int) -> float | None:
    """Useful time of a sample at the reference over that here; None without samples.

    With equal batches it is sum U_ref / sum U_n, POP's for strong scaling.
    """
    if not batch or not reference_batch:
        return None
    return (reference.useful_ms / reference_batch) / (point.useful_ms / batch)


def self_check(ratio: float) -> str | None:
    """Message where the POP factors and the throughput disagree; None within the tolerance."""
    if abs(ratio - 1.0) <= TOLERANCE:
        return None
    return (
        f"the efficiency by POP factors is {ratio:.2f} times the efficiency by throughput: some time is "
        "outside the steps, or missing from their breakdown"
    )


def losses(
    points: Sequence[ScalingPoint], runs: Sequence[Analysis], likeliest: Likeliest
) -> list[ScalingLoss]:
    """The loss of each step from one point to the next; without POP factors on both sides, nothing is said.

    Args:
        points: of the curve.
        runs: whose factors those have, one each. A point may be the mean of more.
        likeliest: the findings that may show a factor's loss.
    """
    found = []
    for (smaller, larger), pair in zip(itertools.pairwise(points), itertools.pairwise(runs), strict=True):
        loss = _loss(smaller, larger, pair, likeliest)
        if loss is not None:
            found.append(loss)
    return found


def _loss(
    smaller: ScalingPoint, larger: ScalingPoint, runs: tuple[Analysis, Analysis], likeliest: Likeliest
) -> ScalingLoss | None:
    one, other = smaller.pop, larger.pop
    rates = [run.throughput.samples_per_s if run.throughput else 0.0 for run in runs]
    if one is None or other is None or not rates[0]:
        return None
    if smaller.computation_scalability is None or larger.computation_scalability is None:
        return None
    ratio = rates[1] / rates[0] * smaller.world_size / larger.world_size
    factors = {"load_balance": other.load_balance / one.load_balance}
    if None in (one.serialisation, one.transfer, other.serialisation, other.transfer):
        factors["communication"] = other.communication / one.communication
    else:
        factors["serialisation"] = (other.serialisation or 0.0) / (one.serialisation or 1.0)
        factors["transfer"] = (other.transfer or 0.0) / (one.transfer or 1.0)
    factors["computation_scalability"] = larger.computation_scalability / smaller.computation_scalability
    factors["between_steps"] = ratio / math.prod(factors.values())
    worst = min(factors, key=lambda name: factors[name])
    main = worst if ratio < _LOST and factors[worst] < 1.0 else None
    kind = _kind(likeliest(main), runs[1].findings) if main else None
    several = " (the newest run of each)" if max(smaller.runs, larger.runs) > 1 else ""
    return ScalingLoss(
        scenario_from=smaller.scenario,
        scenario_to=larger.scenario,
        efficiency_ratio=ratio,
        factors=factors,
        main_factor=main,
        statement=f"From {smaller.scenario} to {larger.scenario}{several} "
        + (_lost(ratio, main, factors[main]) + _with(kind, larger) if main else _kept(ratio)),
        finding_kind=kind,
    )


def _kind(likely: Sequence[Kind], findings: Sequence[Finding]) -> Kind | None:
    kinds = {finding.kind for finding in findings if finding.symptom_of is None}
    return next((kind for kind in likely if kind in kinds), None)


def _kept(ratio: float) -> str:
    return f"no efficiency is lost (ratio {ratio:.2f})."


def _lost(ratio: float, factor: str, its_ratio: float) -> str:
    name = factor.replace("_", " ")
    part = f"mostly because of {name} ({its_ratio:.2f}): {FACTORS[factor]}"
    return f"efficiency falls to {ratio:.2f} of what it was, {part}"


def _with(kind: Kind | None, larger: ScalingPoint) -> str:
    return f"; the finding {kind} of {larger.scenario} may explain this loss." if kind else "."
