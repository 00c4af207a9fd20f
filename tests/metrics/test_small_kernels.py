"""Chains of elementwise kernels and loops of tiny products, in small host lines."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from aorta.artefacts.hostline import ComputeKind, Item, Tag
from aorta.metrics.kernel_names import compute_kind
from aorta.metrics.small_kernels import (
    LEAST_PRODUCTS,
    LONGEST_CHAIN,
    MEMORY_BOUND_NS,
    SHORTEST_CHAIN,
    TINY_PRODUCT_NS,
    chained,
    looped,
)
from tests.support.host_lines import Row, launch, line

US, MS = 1_000, 1_000_000


def kernel(kind: ComputeKind, gpu: int, tags: int = 0) -> Row:
    return launch(US, gpu, kind=int(kind), tags=int(tags))


LINK = kernel(ComputeKind.POINTWISE, MEMORY_BOUND_NS)
NORM = kernel(ComputeKind.ELEMENTWISE, MEMORY_BOUND_NS)
LARGE = kernel(ComputeKind.TENSOR_MATMUL, TINY_PRODUCT_NS + 1)
TINY = kernel(ComputeKind.TENSOR_MATMUL, TINY_PRODUCT_NS)
GELU = kernel(ComputeKind.POINTWISE, 2 * US)
JOIN = kernel(ComputeKind.ELEMENTWISE, 2 * US, Tag.JOIN)


def links(*rows: Row) -> int:
    return int(chained(line([rows])).sum())


def repeated(rows: Sequence[Row], pieces: Sequence[int] = ()) -> int:
    """Launches that `looped` finds; `pieces` are places of rows, from 0."""
    table = line([rows])
    taken = np.zeros(len(table), dtype=np.bool_)
    taken[[place + 1 for place in pieces]] = True
    return int(looped(table, taken).sum())


@pytest.mark.parametrize("count", [0, 1, SHORTEST_CHAIN - 1])
def test_a_few_elementwise_kernels_are_no_chain(count: int) -> None:
    assert links(LARGE, *[LINK] * count, LARGE) == 0


@pytest.mark.parametrize("count", [SHORTEST_CHAIN, LONGEST_CHAIN])
def test_many_elementwise_kernels_in_a_row_are_a_chain(count: int) -> None:
    assert links(LARGE, *[LINK] * count, LARGE) == count


def test_a_loop_over_many_tensors_is_no_chain() -> None:
    assert links(LARGE, *[LINK] * (LONGEST_CHAIN + 1), LARGE) == 0


def test_a_product_ends_a_chain_and_a_normalisation_does_not() -> None:
    half = [LINK] * (SHORTEST_CHAIN // 2)
    assert links(*half, LARGE, *half) == 0
    assert links(*half, NORM, *half) == SHORTEST_CHAIN


def test_kernels_that_move_hardly_any_memory_are_no_links() -> None:
    short = kernel(ComputeKind.POINTWISE, MEMORY_BOUND_NS - 1)
    assert links(*[short] * SHORTEST_CHAIN) == 0
    assert links(*[LINK] * SHORTEST_CHAIN, short) == SHORTEST_CHAIN


@pytest.mark.parametrize("tag", [Tag.OPTIMIZER, Tag.ANOMALY, Tag.READ_BACK])
def test_what_a_compiler_does_not_fuse_with_the_model_is_no_link(tag: Tag) -> None:
    assert links(*[kernel(ComputeKind.POINTWISE, MEMORY_BOUND_NS, tag)] * SHORTEST_CHAIN) == 0


def test_a_chain_ends_with_its_step() -> None:
    half = [LINK] * (SHORTEST_CHAIN // 2)
    assert int(chained(line([half, half])).sum()) == 0
    assert int(chained(line([half + half])).sum()) == SHORTEST_CHAIN


def test_an_empty_step_has_neither() -> None:
    assert links() == 0
    assert repeated([]) == 0


@pytest.mark.parametrize(("many", "found"), [(4, 0), (6, 5 * 3)])
def test_a_loop_joins_its_results(many: int, found: int) -> None:
    """Each round has two products and an activation; the first one is kept."""
    assert LEAST_PRODUCTS == 2 * 6
    assert repeated([LARGE, *[TINY, GELU, TINY] * many, JOIN, LARGE]) == found


def test_layers_that_join_nothing_are_no_loop() -> None:
    layers = [TINY, GELU, TINY] * 12
    assert repeated([LARGE, *layers, LARGE]) == 0
    assert repeated([LARGE, *layers, LARGE, JOIN]) == 0


def test_products_that_fill_a_gpu_are_no_tiny_ones() -> None:
    assert repeated([*[LARGE, GELU, LARGE] * 12, JOIN]) == 0


def test_a_short_round_that_takes_a_piece_each_time_is_a_loop() -> None:
    rounds = [TINY, GELU, TINY] * 8
    each = range(0, len(rounds), 3)
    assert repeated(rounds, each) == 7 * 3
    # One split ahead of the loop is no piece per round.
    assert repeated(rounds, [0]) == 0


def test_layers_that_split_their_products_are_no_loop() -> None:
    layer = [TINY, kernel(ComputeKind.ATTENTION, 9 * US), TINY, TINY, GELU, TINY]
    assert repeated(layer * 8, range(1, 8 * len(layer), len(layer))) == 0


def test_the_backward_pass_of_a_loop_belongs_to_it() -> None:
    forward = [*[TINY, GELU, TINY] * 6, JOIN, LARGE, kernel(ComputeKind.TENSOR_MATMUL, MS, Tag.BACKWARD)]
    back = kernel(ComputeKind.TENSOR_MATMUL, TINY_PRODUCT_NS, Tag.BACKWARD)
    gelu = kernel(ComputeKind.POINTWISE, US, Tag.BACKWARD)
    backward = [gelu, back, back, back, back] * 6
    assert repeated([*forward, *backward]) == 5 * 3 + 5 * 5
    # Without the loop, the layers of a model look the same.
    assert repeated(backward) == 0
    # It has about as many rounds as the loop: the first ones may differ.
    assert repeated([*forward, *[gelu, back, back, back, back] * 4]) == 5 * 3 + 3 * 5
    assert repeated([*forward, *[gelu, back, back, back, back] * 12]) == 5 * 3


def test_rows_that_launch_nothing_are_never_marked() -> None:
    wait: Row = {"item": int(Item.SYNC), "held_ns": US}
    assert repeated([*[TINY, wait, GELU, TINY] * 6, JOIN]) == 5 * 3


def test_what_is_joined_behind_the_backward_pass_belongs_to_no_loop() -> None:
    """Clipping stacks the norms of all gradients; equal layers in a row are no loop for that."""
    layers = [TINY, GELU, TINY] * 12
    back = kernel(ComputeKind.TENSOR_MATMUL, TINY_PRODUCT_NS, Tag.BACKWARD)
    assert repeated([*layers, back, JOIN]) == 0
    assert repeated([*layers, JOIN, back]) == 11 * 3


def test_what_a_later_step_joins_belongs_to_no_loop_of_this_one() -> None:
    layers = [TINY] * 12
    assert int(looped(line([layers, [JOIN]]), np.zeros(15, dtype=np.bool_)).sum()) == 0
    assert int(looped(line([[*layers, JOIN], []]), np.zeros(15, dtype=np.bool_)).sum()) == 11


def test_communication_amid_a_loop_is_not_part_of_it() -> None:
    exchange = kernel(ComputeKind.COMMUNICATION, MS)
    rounds = [TINY, GELU, TINY]
    assert repeated([*rounds * 3, exchange, *rounds * 3, JOIN]) == 5 * 3


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("void at::native::vectorized_elementwise_kernel<4, at::native::tanh_kernel_cuda>", "POINTWISE"),
        ("void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda>", "POINTWISE"),
        ("void at::native::vectorized_layer_norm_kernel<float, float>", "ELEMENTWISE"),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>", "ELEMENTWISE"),
        ("triton_poi_fused_add_mul_tanh_0", "ELEMENTWISE"),
    ],
)
def test_elementwise_kernels_are_told_from_fused_ones(name: str, kind: str) -> None:
    assert compute_kind(name) is ComputeKind[kind]
