"""What `benchmarks/ratios.py` makes of the times of turns."""

from __future__ import annotations

import itertools
import statistics

import pytest

from benchmarks.ratios import Block, mixed, over_both, ratio

MS = [1.0, 1.02, 1.05, 1.1, 1.3]
"""Of blocks: a few take much longer."""


def blocks(*ms: float) -> list[Block]:
    return [Block(one, 0.0) for one in ms]


def test_of_runs_that_are_alike_neither_is_slower() -> None:
    turns = list(itertools.product(MS, repeat=3))
    found = over_both(*(blocks(*times) for times in zip(*turns, strict=True)))
    assert found.value == 1
    assert found.interval[0] <= 1 <= found.interval[1]
    # What it is not.
    assert statistics.median(one / ((first + second) / 2) for one, first, second in turns) < 0.991


def test_turns_with_the_work_that_comes_once_in_a_while_weigh_what_they_are() -> None:
    over = [*blocks(1.0, 1.0, 1.0), Block(1.4, 0.0, handed=True)]
    assert ratio(over, blocks(1.0, 1.0, 1.0, 1.0)).value == pytest.approx((3 * 1.0 + 1.4) / 4)


def test_a_long_run_has_one_block_in_so_many_of_the_second_kind() -> None:
    usual, seldom = ratio(blocks(1.01), blocks(1.0)), ratio(blocks(1.05), blocks(1.0))
    assert mixed(usual, seldom, 40).value == pytest.approx((39 * 1.01 + 1.05) / 40)
    assert mixed(usual, seldom, 40).interval == pytest.approx((1.011, 1.011))
