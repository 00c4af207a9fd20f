"""Finds chains of elementwise kernels that one kernel could do, and loops of products that one could do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from aorta.artefacts.events import Column
from aorta.artefacts.hostline import PRODUCTS, ComputeKind, Item, LineTable, Tag
from aorta.intervals import EMPTY, Intervals, lengths_in

Mask = NDArray[np.bool_]
MEMORY_BOUND_NS = 4_000
"""An elementwise kernel of at least this length is limited by memory bandwidth, a shorter one by its
start-up.
"""
SHORTEST_CHAIN = 6
"""Fewest elementwise kernels in a row that form a chain."""
LONGEST_CHAIN = 40
"""Most elementwise kernels in a row that form a chain. More are a loop over many tensors, such as an average
of all parameters.
"""
TINY_PRODUCT_NS = 15_000
"""A matrix product of at most this length does not fill a GPU."""
LEAST_PRODUCTS = 12
"""Fewest tiny matrix products in a row that may be a loop."""
_ROUNDS, _PIECED_ROUNDS = 4, 8
"""Rounds of a loop whose results are joined behind it, and of one that takes a piece each time."""
_IN_A_ROUND, _IN_A_PIECED_ROUND = 6, 3
_FIRST_ROUNDS = 3
"""Rounds of a backward pass that may differ: the first ones add up no gradients yet."""
_NO_COMPUTE = (
    ComputeKind.NONE,
    ComputeKind.COMMUNICATION,
    ComputeKind.COPY,
    ComputeKind.PAGEABLE_COPY,
    ComputeKind.READ_COPY,
)
NOT_FUSED = int(Tag.OPTIMIZER | Tag.ANOMALY | Tag.READ_BACK)
"""Tags of kernels that no compiler fuses with those of the model."""


def with_small(
    table: LineTable, windows: Intervals, tags: Mapping[Tag, Intervals]
) -> tuple[LineTable, dict[Tag, Intervals]]:
    """Returns the table with the tags of chains and loops, and when the host launched them.

    The backward pass is left out of these times: its thread has no line of the program.

    Args:
        table: of a rank.
        windows: the span of the work before each item.
        tags: spans of the host's work by tag.
    """
    taken = lengths_in(tags.get(Tag.PIECE, EMPTY), windows) > 0
    found = {Tag.CHAIN: chained(table), Tag.LOOP: looped(table, taken)}
    own = table.tags.copy()
    for tag, rows in found.items():
        own[rows] |= int(tag)
    forward = (own & int(Tag.BACKWARD)) == 0
    spans = {tag: windows[rows & forward] for tag, rows in found.items() if (rows & forward).any()}
    return replace(table, tags=own), spans


def chained(table: LineTable) -> Mask:
    """Returns a mask of the elementwise kernels that are links of a chain.

    Normalisations and reductions neither count nor end a chain; any other kernel ends it.
    """
    compute = (table.item == Item.LAUNCH) & ~np.isin(table.kind, _NO_COMPUTE)
    other = (table.tags & NOT_FUSED) != 0
    fused = (ComputeKind.POINTWISE, ComputeKind.ELEMENTWISE)
    ends = (compute & (~np.isin(table.kind, fused) | other)) | (table.item == Item.STEP)
    links = compute & (table.kind == ComputeKind.POINTWISE) & ~other & (table.gpu_ns >= MEMORY_BOUND_NS)
    chain = np.cumsum(ends)
    count = np.bincount(chain[links], minlength=int(chain[-1]) + 1 if len(chain) else 1)[chain]
    return np.asarray(links & (count >= SHORTEST_CHAIN) & (count <= LONGEST_CHAIN), dtype=np.bool_)


def looped(table: LineTable, pieces: Mask) -> Mask:
    """Returns a mask of what loops of tiny products launch behind their first round.

    The rounds of a loop launch the same kinds of work. A model's layers do so, too. A loop therefore either
    joins its results, or takes a piece of a tensor in each round. In the second case, rounds are short, and
    there are more of them.

    Args:
        table: of a rank.
        pieces: items that the host prepares by taking a piece of a tensor.
    """
    found = np.zeros(len(table), dtype=np.bool_)
    products = (table.item == Item.LAUNCH) & np.isin(table.kind, PRODUCTS)
    products &= (table.tags & int(Tag.OPTIMIZER)) == 0
    tiny = products & (table.gpu_ns <= TINY_PRODUCT_NS)
    if tiny.sum() < LEAST_PRODUCTS:
        return found
    backward = (table.tags & int(Tag.BACKWARD)) != 0
    marks = _signatures(table, products)
    sums = np.cumsum((table.tags & int(Tag.JOIN)) != 0), np.cumsum(pieces.astype(np.int64))
    for step in np.unique(table.step[tiny]).tolist():
        rows = np.flatnonzero(products & (table.step == step))
        ends = np.append(rows, np.flatnonzero(table.step == step)[-1])
        loops = list(_loops(rows[~backward[rows]], ends, marks, tiny, sums))
        rounds = [repeats for _, _, repeats in loops]
        for run in _runs(rows[backward[rows]], marks, tiny, 2 * _IN_A_ROUND):
            if any(abs(run[2] - repeats) <= _FIRST_ROUNDS for repeats in rounds):
                loops.append(run)
        for first, after, _ in loops:
            found[first:after] = True
    # A backward pass starts to exchange gradients meanwhile; that remains.
    found &= (table.item == Item.LAUNCH) & (table.kind != ComputeKind.COMMUNICATION)
    return found


Loop = tuple[int, int, int]
"""The row behind the first round, the row behind the last one, and the number of rounds."""


def _loops(
    rows: Column, ends: Column, marks: Column, tiny: Mask, sums: tuple[Column, Column]
) -> Iterator[Loop]:
    """Yields the loops among the products `rows`.

    Results are joined before the next of `ends`: all products of the step, and its end. The gradients' norms,
    which are joined behind the backward pass, belong to no loop. `sums` are the numbers of joins and of
    pieces up to each row.
    """
    joins, pieced = sums
    for first, after, repeats in _runs(rows, marks, tiny, _IN_A_ROUND):
        place = int(np.searchsorted(rows, after))
        behind = ends[min(int(np.searchsorted(ends, after)), len(ends) - 1)]
        joined = joins[behind] > joins[after - 1]
        each = (place - int(np.searchsorted(rows, first))) / (repeats - 1)
        taken = pieced[after - 1] - pieced[first - 1] >= repeats - 1
        short = repeats >= _PIECED_ROUNDS and each <= _IN_A_PIECED_ROUND
        if joined or (taken and short):
            yield first, after, repeats


def _runs(rows: Column, marks: Column, tiny: Mask, most: int) -> Iterator[Loop]:
    """Runs of tiny products that repeat after at most so many products; the shortest repetition counts."""
    free = tiny[rows].copy()
    for period in range(1, most + 1):
        same = free[:-period] & free[period:] & (marks[rows[:-period]] == marks[rows[period:]])
        for begin, end in _stretches(same):
            last = end + period
            repeats = (last - begin) // period
            if repeats < _ROUNDS or last - begin < LEAST_PRODUCTS:
                continue
            free[begin:last] = False
            yield int(rows[begin + period - 1]) + 1, int(rows[last - 1]) + 1, repeats


def _stretches(same: Mask) -> Sequence[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate(([False], same, [False])).astype(np.int8)))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def _signatures(table: LineTable, products: Mask) -> Column:
    """Returns a number for each product: of the kinds that were launched since the product before it."""
    found = np.zeros(len(table), dtype=np.int64)
    codes: dict[tuple[int, ...], int] = {}
    since: list[int] = []
    launches = np.flatnonzero((table.item == Item.LAUNCH) & ~np.isin(table.kind, _NO_COMPUTE))
    for row, kind, product in zip(
        launches.tolist(), table.kind[launches].tolist(), products[launches].tolist(), strict=True
    ):
        if product:
            found[row] = codes.setdefault(tuple(since), len(codes))
            since.clear()
        else:
            since.append(kind)
    return found
