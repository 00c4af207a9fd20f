"""The median is numpy's."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from aorta.metrics.median import median


@given(st.lists(st.integers(-(2**52), 2**52), min_size=1, max_size=30))
def test_it_is_that_of_numpy(values: list[int]) -> None:
    assert median(np.array(values)) == float(np.median(np.array(values)))


def test_an_even_number_of_values_has_the_mean_of_both_middle_ones() -> None:
    assert median(np.array([9, 1, 4, 2])) == (2 + 4) / 2
