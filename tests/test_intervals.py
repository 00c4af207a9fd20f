"""Interval algebra: tiny integer cases, and properties against sets of integers."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from aorta.intervals import EMPTY, Intervals, as_intervals, clip, intersection, length, subtract, union

pairs = st.lists(st.tuples(st.integers(-20, 60), st.integers(-20, 60)), max_size=12)


def points(intervals: Intervals) -> set[int]:
    return {point for start, end in intervals.tolist() for point in range(start, end)}


def assert_canonical(intervals: Intervals) -> None:
    assert intervals.dtype == np.int64
    assert (intervals[:, 1] > intervals[:, 0]).all()
    assert (intervals[1:, 0] > intervals[:-1, 1]).all()


def test_union_merges_touching_and_overlapping() -> None:
    assert union(as_intervals([(5, 9), (0, 3), (3, 4), (8, 12)])).tolist() == [[0, 4], [5, 12]]


def test_length_counts_overlap_once() -> None:
    assert length(as_intervals([(0, 10), (5, 20), (30, 31)])) == 20 + 1


def test_nothing_is_zero() -> None:
    assert length(EMPTY) == 0
    assert length(as_intervals([(4, 4), (9, 2)])) == 0


def test_a_long_interval_hides_the_short_ones_inside_it() -> None:
    assert union(as_intervals([(0, 100), (10, 20), (30, 40), (100, 101)])).tolist() == [[0, 101]]


def test_nanoseconds_of_the_epoch_are_exact() -> None:
    start = 1_700_000_000_000_000_001
    assert length(as_intervals([(start, start + 1)])) == 1


def test_clip() -> None:
    assert clip(as_intervals([(0, 10), (20, 30)]), 5, 25).tolist() == [[5, 10], [20, 25]]


@given(pairs, pairs)
def test_operations_are_those_of_sets(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    left, right = as_intervals(a), as_intervals(b)
    for result, expected in (
        (union(left), points(left)),
        (intersection(left, right), points(left) & points(right)),
        (subtract(left, right), points(left) - points(right)),
    ):
        assert_canonical(result)
        assert points(result) == expected
        assert length(result) == len(expected)


@given(pairs, pairs)
def test_parts_sum_to_the_whole(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    left, right = as_intervals(a), as_intervals(b)
    assert length(intersection(left, right)) + length(subtract(left, right)) == length(left)


@given(pairs)
def test_arguments_are_not_changed(a: list[tuple[int, int]]) -> None:
    given_intervals = as_intervals(a)
    before = given_intervals.copy()
    union(given_intervals)
    subtract(given_intervals, given_intervals)
    assert (given_intervals == before).all()
