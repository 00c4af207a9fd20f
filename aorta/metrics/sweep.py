"""A sweep's runs to settings, scaling curves and sensitivities, each mean with what its repeats say of it.

Bands are those of Student's t. Of one quantity: mean ± t(k−1) · s/√k over k repeats. The band of a ratio of
two means comes from the delta method on its logarithm, with relative standard errors r_i = s_i/(x_i·√k_i).
It is the ratio multiplied and divided by exp(t(ν) · √(r_1² + r_2²)), with ν from Welch and Satterthwaite,
rounded down. Two repeats give their range, since with t(1) = 12.7 their band says nothing. One repeat gives
neither.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import stdev

import msgspec

from aorta.artefacts.analysis import Analysis
from aorta.artefacts.layout import Scenario
from aorta.artefacts.sweep import (
    CurvePoint,
    RepeatedMean,
    ScalingCurve,
    Sensitivity,
    SettingResult,
    Sweep,
    SweepPoint,
    SweepSeries,
)
from aorta.averages import fmean
from aorta.metrics.repeats import is_valid
from aorta.metrics.scaling import SUPERLINEAR, label
from aorta.metrics.student import t_quantile
from aorta.units import plural

MIN_BANDED = 3
"""Repeats that give a confidence band."""


@dataclass(frozen=True, slots=True)
class PointRun:
    """A point and what its run was analysed to. None if there is no run."""

    point: SweepPoint
    analysis: Analysis | None

    @property
    def valid(self) -> bool:
        """True if it counts."""
        return self.analysis is not None and is_valid(self.analysis)


@dataclass(frozen=True, slots=True)
class Setting:
    """One combination of scenario and values with what its valid repeats measured."""

    result: SettingResult
    rates: tuple[float, ...]
    """Samples per second of each valid repeat."""


def estimate(values: Sequence[float]) -> RepeatedMean | None:
    """Mean and band, or range, of repeats; None for none."""
    if not values:
        return None
    mean = fmean(values)
    if len(values) == 1:
        return RepeatedMean(mean=mean, repeats=1)
    if len(values) < MIN_BANDED:
        return RepeatedMean(mean=mean, low=min(values), high=max(values), repeats=len(values), basis="range")
    half = t_quantile(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return RepeatedMean(mean=mean, low=mean - half, high=mean + half, repeats=len(values))


def ratio(above: Sequence[float], below: Sequence[float]) -> RepeatedMean:
    """The ratio of the means of two independent sets of positive numbers. If both have repeats, it has a
    band, or a range over all pairs of repeats.
    """
    quotient = fmean(above) / fmean(below)
    repeats = min(len(above), len(below))
    if repeats < 2:
        return RepeatedMean(mean=quotient, repeats=repeats)
    if repeats < MIN_BANDED:
        low, high = min(above) / max(below), max(above) / min(below)
        return RepeatedMean(mean=quotient, low=low, high=high, repeats=repeats, basis="range")
    parts = [(stdev(values) / fmean(values)) ** 2 / len(values) for values in (above, below)]
    variance = sum(parts)
    if variance == 0:
        return RepeatedMean(mean=quotient, low=quotient, high=quotient, repeats=repeats)
    weights = sum(part**2 / (len(values) - 1) for part, values in zip(parts, (above, below), strict=True))
    # Rounding down widens the band; the slack keeps a whole number whole.
    degrees = max(1, math.floor(variance**2 / weights + 1e-9))
    factor = math.exp(t_quantile(degrees) * math.sqrt(variance))
    return RepeatedMean(mean=quotient, low=quotient / factor, high=quotient * factor, repeats=repeats)


def settings(sweep: Sweep, runs: Sequence[PointRun]) -> list[Setting]:
    """Every setting of the sweep, measured or not, by number of nodes and then in the order of its values."""
    groups: dict[tuple[str, tuple[str, ...]], list[PointRun]] = {}
    for run in runs:
        groups.setdefault((run.point.scenario, tuple(run.point.values.values())), []).append(run)
    found = [_setting(group, sweep.repeats) for group in groups.values()]
    return sorted(found, key=lambda item: item.result.nodes)


def _setting(group: Sequence[PointRun], planned: int) -> Setting:
    point = group[0].point
    valid = [run for run in group if run.valid]
    analyses = [run.analysis for run in valid if run.analysis is not None]
    rates = tuple(item.throughput.samples_per_s for item in analyses if item.throughput is not None)
    first = analyses[0].throughput if analyses else None
    result = SettingResult(
        scenario=point.scenario,
        nodes=point.nodes,
        values=point.values,
        repeats_planned=planned,
        repeats_valid=len(valid),
        world_size=analyses[0].world_size if analyses else None,
        global_batch=first.global_batch if first is not None else None,
        per_rank_batch=first.per_rank_batch if first is not None else None,
        job_ids=[run.point.job_id for run in valid if run.point.job_id is not None],
        samples_per_s=estimate(rates),
        step_ms=_over(analyses, lambda item: item.throughput.step_ms_median if item.throughput else None),
        exposed_comm_ms=_over(analyses, exposed_comm_ms),
        exposed_comm_pct=_over(analyses, exposed_comm_pct),
        overlap_ratio=_over(analyses, overlap_ratio),
    )
    return Setting(result, rates)


def _over(analyses: Sequence[Analysis], measure: Callable[[Analysis], float | None]) -> RepeatedMean | None:
    values = [value for item in analyses if (value := measure(item)) is not None]
    return estimate(values)


def exposed_comm_ms(analysis: Analysis) -> float | None:
    """Exposed communication of a step in ms, mean over ranks; None without a breakdown."""
    rows = analysis.breakdown.per_rank
    return fmean(row.exposed_comm_ms for row in rows) if rows else None


def exposed_comm_pct(analysis: Analysis) -> float | None:
    """The same in percent of the mean step."""
    rows = analysis.breakdown.per_rank
    whole = sum(row.step_ms for row in rows)
    return 100.0 * sum(row.exposed_comm_ms for row in rows) / whole if whole > 0 else None


def overlap_ratio(analysis: Analysis) -> float | None:
    """Hidden over all communication of all ranks; None where there is no communication."""
    rows = analysis.breakdown.per_rank
    whole = sum(row.comm_ms for row in rows)
    return 1.0 - sum(row.exposed_comm_ms for row in rows) / whole if whole > 0 else None


def curves(found: Sequence[Setting]) -> list[ScalingCurve]:
    """A scaling curve for each combination of values that was asked for at several numbers of nodes."""
    groups: dict[tuple[tuple[str, str], ...], list[Setting]] = {}
    for setting in found:
        groups.setdefault(tuple(setting.result.values.items()), []).append(setting)
    return [_curve(group) for group in groups.values() if len(group) > 1]


def _curve(group: Sequence[Setting]) -> ScalingCurve:
    values = group[0].result.values
    valid = [setting for setting in group if setting.rates]
    missing = [setting.result.scenario for setting in group if not setting.rates]
    reason = f"without {', '.join(missing)}: no valid run" if missing else None
    if not valid:
        return ScalingCurve(values=values, label=None, reference=None, points=[], reason="no valid run")
    reference = valid[0]
    if len(valid) == 1:
        reason = f"only {reference.result.scenario} has a valid run"
    return ScalingCurve(
        values=values,
        label=label([_size(setting.result) for setting in valid]),
        reference=reference.result.scenario,
        points=[_curve_point(setting, reference) for setting in valid],
        reason=reason,
    )


def _size(result: SettingResult) -> tuple[int | None, int | None, int | None]:
    return result.world_size, result.global_batch, result.per_rank_batch


def _curve_point(setting: Setting, reference: Setting) -> CurvePoint:
    ranks, reference_ranks = setting.result.world_size or 0, reference.result.world_size or 0
    if setting is reference:
        speedup = RepeatedMean(mean=1.0, repeats=len(setting.rates))
    else:
        speedup = ratio(setting.rates, reference.rates)
    efficiency = _times(speedup, reference_ranks / ranks)
    return CurvePoint(
        scenario=setting.result.scenario,
        nodes=setting.result.nodes,
        world_size=ranks,
        speedup=speedup,
        efficiency=efficiency,
        flag="superlinear" if efficiency.mean > SUPERLINEAR else None,
    )


def _times(value: RepeatedMean, factor: float) -> RepeatedMean:
    def scaled(part: float | None) -> float | None:
        return part * factor if part is not None else None

    return msgspec.structs.replace(
        value, mean=value.mean * factor, low=scaled(value.low), high=scaled(value.high)
    )


def sensitivities(sweep: Sweep, found: Sequence[Setting]) -> list[Sensitivity]:
    """Returns, for each key with several values, the settings along it with everything else held."""
    return [
        Sensitivity(key=key, values=values, series=_series(key, values, found))
        for key, values in sweep.keys.items()
        if len(values) > 1
    ]


def _series(key: str, values: Sequence[str], found: Sequence[Setting]) -> list[SweepSeries]:
    places = {
        (setting.result.scenario, tuple(setting.result.values.items())): place
        for place, setting in enumerate(found)
    }
    series = []
    for setting in found:
        if setting.result.values[key] != values[0]:
            continue
        chosen = [{**setting.result.values, key: value} for value in values]
        series.append(
            SweepSeries(
                scenario=setting.result.scenario,
                held={name: value for name, value in setting.result.values.items() if name != key},
                settings=[places[setting.result.scenario, tuple(each.items())] for each in chosen],
            )
        )
    return series


def why_not(run: PointRun) -> str | None:
    """Why a point does not count. None if it does."""
    if run.valid:
        return None
    job = f"job {run.point.job_id}" if run.point.job_id else "no job: not accepted, or never started"
    if run.analysis is None:
        return f"{job} has written nothing" if run.point.job_id else job
    quality = run.analysis.data_quality
    state = quality.state or "no marker shows how the job ended"
    if state != "completed":
        return f"{job}: {state}"
    expected = quality.ranks_expected if quality.ranks_expected is not None else "an unknown number of"
    return (
        f"{job}: {quality.steady_steps} steady steps, records from {quality.ranks_seen} of {expected} ranks"
    )


def statement(found: Sequence[Setting]) -> str:
    """The fastest setting, its lead over the slowest on as many nodes, and how its values scale."""
    measured = [setting for setting in found if setting.rates]
    if not measured:
        return "No point of this sweep could be measured."
    best = max(measured, key=lambda item: fmean(item.rates))
    said = f"Fastest: {_name(best)} with {fmean(best.rates):,.1f} samples/s"
    peers = [setting for setting in measured if setting.result.scenario == best.result.scenario]
    worst = min(peers, key=lambda item: fmean(item.rates))
    if worst is not best:
        said += _lead(ratio(best.rates, worst.rates), _name(worst))
    curve = next((item for item in curves(found) if item.values == best.result.values), None)
    if curve is not None and len(curve.points) > 1:
        last = curve.points[-1]
        said += f". Its {last.scenario} runs at {100 * last.efficiency.mean:.0f} % efficiency"
        said += f" against {curve.reference}"
    return f"{said}."


def _lead(gain: RepeatedMean, other: str) -> str:
    said = f", {gain.mean:.2f}× as many as {other}"
    if gain.low is None or gain.high is None:
        return said
    unsure = "; this range includes 1, so the repeats show no clear difference" if gain.low <= 1 else ""
    what = "95 % band" if gain.basis == "confidence" else "seen"
    return f"{said} ({what} {gain.low:.2f} to {gain.high:.2f}{unsure})"


def _name(setting: Setting) -> str:
    pairs = ", ".join(f"{key} = {value}" for key, value in setting.result.values.items())
    nodes = Scenario(setting.result.scenario).nodes
    size = plural(nodes, "node")
    return f"{pairs} on {size}" if pairs else size
