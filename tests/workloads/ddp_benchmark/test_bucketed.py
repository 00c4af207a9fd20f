"""Which parameters travel together."""

from __future__ import annotations

from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st

from aorta.workloads.ddp_benchmark.bucketed import assign_buckets
from aorta.workloads.ddp_benchmark.model import LanguageModel
from aorta.workloads.ddp_benchmark.options import BenchmarkOptions


def test_a_bucket_is_closed_by_the_parameter_with_which_it_reaches_the_bound() -> None:
    sizes = [(4, "a"), (6, "a"), (1, "a"), (10, "a"), (2, "a")]
    assert assign_buckets(sizes, 10) == [[0, 1], [2, 3], [4]]  # 4+6 is 10; 1+10 is more; 2 is what is left


def test_a_parameter_above_the_bound_closes_its_bucket() -> None:
    assert assign_buckets([(99, "a"), (1, "a"), (99, "a"), (1, "a")], 10) == [[0], [1, 2], [3]]


def test_kinds_do_not_mix() -> None:
    assert assign_buckets([(1, "a"), (1, "b"), (1, "b")], 10) == [[0], [1, 2]]


def test_the_default_model_has_several_buckets_of_the_default_size() -> None:
    options = BenchmarkOptions()
    with torch.device("meta"):
        sizes = [(4 * value.numel(), value.dtype) for value in LanguageModel(options).parameters()][::-1]
    buckets = assign_buckets(sizes, options.bucket_bytes)
    filled = [sum(sizes[index][0] for index in members) for members in buckets]
    assert len(buckets) >= 5
    # Full at 100 MiB, the last one excepted; none takes more than another of the 30.7 MB of an embedding.
    assert min(filled[:-1]) >= 100 * 2**20
    assert max(filled) < 100 * 2**20 + max(size for size, _ in sizes)


@given(st.lists(st.tuples(st.integers(0, 50), st.sampled_from("ab")), max_size=30), st.integers(1, 60))
def test_every_parameter_is_in_one_bucket_in_order(sizes: list[tuple[int, str]], bound: int) -> None:
    buckets = assign_buckets(sizes, bound)
    assert [index for members in buckets for index in members] == list(range(len(sizes)))
    for members in buckets:
        assert len({sizes[index][1] for index in members}) == 1
        assert sum(sizes[index][0] for index in members[:-1]) < bound or len(members) == 1
    for before, after in pairwise(buckets):  # it was full, or the next one is of another kind
        full = sum(sizes[index][0] for index in before) >= bound
        assert full or sizes[after[0]][1] != sizes[before[0]][1]
