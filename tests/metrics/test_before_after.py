"""Faster, slower or not to be told apart, from intervals with known widths."""

from __future__ import annotations

import math

import msgspec
import pytest

from aorta.artefacts.analysis import Analysis
from aorta.artefacts.measured import BreakdownTable, Interval
from aorta.metrics.before_after import change, changed_settings, differences, step_ms, width_of
from tests.support.analyses import analysis, rank_row


def run(mean: float, half: float | None) -> Analysis:
    """A run whose mean step is `mean`, known within a factor of exp(`half`)."""
    base = analysis()
    assert base.throughput is not None
    interval = None if half is None else Interval(low=mean / math.exp(half), high=mean * math.exp(half))
    rate = msgspec.structs.replace(base.throughput, step_ms_mean=mean, step_ms_interval=interval)
    return analysis(throughput=rate)


def answer(before: Analysis, after: Analysis) -> str:
    return change(before, after, (width_of(before), width_of(after))).answer


@pytest.mark.parametrize(
    ("before", "after", "half", "said"),
    [
        (100.0, 110.0, 0.03, "slower"),  # log 1.1 = 0.095 > 0.03 · √2 = 0.042
        (110.0, 100.0, 0.03, "faster"),
        (100.0, 103.0, 0.03, "cannot be told apart"),  # 0.030 < 0.042
        (100.0, 100.4, 0.0001, "cannot be told apart"),  # below 0.5 %
        (100.0, 100.6, 0.0001, "slower"),
    ],
)
def test_the_answer_is_by_the_combined_interval(before: float, after: float, half: float, said: str) -> None:
    first, second = run(before, half), run(after, half)
    assert answer(first, second) == said
    found = change(first, second, (width_of(first), width_of(second)))
    assert found.interval is not None
    assert found.ratio == after / before
    assert math.log(found.interval.high / found.interval.low) / 2 == pytest.approx(half * math.sqrt(2))


def test_without_an_interval_nothing_is_told_apart() -> None:
    found = change(run(100.0, None), run(200.0, 0.01), (None, 0.01))
    assert (found.answer, found.ratio, found.interval) == ("cannot be told apart", 2.0, None)


def test_without_steps_nothing_is_measurable_and_a_breakdown_is_enough() -> None:
    nothing = analysis(throughput=None, breakdown=BreakdownTable(steps=0, per_rank=[]))
    assert step_ms(nothing) is None
    assert change(nothing, run(100.0, 0.01), (None, 0.01)).answer == "not measurable"
    traced = analysis(throughput=None, breakdown=BreakdownTable(steps=3, per_rank=[rank_row(0)]))
    assert step_ms(traced) == 90.0


def test_steps_of_traces_have_students_interval() -> None:
    traced = analysis(throughput=None)
    # The logarithms are −0.1, 0 and 0.1: standard deviation 0.1, t of two degrees of freedom 4.303.
    steps = [math.exp(value) for value in (-0.1, 0.0, 0.1)]
    assert width_of(traced, steps) == pytest.approx(4.3027 * 0.1 / math.sqrt(3), rel=1e-4)
    assert width_of(traced, steps[:2]) is None
    assert width_of(traced) is None
    assert width_of(traced, [5.0, 5.0, 5.0]) == 0.0


def test_a_difference_is_named_where_both_sides_know_the_value() -> None:
    first = analysis(program="a", device="cpu", settings={"x": 1, "y": 2})
    second = analysis(program="b", device="cuda", world_size=None, settings={"x": 3, "y": 2, "z": 1})
    assert differences(first, second) == [
        "the program differs: a before, b after",
        "the device differs: cpu before, cuda after",
    ]
    assert differences(first, first) == []
    assert changed_settings(first, second) == ["x: 1 → 3"]
    assert changed_settings(first, analysis(settings=None)) == []
    traces = analysis(program="a", device="cpu", throughput=None)
    assert differences(first, traces) == [
        "the source of the step time differs: step records before, traces after"
    ]
