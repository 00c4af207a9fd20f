"""Which parameters travel together."""

from __future__ import annotations

from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st

from aorta.train.ddp_benchmark.bucketed import assign_buckets
from aorta.train.ddp_benchmark.model import LanguageModel
from aorta.train.ddp_benchmark.options import Options


def test_buckets_fill_up_to_the_bound() -> None:
    sizes = [(4, "a"), (6, "a"), (1, "a"), (10, "a"), (2, "a")]
    assert assign_buckets(sizes, 10) == [[0, 1], [2], [3], [4]]  # 4+6; 1, as 1+10 is too much; 10; 2


def test_a_parameter_above_the_bound_has_a_bucket_to_itself() -> None:
    assert assign_buckets([(1, "a"), (99, "a"), (1, "a")], 10) == [[0], [1], [2]]


def test_kinds_do_not_mix() -> None:
    assert assign_buckets([(1, "a"), (1, "b"), (1, "b")], 10) == [[0], [1, 2]]


def test_the_default_model_has_several_buckets_of_the_default_size() -> None:
    options = Options()
    with torch.device("meta"):
        sizes = [(4 * value.numel(), value.dtype) for value in LanguageModel(options).parameters()][::-1]
    buckets = assign_buckets(sizes, options.bucket_bytes)
    filled = [sum(sizes[index][0] for index in members) for members in buckets]
    assert len(buckets) >= 5
    assert max(filled) <= 100 * 2**20 < 2 * min(filled[:-1])


@given(st.lists(st.tuples(st.integers(0, 50), st.sampled_from("ab")), max_size=30), st.integers(1, 60))
def test_every_parameter_is_in_one_bucket_in_order(sizes: list[tuple[int, str]], bound: int) -> None:
    buckets = assign_buckets(sizes, bound)
    assert [index for members in buckets for index in members] == list(range(len(sizes)))
    for members in buckets:
        assert len({sizes[index][1] for index in members}) == 1
        assert len(members) == 1 or sum(sizes[index][0] for index in members) <= bound
    for before, after in pairwise(buckets):  # no bucket could have taken one more
        size, kind = sizes[after[0]]
        full = sum(sizes[index][0] for index in before) + size > bound
        assert full or kind != sizes[before[0]][1]
