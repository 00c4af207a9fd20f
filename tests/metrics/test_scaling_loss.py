"""Scaling with POP factors, intervals and repeats: what is lost, by what, and when numbers disagree."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from aorta.artefacts.aggregate import Scaling
from aorta.artefacts.analysis import Analysis, DataQuality, Finding, Kind, Verdict
from aorta.artefacts.measured import BreakdownTable, Interval, Throughput
from aorta.diagnosis.findings import likeliest
from aorta.metrics.pooled import pooled_rate
from aorta.metrics.pop import pop
from aorta.metrics.scaling import scaling_curves
from aorta.metrics.student import t_quantile


def rate(step_ms: float, batch: int, width: float | None = None) -> Throughput:
    value = batch / (step_ms / 1000)
    return Throughput(
        samples_per_s=value,
        global_batch=batch,
        per_rank_batch=8,
        step_ms_median=step_ms,
        step_ms_p95=step_ms,
        cross_check_ratio=1.0,
        samples_per_s_interval=None if width is None else Interval(low=value / width, high=value * width),
    )


def run(
    ranks: int,
    useful: list[float],
    step_ms: float,
    *,
    ideal: float | None = None,
    found: Kind | None = None,
    between: float = 1.0,
    width: float | None = None,
    **changes: Any,
) -> Analysis:
    """A run whose steps take `step_ms`, and `between` times as long from start to start."""
    findings = [
        Finding(
            kind=found or "healthy",
            severity="warning",
            cause="",
            ranks=[],
            nodes=[],
            value=None,
            threshold=None,
            unit="",
            evidence={},
            estimated_speedup=None,
            actions=[],
        )
    ]
    whole = Analysis(
        scenario=f"{ranks}node",
        job_id=str(ranks),
        nodes=ranks,
        world_size=ranks,
        verdict=Verdict(kind=found or "healthy", statement="", ranks=[]),
        findings=findings if found else [],
        measured=[],
        breakdown=BreakdownTable(steps=20, per_rank=[]),
        blame=[],
        throughput=rate(step_ms * between, 8 * ranks, width),
        utilization=None,
        data_quality=DataQuality(
            ranks_expected=ranks, ranks_seen=ranks, sources=[], problems=[], state="completed"
        ),
        thresholds={},
        program="p",
        settings={},
        pop=pop(dict(enumerate(useful)), step_ms, ideal_ms=ideal),
    )
    return msgspec.structs.replace(whole, **changes)


def curve(*runs: Analysis, repeats: tuple[Analysis, ...] = ()) -> Scaling:
    (found,) = scaling_curves(runs, repeats, likeliest=likeliest)
    return found


ONE = run(1, [8.0], 10.0, ideal=10.0)


def test_pop_factors_and_throughput_give_the_same_efficiency() -> None:
    reference, point = curve(ONE, run(2, [8.0, 6.0], 12.5, ideal=12.0)).points
    assert reference.efficiency == reference.self_check_ratio == 1.0
    # Weak: 8 samples a rank in 10 and in 12.5 ms.
    assert point.efficiency == pytest.approx(0.8)
    assert point.computation_scalability == pytest.approx((8 / 8) / (14 / 16))
    assert point.global_efficiency == pytest.approx((16 / 14) * 14 / 25)
    assert point.self_check_ratio == pytest.approx(1.0)
    assert point.self_check is None


def test_numbers_that_disagree_by_more_than_two_percent_are_said_to() -> None:
    near, far = (curve(ONE, run(2, [8.0, 8.0], 10.0, between=by)).points[1] for by in (1.019, 1.021))
    assert near.self_check is None
    assert far.self_check is not None
    assert "1.02 times" in far.self_check


@pytest.mark.parametrize(
    ("point", "factor"),
    [
        (run(2, [8.0, 4.0], 10.0, ideal=10.0, found="straggler"), "load_balance"),
        (run(2, [8.0, 8.0], 14.0, ideal=14.0, found="data_loading"), "serialisation"),
        (run(2, [8.0, 8.0], 14.0, ideal=10.0, found="communication"), "transfer"),
        (run(2, [8.0, 8.0], 14.0, found="communication"), "communication"),
        (run(2, [10.0, 10.0], 12.5, ideal=12.5), "computation_scalability"),
        (run(2, [8.0, 8.0], 10.0, ideal=10.0, between=1.3, found="data_loading"), "between_steps"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_factor_that_loses_most_is_named_with_its_finding(point: Analysis, factor: str) -> None:
    worse = factor == "load_balance"
    (loss,) = curve(run(1, [6.0], 7.5, ideal=7.5) if worse else ONE, point).losses
    assert loss.main_factor == factor
    product = 1.0
    for value in loss.factors.values():
        product *= value
    assert product == pytest.approx(loss.efficiency_ratio)
    kind = point.findings[0].kind if point.findings else None
    assert loss.finding_kind == kind
    assert factor.replace("_", " ") in loss.statement
    assert kind is None or f"the finding {kind} of 2node" in loss.statement


def test_each_step_of_scale_has_its_own_loss_and_none_where_nothing_is_lost() -> None:
    two, four = run(2, [8.0] * 2, 10.0, ideal=10.0), run(4, [8.0] * 4, 12.5, ideal=10.0)
    kept, lost = curve(ONE, two, four).losses
    assert (kept.main_factor, kept.scenario_to) == (None, "2node")
    assert "no efficiency is lost" in kept.statement
    assert (lost.main_factor, lost.scenario_from, lost.scenario_to) == ("transfer", "2node", "4node")


def test_without_pop_factors_no_loss_is_stated() -> None:
    bare = run(2, [8.0, 8.0], 14.0, pop=None)
    found = curve(ONE, bare)
    assert found.losses == []
    assert found.points[1].self_check_ratio is None


def test_intervals_of_the_ratio_come_from_both_runs() -> None:
    found = curve(run(1, [8.0], 10.0, width=1.1), run(2, [8.0, 8.0], 10.0, width=1.1))
    point = found.points[1]
    assert point.samples_per_s_interval is not None
    assert point.samples_per_s_interval.high / point.samples_per_s == pytest.approx(1.1)
    assert point.efficiency_interval is not None
    # In logarithms the two widths add in quadrature.
    assert point.efficiency_interval.high == pytest.approx(1.1 ** (2**0.5))
    assert found.points[0].efficiency_interval is None
    assert curve(ONE, run(2, [8.0, 8.0], 10.0)).points[1].efficiency_interval is None


def test_repeats_of_the_same_program_and_settings_are_averaged_and_others_are_not() -> None:
    two = run(2, [8.0, 8.0], 10.0)
    again = run(2, [8.0, 8.0], 12.5, job_id="again")
    other = run(2, [8.0, 8.0], 99.0, job_id="other", settings={"training.batch_size": 4})
    point = curve(ONE, two, repeats=(again, other, two)).points[1]
    assert point.runs == 2
    assert point.samples_per_s == pytest.approx((1600 + 1280) / 2)


def test_what_is_lost_is_of_the_runs_whose_factors_are_shown() -> None:
    """Another run of two ranks was four times as slow: the mean falls, the newest run lost a fifth."""
    two = run(2, [8.0, 8.0], 12.5, ideal=12.5)
    again = run(2, [8.0, 8.0], 50.0, ideal=50.0, job_id="again")
    found = curve(ONE, two, repeats=(again,))
    assert found.points[1].efficiency == pytest.approx((0.8 + 0.2) / 2)
    (loss,) = found.losses
    assert loss.efficiency_ratio == pytest.approx(0.8)
    assert loss.factors["serialisation"] == pytest.approx(0.8)
    assert loss.factors["between_steps"] == pytest.approx(1.0)
    assert loss.statement.startswith("From 1node to 2node (the newest run of each) efficiency falls to 0.80")
    (alone,) = curve(ONE, two).losses
    assert alone.statement.startswith("From 1node to 2node efficiency falls to 0.80")


def test_a_few_repeats_that_agree_are_no_surer_than_their_steps() -> None:
    same = [rate(10.0, 16, width=1.2)] * 4
    found = pooled_rate(same)
    assert found.interval() is not None
    assert found.spread == pytest.approx(0.5 * 0.182321556 * 1.0, rel=1e-3)
    apart = pooled_rate([rate(each, 16, width=1.01) for each in (10.0, 20.0, 40.0)])
    # log 1600, log 800 and log 400: standard deviation log 2.
    assert apart.spread == pytest.approx(t_quantile(2) * 0.693147 / 3**0.5, rel=1e-4)


def test_two_runs_have_their_range_and_no_interval() -> None:
    """1600 and 1280 samples/s on two ranks, 800 on one: Student's interval would reach from 349 to 5944."""
    two, again = run(2, [8.0, 8.0], 10.0, width=1.1), run(2, [8.0, 8.0], 12.5, job_id="again", width=1.1)
    reference, point = curve(run(1, [8.0], 10.0, width=1.1), two, repeats=(again,)).points
    assert point.samples_per_s_interval == Interval(low=1280.0, high=1600.0, confidence=None)
    assert point.speedup_interval == Interval(low=1.6, high=2.0, confidence=None)
    assert point.efficiency_interval == Interval(low=0.8, high=1.0, confidence=None)
    assert reference.samples_per_s_interval is not None
    assert reference.samples_per_s_interval.confidence == 0.95


def test_two_runs_of_the_reference_make_its_ratios_a_range_too() -> None:
    """Of one run of 1600 over 800 and 640."""
    again = run(1, [8.0], 12.5, job_id="again", width=1.1)
    found = curve(run(1, [8.0], 10.0, width=1.1), run(2, [8.0, 8.0], 10.0, width=1.1), repeats=(again,))
    assert found.points[1].speedup_interval == Interval(low=2.0, high=2.5, confidence=None)


def test_three_runs_have_an_interval_again() -> None:
    more = [run(2, [8.0, 8.0], 10.0 + each, job_id=f"more{each}", width=1.1) for each in (1, 2)]
    found = curve(run(1, [8.0], 10.0, width=1.1), run(2, [8.0, 8.0], 10.0, width=1.1), repeats=more)
    assert found.points[1].efficiency_interval is not None
    assert found.points[1].efficiency_interval.confidence == 0.95
