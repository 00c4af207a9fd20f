"""Scaling over the scenarios of a family: E_n = (X_n / N_n) / (X_ref / N_ref), N in ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from aorta.artefacts.analysis import Analysis, Problem, Scaling, ScalingPoint
from aorta.artefacts.layout import Scenario

SUPERLINEAR = 1.05


def is_valid(analysis: Analysis) -> bool:
    """Whether a run may stand in a curve: it completed, and its throughput was measured on all ranks."""
    return (
        analysis.scenario is not None
        and analysis.throughput is not None
        and analysis.data_quality.state == "completed"
        and analysis.world_size is not None
        and analysis.data_quality.ranks_seen == analysis.world_size
        and analysis.verdict.kind != "insufficient_data"
    )


def newest_valid(runs: Sequence[Analysis]) -> tuple[list[Analysis], list[Problem]]:
    """One run a scenario: the newest valid one, or the newest where none is valid.

    Args:
        runs: oldest first.

    Returns:
        The chosen runs by family and nodes; and a problem for each newer run that was passed over.
    """
    by_scenario: dict[str, list[Analysis]] = {}
    for analysis in runs:
        if analysis.scenario is not None:
            by_scenario.setdefault(analysis.scenario, []).append(analysis)
    chosen, problems = [], []
    for name, candidates in by_scenario.items():
        valid = [analysis for analysis in candidates if is_valid(analysis)]
        pick = valid[-1] if valid else candidates[-1]
        chosen.append(pick)
        for newer in candidates[candidates.index(pick) + 1 :]:
            state = newer.data_quality.state or "its end is not known"
            why = newer.verdict.kind if state == "completed" else state
            reason = f"{name}: the newer run {newer.job_id} cannot be used ({why}); run {pick.job_id} is"
            problems.append(Problem(file=None, reason=reason))
    return sorted(chosen, key=_position), problems


def scaling_curves(runs: Sequence[Analysis]) -> list[Scaling]:
    """The curve of each family (`cpu_2node` never mixes with `2node`), by family.

    Args:
        runs: one a scenario.

    The reference is the smallest valid run; a family without one has no curve, and says why.
    """
    families: dict[str, list[Analysis]] = {}
    for analysis in runs:
        if analysis.scenario is not None:
            families.setdefault(Scenario(analysis.scenario).family, []).append(analysis)
    return [_curve(family, sorted(families[family], key=_position)) for family in sorted(families)]


def _position(analysis: Analysis) -> tuple[str, int, int]:
    scenario = Scenario(analysis.scenario or "")
    return scenario.family, scenario.nodes, analysis.world_size or 0


def _curve(family: str, runs: list[Analysis]) -> Scaling:
    valid = [analysis for analysis in runs if is_valid(analysis)]
    invalid = [str(analysis.scenario) for analysis in runs if not is_valid(analysis)]
    without = f"without {', '.join(invalid)}: not valid" if invalid else None
    if not valid:
        return Scaling(family=family, reference=None, label=None, points=[], reason="no valid run")
    reference = valid[0]
    points = [_point(analysis, reference) for analysis in valid]
    if len(points) == 1:
        without = f"only {reference.scenario} is valid" + (f" ({', '.join(invalid)} not)" if invalid else "")
    return Scaling(
        family=family,
        reference=reference.scenario,
        label=label([_sizes(analysis) for analysis in valid]),
        points=points,
        reason=without,
    )


def _point(analysis: Analysis, reference: Analysis) -> ScalingPoint:
    assert analysis.throughput is not None
    assert reference.throughput is not None
    assert analysis.scenario is not None
    ranks, reference_ranks = analysis.world_size or 0, reference.world_size or 0
    speedup = analysis.throughput.samples_per_s / reference.throughput.samples_per_s
    efficiency = speedup * reference_ranks / ranks
    return ScalingPoint(
        scenario=analysis.scenario,
        nodes=Scenario(analysis.scenario).nodes,
        world_size=ranks,
        samples_per_s=analysis.throughput.samples_per_s,
        speedup=speedup,
        efficiency=efficiency,
        global_batch=analysis.throughput.global_batch,
        flag="superlinear" if efficiency > SUPERLINEAR else None,
    )


def _sizes(analysis: Analysis) -> tuple[int | None, int | None, int | None]:
    rate = analysis.throughput
    assert rate is not None
    return analysis.world_size, rate.global_batch, rate.per_rank_batch


def label(
    sizes: Sequence[tuple[int | None, int | None, int | None]],
) -> Literal["strong", "weak", "mixed"] | None:
    """Strong: the global batch is the same everywhere; weak: each rank's is. None for a single size.

    Args:
        sizes: ranks, global batch and batch of a rank, of each run.
    """
    ranks, global_batches, rank_batches = ({item[place] for item in sizes} for place in range(3))
    if len(ranks) < 2:
        return None
    if len(global_batches) == 1:
        return "strong"
    if len(rank_batches) == 1:
        return "weak"
    return "mixed"
