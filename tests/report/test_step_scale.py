"""The top of a chart of step times."""

from __future__ import annotations

import pytest

from aorta.artefacts.page import StepTimeSeries
from aorta.report.step_scale import ceiling


def series(ms: list[float], steady: list[bool]) -> StepTimeSeries:
    return StepTimeSeries(global_step=list(range(len(ms))), ms=ms, steady=steady, steps_a_point=1)


def test_a_first_step_of_seconds_does_not_flatten_the_others() -> None:
    assert ceiling(series([4000.0, *[70.0] * 9], [False, *[True] * 9])) == pytest.approx(1.3 * 70)


def test_steps_of_about_one_length_are_all_shown() -> None:
    assert ceiling(series([70.0, 75.0, 80.0], [True] * 3)) == pytest.approx(1.08 * 80)


def test_without_steady_steps_all_count() -> None:
    # The 98th percentile of two values lies 0.98 of the way from one to the other.
    assert ceiling(series([10.0, 20.0], [False, False])) == pytest.approx(1.08 * 20)
    assert ceiling(series([10.0], [False])) == pytest.approx(1.08 * 10)
