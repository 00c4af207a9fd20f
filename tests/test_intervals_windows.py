"""Lengths of intervals within windows."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from aorta.intervals import EMPTY, as_intervals, clip, length, lengths_in

pairs = st.lists(st.tuples(st.integers(-50, 50), st.integers(-50, 50)), max_size=12)


def test_windows_may_overlap_and_be_empty() -> None:
    covered = as_intervals([(0, 10), (5, 20), (30, 40)])
    windows = as_intervals([(0, 100), (15, 35), (20, 30), (7, 7)])
    assert lengths_in(covered, windows).tolist() == [20 + 10, (20 - 15) + (35 - 30), 0, 0]
    assert lengths_in(EMPTY, windows).tolist() == [0, 0, 0, 0]
    assert lengths_in(covered, EMPTY).dtype == np.int64


@given(pairs, pairs)
def test_each_window_as_if_it_were_alone(
    covered: list[tuple[int, int]], windows: list[tuple[int, int]]
) -> None:
    found = lengths_in(as_intervals(covered), as_intervals(windows)).tolist()
    assert found == [length(clip(as_intervals(covered), *window)) for window in windows]
