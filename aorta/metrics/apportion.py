"""Integers split in proportion, nothing lost."""

from __future__ import annotations

from collections.abc import Sequence


def apportion(total: int, weights: Sequence[int]) -> list[int]:
    """`total` in shares proportional to `weights`, which sum to `total` exactly (largest remainders).

    Raises:
        ValueError: a weight is negative, or all are zero while the total is not.
    """
    whole = sum(weights)
    if min(weights, default=0) < 0 or total < 0:
        raise ValueError("shares of a negative quantity are not defined")
    if whole == 0:
        if total:
            raise ValueError("nothing to split the total by")
        return [0] * len(weights)
    shares = [total * weight // whole for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda i: -(total * weights[i] % whole))
    for index in by_remainder[: total - sum(shares)]:
        shares[index] += 1
    return shares
