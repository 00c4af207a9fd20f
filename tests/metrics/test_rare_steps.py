"""Steps with a checkpoint, as a share of the time."""

from __future__ import annotations

import pytest

from aorta.artefacts.step_columns import StepColumns
from aorta.metrics.rare_steps import rare_steps
from tests.support.steps import step


def test_a_checkpoint_counts_beyond_the_usual_step() -> None:
    plain = [step(number, (10 * number, 10 * number + 10)) for number in (1, 2)]
    saving = step(3, (30, 60), phase="checkpoint")
    last = step(4, (60, 70))
    found = rare_steps({0: StepColumns.of([*plain, saving, last])}, (1, 2, 4))
    # 20 of 60 ms are beyond the usual 10.
    assert found["checkpoint"][0].count == 1
    assert found["checkpoint"][0].share == pytest.approx(20 / 60)
    assert found["validation"] == {}


def test_a_checkpoint_that_costs_nothing_is_measured_and_none_is_absent() -> None:
    steps = [step(n, (10 * n, 10 * n + 10), phase="checkpoint" if n == 2 else "steady") for n in (1, 2, 3)]
    assert rare_steps({0: StepColumns.of(steps)}, (1, 3))["checkpoint"][0].share == 0.0
    assert rare_steps({0: StepColumns.of(steps[:1])}, (1,))["checkpoint"] == {}
    assert rare_steps({}, ())["checkpoint"] == {}


def test_steps_before_the_first_steady_one_are_left_out() -> None:
    steps = [step(1, (0, 90), phase="checkpoint"), step(2, (90, 100)), step(3, (100, 110))]
    assert rare_steps({0: StepColumns.of(steps)}, (2, 3))["checkpoint"] == {}
