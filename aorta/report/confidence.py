"""How far a verdict can be trusted: what it stands on, and what speaks against it."""

from __future__ import annotations

from aorta.artefacts.analysis import Analysis, Finding
from aorta.artefacts.page import Confidence, Level
from aorta.units import plural

_STEPS = 30
"""Steady steps below which a mean is called thin; the analysis itself needs fewer."""
_TOLERANCE = 0.1
"""How far throughput by the clock and by the median step may be apart."""


def confidence(analysis: Analysis, main: Finding | None, *, shared: bool) -> Confidence:
    """High without a doubt, medium with small ones, low with a grave one; none where there is no verdict.

    Args:
        analysis: of the run.
        main: the finding that the verdict states; None where it states none.
        shared: whether the run's nodes were one machine.
    """
    quality = analysis.data_quality
    known = quality.ranks_expected is not None and not quality.ranks_assumed
    expected = f"{quality.ranks_expected}" if known else "an unknown number of"
    steps = plural(quality.steady_steps, "steady step")
    if quality.detailed_steps is not None:
        steps += f", {quality.detailed_steps:,} of them detailed"
    basis = [f"{steps}, records of {quality.ranks_seen:,} of {expected} ranks"]
    grave, small = _grave(analysis, main), _small(analysis, main, shared=shared)
    if analysis.verdict.kind == "insufficient_data":
        return Confidence(level="none", basis=basis, doubts=grave + small)
    level: Level = "low" if grave else "medium" if small else "high"
    return Confidence(level=level, basis=basis, doubts=grave + small)


def _grave(analysis: Analysis, main: Finding | None) -> list[str]:
    quality = analysis.data_quality
    doubts = []
    if quality.ranks_expected is not None and quality.ranks_seen < quality.ranks_expected:
        doubts.append(f"{plural(quality.ranks_expected - quality.ranks_seen, 'rank')} left no records")
    if quality.state is not None and quality.state != "completed":
        doubts.append(f"the job did not complete ({quality.state})")
    gained = main.estimated_speedup if main is not None else None
    if gained is not None and gained.basis == "replay" and gained.low <= 1.0:
        doubts.append("within its interval, removing the cause may gain nothing")
    return doubts


def _small(analysis: Analysis, main: Finding | None, *, shared: bool) -> list[str]:
    quality = analysis.data_quality
    doubts = []
    if quality.problems:
        doubts.append(f"{plural(len(quality.problems), 'problem')} with its data")
    if quality.ranks_assumed:
        doubts.append("how many ranks there are is not recorded: another one may be the last")
    if 0 < quality.steady_steps < _STEPS:
        doubts.append(f"fewer than {_STEPS} steady steps")
    elif quality.detailed_steps is not None and quality.detailed_steps == analysis.breakdown.steps < _STEPS:
        doubts.append(f"fewer than {_STEPS} detailed steps")
    run = analysis.throughput
    if run is not None and run.cross_check_ratio is not None and abs(run.cross_check_ratio - 1) > _TOLERANCE:
        off = 100 * (run.cross_check_ratio - 1)
        doubts.append(f"throughput by the clock and by the median step differ by {off:+.0f} %")
    if main is not None and analysis.replay is not None and analysis.replay.withheld:
        doubts.append(f"no replay: {analysis.replay.withheld}")
    predictions = analysis.replay.predictions if analysis.replay else []
    if main is not None and any(item.bound and item.kind == main.kind for item in predictions):
        doubts.append(
            "what hosts need for a step is not in the traces: without the cause it may take as long"
        )
    if main is not None and main.sub_cause == "not_determined":
        doubts.append("nothing measured tells what is behind the cause")
    if shared:
        doubts.append("all nodes share one machine, so times across nodes are that machine's")
    return doubts
