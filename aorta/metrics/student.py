"""Student's t: how wide a band from a few repeats has to be."""

from __future__ import annotations

import math
from functools import cache

CONFIDENCE = 0.95


@cache
def t_quantile(degrees: int, confidence: float = CONFIDENCE) -> float:
    """The t with probability `confidence` of |T| ≤ t at `degrees` ≥ 1 degrees of freedom.

    By bisection on `t_within`, to a relative 1e-12.
    """
    if degrees < 1 or not 0 < confidence < 1:
        raise ValueError(f"no t for {degrees} degrees of freedom and confidence {confidence}")
    low, high = 0.0, 1.0
    while t_within(high, degrees) < confidence:
        high *= 2
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if t_within(middle, degrees) < confidence else (low, middle)
    return (low + high) / 2


def t_within(t: float, degrees: int) -> float:
    """The probability of |T| ≤ t, t ≥ 0: finite sums for whole degrees of freedom.

    Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
    """
    theta = math.atan(t / math.sqrt(degrees))
    cosine, odd = math.cos(theta), degrees % 2
    term, total = (cosine if odd else 1.0), 0.0
    # Each term is the one before times cos² and a ratio of neighbouring whole numbers.
    for number in range(2 + odd, degrees + 1, 2):
        total += term
        term *= cosine**2 * (number - 1) / number
    scaled = math.sin(theta) * total
    return 2 / math.pi * (theta + scaled) if odd else scaled
