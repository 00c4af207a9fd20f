"""Scaling over the scenarios of a family: E_n = (X_n / N_n) / (X_ref / N_ref), N in ranks."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import shorten
from typing import Literal

from aorta.artefacts.aggregate import Scaling, ScalingPoint
from aorta.artefacts.analysis import Analysis, Problem
from aorta.artefacts.layout import Scenario
from aorta.artefacts.measured import Throughput
from aorta.metrics.pooled import pooled_rate, ratio_interval
from aorta.metrics.repeats import Ran, is_valid, repeats_of
from aorta.metrics.scaling_loss import Likeliest, computation_scalability, losses, self_check

SUPERLINEAR = 1.05
_NAMED = 3
"""Differing settings that are named."""
_COMMAND = 80
"""Characters of a command that are shown."""
_UNUSED = "not in use"


def newest_valid(runs: Sequence[Analysis]) -> tuple[list[Analysis], list[Problem]]:
    """One run per scenario: the newest valid one, or the newest where none is valid.

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
            reason = (
                f"{name}: the newer run {newer.job_id} cannot be used ({why}), so run {pick.job_id} is used"
            )
            problems.append(Problem(file=None, reason=reason))
    return sorted(chosen, key=_position), problems


def scaling_curves(
    runs: Sequence[Analysis], repeats: Sequence[Analysis] = (), *, likeliest: Likeliest
) -> list[Scaling]:
    """The curve of each family (`cpu_2node` never mixes with `2node`), by family.

    Args:
        runs: one per scenario.
        repeats: other runs; those that repeat one of `runs` are averaged with it, and what lies between them
            widens its interval.
        likeliest: a factor of the efficiency to the findings that may show its loss.

    Only runs of one program with the same settings are compared (`Analysis.program`, `settings`). The
    settings are those of most scenarios; if there is a tie, those of the newest run. The reference is the
    smallest of them. What is left out, and why a family has no curve, is in the reason.
    """
    families: dict[str, list[Analysis]] = {}
    for analysis in runs:
        if analysis.scenario is not None:
            families.setdefault(Scenario(analysis.scenario).family, []).append(analysis)
    return [
        _curve(family, sorted(families[family], key=_position), repeats, likeliest)
        for family in sorted(families)
    ]


def _position(analysis: Analysis) -> tuple[str, int, int]:
    scenario = Scenario(analysis.scenario or "")
    return scenario.family, scenario.nodes, analysis.world_size or 0


def _curve(family: str, runs: list[Analysis], repeats: Sequence[Analysis], likeliest: Likeliest) -> Scaling:
    valid = [analysis for analysis in runs if is_valid(analysis)]
    invalid = [str(analysis.scenario) for analysis in runs if not is_valid(analysis)]
    if not valid:
        return Scaling(family=family, reference=None, label=None, points=[], reason="no valid run")
    compared = _comparable(valid)
    reference = compared[0]
    others = [analysis for analysis in valid if analysis not in compared]
    if len(valid) == 1:
        unusable = f"; {', '.join(invalid)} cannot be used" if invalid else ""
        reasons = [
            "No scaling curve: it needs at least two scenarios, and this report has one "
            f"({reference.scenario}){unusable}."
        ]
    else:
        reasons = [f"without {', '.join(invalid)}, not valid"] if invalid else []
        reasons += [
            f"without {item.scenario}, which is not comparable: {_difference(item, reference)}"
            for item in others
        ]
    points = [_point(analysis, reference, repeats) for analysis in compared]
    return Scaling(
        family=family,
        reference=reference.scenario,
        label=label([_sizes(analysis) for analysis in compared]),
        points=points,
        reason="; ".join(reasons) or None,
        losses=losses(points, compared, likeliest),
    )


