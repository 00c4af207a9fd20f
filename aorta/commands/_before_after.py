"""Two sides of a comparison: submissions, runs, report JSON or traces."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from aorta.artefacts.aggregate import Aggregate
from aorta.artefacts.analysis import Analysis
from aorta.artefacts.before_after import BeforeAfter, Pair, PartChange
from aorta.artefacts.files import is_file
from aorta.artefacts.io import read_json
from aorta.artefacts.layout import RunDir
from aorta.artefacts.measured import Interval
from aorta.artefacts.submissions import SubmissionDir
from aorta.diagnosis.findings import kind_name, likeliest
from aorta.errors import ArtefactError
from aorta.metrics.before_after import change, changed_settings, differences, step_ms, width_of
from aorta.metrics.compare import Values, differ, over_ranks
from aorta.metrics.scaling import scaling_curves
from aorta.metrics.steady import steady_steps
from aorta.readers.directory import find_run
from aorta.readers.run import RunData
from aorta.report.palette import PARTS
from aorta.report.parts import mean_parts
from aorta.units import NS_PER_MS

_METRICS = {
    "compute_ms": "compute_ms",
    "exposed_comm_ms": "exposed_communication_ms",
    "data_wait_ms": "data_wait_ms",
    "host_ms": "host_ms",
}
"""Field of `RankBreakdown` to metric of `metrics.compare`."""


class Side(NamedTuple):
    """One scenario of one side."""

    analysis: Analysis
    values: Mapping[str, Values]
    """Metrics by steady step; empty without step records."""
    traced_ms: tuple[float, ...] = ()
    """Each whole step of traces, by its slowest rank."""


def read_side(path: Path) -> dict[str, Side]:
    """The scenarios that `path` holds.

    Args:
        path: a submission, a run directory, `profiling_analysis.json`, `BOTTLENECK_ANALYSIS.json`, or traces.

    Raises:
        ArtefactError: the path is nothing of that.
    """
    if path.suffix == ".json" and is_file(path) and (found := _report(path)) is not None:
        return found
    if (run := find_run(path)) is not None and not SubmissionDir(path).jobs.is_file():
        return {(side := _run(run)).analysis.scenario or "run": side}
    if SubmissionDir(path).jobs.is_file():
        return _submission(SubmissionDir(path))
    return {"traces": _traces(path)}


def _traces(path: Path) -> Side:
    from aorta.commands._traces import read_and_analyze
    from aorta.metrics.trace_capture import captures

    analysis, summaries = read_and_analyze([path])
    if not summaries:
        return Side(analysis, {})
    found = captures(summaries)[0]
    lengths = dict.fromkeys(found.steps, 0)
    for summary in found.ranks:
        for step in summary.steps:
            if step.number in lengths:
                lengths[step.number] = max(lengths[step.number], step.end_ns - step.start_ns)
    return Side(analysis, {}, tuple(length / NS_PER_MS for length in lengths.values()))


def _report(path: Path) -> dict[str, Side] | None:
    """The analyses of a report; None where the file is none, such as a trace."""
    try:
        whole = read_json(path, Aggregate)
        return {item.scenario or "run": Side(item, {}) for item in whole.scenarios}
    except ArtefactError:
        pass
    try:
        analysis = read_json(path, Analysis)
        return {analysis.scenario or "run": Side(analysis, {})}
    except ArtefactError:
        return None


def _submission(submission: SubmissionDir) -> dict[str, Side]:
    from aorta.commands._choice import choose

    choice = choose(submission.root.absolute().parent, submission)
    if not choice.chosen:
        raise ArtefactError(
            f"{submission.root}: none of its jobs has written anything",
            f"see the state of its jobs with `aorta status {shlex.quote(str(submission.root))}`",
        )
    return {item.scenario.name: _run(item.run) for item in choice.chosen}


def _run(run: RunDir) -> Side:
    from aorta.commands._analysis import analyze_run

    found = analyze_run(run, query_accounting=False)
    return Side(found.analysis, _values(found.data))


def _values(data: RunData) -> dict[str, Values]:
    return over_ranks(steady_steps(data.records.by_rank).by_rank) if data.records.by_rank else {}


def compare(before: Path, after: Path) -> tuple[BeforeAfter, list[tuple[str, Analysis]]]:
    """The comparison, and the analyses to draw: those before and after in turns, with their names.

    Raises:
        ArtefactError: a path cannot be read, or the sides have no scenario in common.
    """
    first, second = read_side(before), read_side(after)
    if len(first) == len(second) == 1:
        # Two single runs are compared whatever they are called.
        (name, one), (other, two) = *first.items(), *second.items()
        both = {name if name == other else f"{name} → {other}": (one, two)}
        alone: list[str] = []
    else:
        both = {name: (side, second[name]) for name, side in first.items() if name in second}
        alone = [f"{name} (before)" for name in first if name not in second]
        alone += [f"{name} (after)" for name in second if name not in first]
    if not both:
        raise ArtefactError(
            f"{before} and {after} have no scenario in common: {', '.join(first)}; {', '.join(second)}",
            "name two runs instead of two submissions, such as results/profiling/2node/run_<JOB_ID>",
        )
    efficiency = [_efficiency(side) for side in (first, second)]
    pairs = [_pair(name, one, two, efficiency) for name, (one, two) in both.items()]
    drawn = [
        (f"{name}, {when}", side.analysis)
        for name, sides in both.items()
        for when, side in zip(("before", "after"), sides, strict=True)
    ]
    return BeforeAfter(before=str(before), after=str(after), pairs=pairs, alone=alone), drawn


def _efficiency(side: Mapping[str, Side]) -> dict[str, float]:
    """Efficiency by scenario, where several scenarios of a side make a curve."""
    curves = scaling_curves([item.analysis for item in side.values()], likeliest=likeliest)
    return {
        point.scenario: point.efficiency
        for curve in curves
        if len(curve.points) > 1
        for point in curve.points
    }


def _pair(name: str, before: Side, after: Side, efficiency: list[dict[str, float]]) -> Pair:
    first, second = before.analysis, after.analysis
    found = change(first, second, (_width(before), _width(after)))
    return Pair(
        name=name,
        answer=found.answer,
        reason=found.reason,
        before_ms=step_ms(first),
        after_ms=step_ms(second),
        ratio=found.ratio,
        ratio_interval=found.interval,
        before_samples_per_s=first.throughput.samples_per_s if first.throughput else None,
        after_samples_per_s=second.throughput.samples_per_s if second.throughput else None,
        before_efficiency=efficiency[0].get(first.scenario or ""),
        after_efficiency=efficiency[1].get(second.scenario or ""),
        before_verdict=kind_name(first.verdict.kind),
        after_verdict=kind_name(second.verdict.kind),
        parts=_parts(before, after),
        differences=differences(first, second),
        settings=changed_settings(first, second),
    )


def _width(side: Side) -> float | None:
    return width_of(side.analysis, side.traced_ms)


def _parts(before: Side, after: Side) -> list[PartChange]:
    means = mean_parts(before.analysis), mean_parts(after.analysis)
    parts = []
    for part in PARTS:
        one, two = (mean.get(part.field) for mean in means)
        if one or two:
            metric, interval = _METRICS.get(part.field, ""), None
            if metric in before.values and metric in after.values:
                found = differ(before.values[metric], after.values[metric])
                if found.difference_low is not None and found.difference_high is not None:
                    interval = Interval(low=found.difference_low, high=found.difference_high)
            parts.append(PartChange(name=part.name, before_ms=one, after_ms=two, difference_ms=interval))
    return parts
