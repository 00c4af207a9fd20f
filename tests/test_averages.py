from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aorta.averages import fmean, median, median_low

FLOATS = st.floats(allow_nan=False, allow_infinity=False, width=32)
NUMBERS = st.lists(FLOATS | st.integers(-9, 9), min_size=1)


@given(NUMBERS)
def test_averages_are_those_of_statistics(values: list[float]) -> None:
    assert fmean(values) == statistics.fmean(values)
    assert median(values) == statistics.median(values)
    assert median_low(values) == statistics.median_low(values)
    assert fmean(iter(values)) == fmean(values)


@pytest.mark.parametrize("average", [fmean, median, median_low])
def test_nothing_has_no_average(average: Callable[[Iterable[float]], float]) -> None:
    with pytest.raises(ValueError, match="at least one value"):
        average([])
