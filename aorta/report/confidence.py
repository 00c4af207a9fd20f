"""Finds how far a verdict can be trusted: what it stands on, and what speaks against it."""

from __future__ import annotations

from aorta.artefacts.analysis import Analysis, Finding
from aorta.artefacts.page import Confidence, Level
from aorta.diagnosis.findings import FINDINGS, INSUFFICIENT
from aorta.units import plural

_STEPS = 30
"""Steady steps below which a mean is called thin; the analysis itself needs fewer."""
TOLERANCE = 0.1
"""Largest relative difference between throughput by the clock and by the median step."""
_NARROW = 1.25
"""Highest over lowest speed-up up to which the gain is well known."""
_WIDE = 2.0
"""Highest over lowest speed-up above which little is known of the gain."""


def is_consistent(ratio: float) -> bool:
    """True if throughput by the clock and by the median step, of which this is the ratio, agree."""
    return abs(ratio - 1) <= TOLERANCE


def confidence(analysis: Analysis, main: Finding | None, *, shared: bool) -> Confidence:
    """Returns how far the cause can be trusted, and how far its gain; none where there is no such thing.

    The cause: high without a doubt, medium with small ones, low with a grave one.

    Args:
        analysis: of the run.
        main: the finding that the verdict states; None where it states none.
        shared: whether the run's nodes were one machine.
    """
    quality = analysis.data_quality
    known = quality.ranks_expected is not None and not quality.ranks_assumed
    expected = f"{quality.ranks_expected}" if known else "an unknown number of"
    steps = f"{plural(quality.steady_steps, 'steady step')} after warm-up"
    if quality.detailed_steps is not None:
        steps += f", {quality.detailed_steps:,} of them detailed"
    basis = [steps, f"records from {quality.ranks_seen:,} of {expected} ranks"]
    grave, small = _grave(analysis) + _weighted(analysis, main), _small(analysis, main, shared=shared)
    if analysis.verdict.kind == INSUFFICIENT:
        return Confidence(level="none", basis=basis, doubts=grave + small)
    level: Level = "low" if grave else "medium" if small else "high"
    gain, doubts = _gain(analysis, main)
    return Confidence(level=level, basis=basis, doubts=grave + small, gain=gain, gain_doubts=doubts)


def _gain(analysis: Analysis, main: Finding | None) -> tuple[Level, list[str]]:
    """Returns how well the predicted speed-up is known, and what speaks against it."""
    gained = main.estimated_speedup if main is not None else None
    if main is None or gained is None:
        return "none", []
    spread = gained.high / max(gained.low, 1.0)
    doubts, low = [], gained.low <= 1.0 or spread > _WIDE
    if gained.low <= 1.0:
        doubts.append("removing the cause may gain nothing")
    if spread > _NARROW:
        doubts.append("wide range")
    replay = analysis.replay
    if replay is not None and replay.withheld:
        doubts.append(f"not simulated: {replay.withheld}")
    elif gained.basis == "bounds":
        doubts.append(
            "not simulated: only an upper bound"
            if gained.expected is None
            else "not simulated: only a lower and an upper bound"
        )
    bound = any(item.bound and item.kind == main.kind for item in (replay.predictions if replay else []))
    if bound or main.evidence.get("compute_holds_gaps"):
        doubts.append("the time for host work per step is not known and may be the next limit")
    return "low" if low else "medium" if doubts else "high", doubts


def _grave(analysis: Analysis) -> list[str]:
    quality = analysis.data_quality
    doubts = []
    if analysis.hang is not None and not analysis.hang.ranks:
        doubts.append("no single rank was found to delay the others")
    if quality.ranks_expected is not None and quality.ranks_seen < quality.ranks_expected:
        doubts.append(f"{plural(quality.ranks_expected - quality.ranks_seen, 'rank')} left no records")
    if quality.others_cpus is not None:
        doubts.append(
            f"other programs used {quality.others_cpus:.1f} CPUs on a node that had hardly any free CPU"
        )
    if quality.state is not None and quality.state != "completed":
        doubts.append(f"the job did not complete ({quality.state})")
    return doubts


def _weighted(analysis: Analysis, main: Finding | None) -> list[str]:
    """Returns that the host's time holds the profiler's own, which no correction took out.

    A breakdown is of traces where they stand for a run's records, or where there is no run but the traces.
    """
    traces, spec = analysis.traces, FINDINGS.get(main.kind) if main is not None else None
    if traces is None or analysis.profiler_weight is not None or spec is None or not spec.of_host_time:
        return []
    if not traces.stands and analysis.submitted is not None:
        return []
    return [f"host work includes the profiler's cost, and the {traces.format} traces do not show how much"]


def _instead(analysis: Analysis, main: Finding | None) -> list[str]:
    """Returns that another cause, which was not measurable, would look the same."""
    spec = FINDINGS.get(main.kind) if main is not None else None
    other, why = (spec.alike if spec else None) or ("", "")
    blind = {item.kind for item in analysis.measured if item.answer == "not_measurable"}
    return [why] if other in blind else []


def _small(analysis: Analysis, main: Finding | None, *, shared: bool) -> list[str]:
    quality = analysis.data_quality
    doubts = []
    if quality.problems:
        doubts.append(f"{plural(len(quality.problems), 'problem')} with the data")
    doubts += [f"sources contradict each other: {text}" for text in quality.contradictions]
    if quality.ranks_assumed:
        doubts.append("the number of ranks is not recorded, so an unseen rank may be the last one")
    if 0 < quality.steady_steps < _STEPS:
        doubts.append(f"only {plural(quality.steady_steps, 'steady step')}, {_STEPS} wanted")
    elif quality.detailed_steps is not None and quality.detailed_steps == analysis.breakdown.steps < _STEPS:
        doubts.append(f"only {plural(quality.detailed_steps, 'detailed step')}, {_STEPS} wanted")
    run = analysis.throughput
    if run is not None and run.cross_check_ratio is not None and not is_consistent(run.cross_check_ratio):
        off = 100 * (run.cross_check_ratio - 1)
        doubts.append(
            f"throughput calculated from the clock and from the median step differs by {off:+.0f} %"
        )
    if main is not None and main.sub_cause == "not_determined":
        doubts.append("the reason for the slowness was not measured")
    if main is not None and main.evidence.get("compute_holds_gaps"):
        doubts.append("compute times include the gaps between kernels, so late host work looks like compute")
    doubts += _instead(analysis, main)
    if shared:
        doubts.append("all nodes share one machine, so times across nodes describe only that machine")
    return doubts
