"""Waits split among causes and added up, over many ranks at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Cause = Literal["data_loading", "compute", "host", "communication"]
OWN: tuple[Cause, ...] = ("data_loading", "compute", "host")
CAUSES: tuple[Cause, ...] = (*OWN, "communication")
Charge = tuple[int, Cause]
"""The rank that caused a wait, and what it had more of."""
Ints = NDArray[np.int64]

MANY_RANKS = -1
"""Name in a charge for all ranks that each cost little, if there are very many."""
MOST_CULPRITS = 64
"""Maximum number of culprits that are reported separately, costliest first."""
_PENDING = 4_000_000
_BITS = 62


def split(lost: Ints, weights: Ints) -> Ints:
    """Each wait in proportion to its weights, by largest remainders; the shares sum to it exactly.

    Args:
        lost: (n,), >= 0, less than 2**48 (three days).
        weights: (n, causes), >= 0. Where all are 0 the last cause has the whole wait.

    Products that would not fit 64 bits are made of weights that are halved until they do.
    """
    weights = weights.copy()
    weights[weights.sum(axis=1) == 0, -1] = 1
    bits = np.ceil(np.log2(np.maximum(lost, 1) + 1.0)) + np.ceil(np.log2(weights.sum(axis=1) + 1.0))
    weights >>= np.maximum(bits - _BITS, 0).astype(np.int64)[:, None]
    whole = weights.sum(axis=1)[:, None]
    products = lost[:, None] * weights
    shares, remainders = products // whole, products % whole
    missing = lost - shares.sum(axis=1)
    order = np.argsort(-remainders, axis=1, kind="stable")
    rank = np.argsort(order, axis=1, kind="stable")
    return np.asarray(shares + (rank < missing[:, None]), dtype=np.int64)


class Charges:
    """Sums by waiting rank, culprit and cause; ranks are places, 0 to n - 1."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._keys: list[Ints] = []
        self._sums: list[Ints] = []
        self._pending = 0

    def add(self, waiting: Ints, culprit: int, shares: Ints) -> None:
        """Charge `shares`, (n, CAUSES), of the ranks `waiting` to one culprit."""
        row, cause = np.nonzero(shares)
        if len(row):
            self._put(self._key(waiting[row], culprit, cause), shares[row, cause])

    def add_one(self, waiting: int, culprit: int, cause: Cause, lost: int) -> None:
        """Charge one rank's wait."""
        key = self._key(np.array([waiting]), culprit, np.array([CAUSES.index(cause)]))
        self._put(key, np.array([lost], dtype=np.int64))

    def _key(self, waiting: Ints, culprit: int, cause: Ints) -> Ints:
        return np.asarray((waiting * self._ranks + culprit) * len(CAUSES) + cause, dtype=np.int64)

    def _put(self, keys: Ints, sums: Ints) -> None:
        self._keys.append(keys)
        self._sums.append(sums)
        self._pending += len(keys)
        if self._pending > _PENDING:
            self._merge()

    def _merge(self) -> None:
        if not self._keys:
            return
        keys, place = np.unique(np.concatenate(self._keys), return_inverse=True)
        sums = np.zeros(len(keys), dtype=np.int64)
        np.add.at(sums, place.reshape(-1), np.concatenate(self._sums))
        self._keys, self._sums, self._pending = [keys], [sums], 0

    def by_rank(self, ranks: Sequence[int]) -> dict[int, dict[Charge, int]]:
        """Charges of each of `ranks`; beyond 64 culprits the rest are one, `MANY_RANKS`."""
        self._merge()
        found: dict[int, dict[Charge, int]] = {rank: defaultdict(int) for rank in ranks}
        if not self._keys:
            return {rank: {} for rank in ranks}
        keys, sums = self._keys[0], self._sums[0]
        waiting, culprit = keys // len(CAUSES) // self._ranks, keys // len(CAUSES) % self._ranks
        totals = np.zeros(self._ranks, dtype=np.int64)
        np.add.at(totals, culprit, sums)
        kept = np.argsort(-totals, kind="stable")[:MOST_CULPRITS]
        names = np.full(self._ranks, MANY_RANKS, dtype=np.int64)
        names[kept] = np.asarray(ranks, dtype=np.int64)[kept]
        columns = (waiting.tolist(), names[culprit].tolist(), (keys % len(CAUSES)).tolist(), sums.tolist())
        for place, name, cause, lost in zip(*columns, strict=True):
            found[ranks[place]][name, CAUSES[cause]] += lost
        return {rank: dict(charges) for rank, charges in found.items()}
