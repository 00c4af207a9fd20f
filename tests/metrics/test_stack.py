from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from aorta.intervals import as_intervals, subtract, union
from aorta.metrics import stack
from aorta.metrics.cover import Cover
from aorta.metrics.stack import Stack, batches

Pairs = list[tuple[int, int]]
PAIRS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=4)


def at(*numbers: int) -> NDArray[np.int64]:
    return np.array(numbers, dtype=np.int64)


def test_a_rank_begins_beyond_the_last_time_of_the_one_before() -> None:
    line = Stack.of(at(100, 7), at(103, 9))
    assert line.on(at(0, 0, 1, 1), at(100, 103, 7, 9)).tolist() == [0, 3, 4, 6]
    assert line.on(at(0, 1), at(-5, 50)).tolist() == [0, 6]
    assert line.line([as_intervals([(101, 103)]), as_intervals([(7, 9)])]).tolist() == [[1, 3], [4, 6]]


def test_lines_hold_few_ranks_and_fit_64_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack, "_TOGETHER", 2)
    assert list(batches(at(0, 0, 0), at(5, 5, 5))) == [slice(0, 2), slice(2, 3)]
    assert list(batches(at(0, 0, 0), at(2**61, 2**61, 5))) == [slice(0, 1), slice(1, 3)]
    assert list(batches(at(), at())) == []


@given(st.lists(st.tuples(PAIRS, PAIRS, st.integers(-(10**6), 10**6)), min_size=1, max_size=4))
def test_what_is_left_of_each_rank_is_as_it_is_alone(ranks: list[tuple[Pairs, Pairs, int]]) -> None:
    own = [tuple(union(as_intervals(pairs)) + ahead for pairs in sets) for *sets, ahead in ranks]
    first = np.array([ahead for *_, ahead in ranks], dtype=np.int64)
    line = Stack.of(first, first + 20)
    left = Cover(subtract(*(line.line([pair[side] for pair in own]) for side in (0, 1))))
    for place, (one, other) in enumerate(own):
        alone, times = Cover(subtract(one, other)), first[place] + np.arange(21)
        there = line.on(np.full(21, place), times)
        assert np.diff(left.before(there)).tolist() == np.diff(alone.before(times)).tolist()
