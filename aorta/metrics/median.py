"""The median without `numpy.ma`, which `np.median` imports: a tenth of the time that a small trace takes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def median(values: NDArray[Any]) -> float:
    """The middle value, or the mean of both middle ones; `values` has at least one and no NaN."""
    low, high = (len(values) - 1) // 2, len(values) // 2
    ordered = np.partition(values, (low, high))
    return (float(ordered[low]) + float(ordered[high])) / 2
