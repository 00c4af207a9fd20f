"""Averages of few numbers, as `statistics` computes them, without what it imports.

`statistics` imports fractions and random numbers for its other functions. That takes a hundredth of an
analysis of traces.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TypeVar

Number = TypeVar("Number", int, float)


def fmean(values: Iterable[float]) -> float:
    """Returns the mean of the values, without an error of summation.

    Raises:
        ValueError: there are none.
    """
    known = _some(values)
    return math.fsum(known) / len(known)


def median(values: Iterable[float]) -> float:
    """Returns the middle value, or the mean of the two middle ones.

    Raises:
        ValueError: there are none.
    """
    known = sorted(_some(values))
    middle = len(known) // 2
    return known[middle] if len(known) % 2 else (known[middle - 1] + known[middle]) / 2


def median_low(values: Iterable[Number]) -> Number:
    """Returns the middle value, or the lower one of the two middle ones.

    Raises:
        ValueError: there are none.
    """
    known = sorted(_some(values))
    return known[(len(known) - 1) // 2]


def _some(values: Iterable[Number]) -> list[Number]:
    known = list(values)
    if not known:
        raise ValueError("an average needs at least one value")
    return known
