"""Rows of many ranks by rank, and places of rows among their like."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def rows_of(place: NDArray[np.int64], ranks: int) -> list[NDArray[np.int64]]:
    """The rows of each of `ranks` places (0 to ranks - 1), ascending; empty for a place without rows."""
    order = np.argsort(place, kind="stable")
    edges = np.searchsorted(place[order], np.arange(1, ranks))
    return np.split(order, edges)


def in_order(*keys: NDArray[np.int64]) -> NDArray[np.intp] | slice:
    """The rows by the first key, then the second and so on, stable; what is in order already stays."""
    wrong = np.zeros(max(len(keys[0]) - 1, 0), dtype=np.bool_)
    equal = np.ones_like(wrong)
    for key in keys:
        wrong |= equal & (key[1:] < key[:-1])
        equal &= key[1:] == key[:-1]
    return np.lexsort(keys[::-1]) if wrong.any() else slice(None)


def order_within(step: NDArray[np.int64], group: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns how many earlier rows have the same step and group."""
    order = np.lexsort((np.arange(len(step)), group, step))
    first = np.ones(len(order), dtype=np.bool_)
    first[1:] = (step[order][1:] != step[order][:-1]) | (group[order][1:] != group[order][:-1])
    place = np.arange(len(order), dtype=np.int64)
    found = np.empty_like(place)
    found[order] = place - np.maximum.accumulate(np.where(first, place, 0))
    return found
