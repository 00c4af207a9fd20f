"""How often something happens in a job, by the captured steps."""

from __future__ import annotations

import numpy as np
import pytest

from aorta.artefacts.weight import Estimate
from aorta.diagnosis.mistake import ALWAYS
from aorta.diagnosis.mistakes._recurring import often

STEPS = np.arange(3, 15)


@pytest.mark.parametrize("within", [[], STEPS])
def test_what_happens_in_no_step_or_in_each_one_has_no_other_rate(within: list[int]) -> None:
    assert often(STEPS, np.array(within, dtype=np.int64)) == ALWAYS


def test_two_occurrences_tell_the_period() -> None:
    found = often(STEPS, np.array([3, 13]))
    # One in ten steps; two of twelve were captured.
    assert found.value == pytest.approx((1 / 10) / (2 / 12))
    assert found.low < found.value < found.high


@pytest.mark.parametrize(("place", "shortest"), [(3, 12), (14, 12), (9, 7)])
def test_one_occurrence_bounds_the_rate(place: int, shortest: int) -> None:
    # It lies `shortest` steps from the further edge of the capture, the edge included.
    expected = Estimate(value=1.0, low=0.0, high=12 / shortest)
    assert often(STEPS, np.array([place])) == expected