def _comparable(valid: Sequence[Analysis]) -> list[Analysis]:
    """The largest group of runs of the same program and settings, the newest of those.

    A run of which either is not known is alone: nothing says that it is the same as another.
    """
    groups: list[list[Analysis]] = []
    for item in valid:
        same = next((group for group in groups if _same(group[0], item)), None)
        if same is None:
            groups.append([item])
        else:
            same.append(item)
    return max(groups, key=lambda group: (len(group), max(item.started_wall_ns or 0 for item in group)))


def _same(one: Analysis, other: Analysis) -> bool:
    known = one.program is not None and one.settings is not None
    return known and (one.program, one.settings) == (other.program, other.settings)


def _difference(item: Analysis, reference: Analysis) -> str:
    """Returns in words how a run differs from the reference."""
    for unknown in (item, reference):
        if unknown.program is None or unknown.settings is None:
            what = "program" if unknown.program is None else "configuration"
            return f"the {what} of {unknown.scenario} is not known"
    if item.program != reference.program:
        ran, other = (shorten(each.program or "", _COMMAND, placeholder=" ...") for each in (item, reference))
        return (
            f"it ran {ran}, {reference.scenario} ran "
            f"{other if other != ran else 'it with different arguments'}"
        )
    mine, its = item.settings or {}, reference.settings or {}
    differ = [key for key in sorted(mine | its) if mine.get(key, _UNUSED) != its.get(key, _UNUSED)]
    said = [
        f"{key} is {mine.get(key, _UNUSED)} instead of {its.get(key, _UNUSED)}" for key in differ[:_NAMED]
    ]
    more = f" and {len(differ) - _NAMED} more" if len(differ) > _NAMED else ""
    return f"{', '.join(said)}{more}"


def _point(analysis: Analysis, reference: Analysis, repeats: Sequence[Analysis]) -> ScalingPoint:
    assert analysis.throughput is not None
    assert reference.throughput is not None
    assert analysis.scenario is not None
    ranks, reference_ranks = analysis.world_size or 0, reference.world_size or 0
    mine, its = (pooled_rate(_rates(item, repeats)) for item in (analysis, reference))
    speedup, per_rank = mine.mean / its.mean, reference_ranks / ranks
    efficiency = speedup * per_rank
    apart = analysis is not reference
    scalability = _scalability(analysis, reference)
    product = scalability * analysis.pop.parallel if scalability is not None and analysis.pop else None
    # Over the runs whose factors these are, not over the means of repeats.
    own = analysis.throughput.samples_per_s / reference.throughput.samples_per_s * reference_ranks / ranks
    ratio = product / reference.pop.parallel / own if product is not None and reference.pop else None
    return ScalingPoint(
        scenario=analysis.scenario,
        nodes=Scenario(analysis.scenario).nodes,
        world_size=ranks,
        samples_per_s=mine.mean,
        speedup=speedup,
        efficiency=efficiency,
        global_batch=analysis.throughput.global_batch,
        flag="superlinear" if efficiency > SUPERLINEAR else None,
        runs=len(mine.rates),
        samples_per_s_interval=mine.interval(),
        speedup_interval=ratio_interval(mine, its, 1.0) if apart else None,
        efficiency_interval=ratio_interval(mine, its, per_rank) if apart else None,
        pop=analysis.pop,
        computation_scalability=scalability,
        global_efficiency=product,
        self_check_ratio=ratio,
        self_check=self_check(ratio) if ratio is not None else None,
    )


def _scalability(analysis: Analysis, reference: Analysis) -> float | None:
    if analysis.pop is None or reference.pop is None or not analysis.throughput or not reference.throughput:
        return None
    batches = analysis.throughput.global_batch, reference.throughput.global_batch
    return computation_scalability(analysis.pop, batches[0], reference.pop, batches[1])


def _rates(analysis: Analysis, repeats: Sequence[Analysis]) -> list[Throughput]:
    """Throughputs of the run and its valid repeats."""
    same = repeats_of(Ran.of(analysis), analysis.job_id, repeats)
    return [item.throughput for item in (analysis, *same) if item.throughput is not None]


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
