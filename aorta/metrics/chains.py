"""Blame through groups: a rank that was late because a third one held it up in a group of their own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from aorta.metrics.apportion import apportion
from aorta.metrics.charges import OWN, Charge, Charges

Ints = NDArray[np.int64]


class _Ledger(Struct):
    """Time that a rank lost to others so far in one step, by group."""

    step: int
    charges: dict[str, dict[Charge, int]]
    transfer: dict[str, int]
    """Exposed transfer."""

    def charged_outside(self, groups: AbstractSet[str]) -> dict[Charge, int]:
        """Charges in groups other than these."""
        found: dict[Charge, int] = defaultdict(int)
        for group, charges in self.charges.items():
            if group not in groups:
                _add(found, charges)
        return found

    def transfer_outside(self, groups: AbstractSet[str]) -> int:
        """Exposed transfer in groups other than these."""
        return sum(lost for group, lost in self.transfer.items() if group not in groups)


class ChainMembers(Struct, frozen=True):
    """One collective's members, (n,) each."""

    rank: Ints
    weights: Ints
    """(n, OWN): what the last member had more of."""
    released: Ints
    """Delay with which it left the group's previous collective."""
    lost: Ints
    """Exposed wait."""
    transfer: Ints
    """Exposed transfer."""


class Chains:
    """The ranks' losses of the step that each of them is in, as the collectives come."""

    def __init__(self, groups: Mapping[int, frozenset[str]], places: Mapping[int, int]) -> None:
        self._groups, self._places = groups, places
        self._ledgers = {rank: _Ledger(-1, {}, {}) for rank in groups}

    def add(self, key: tuple[int, str], culprit: int, part: ChainMembers, sums: Charges | None) -> None:
        """Charge a collective's waits, to `sums` where its step counts.

        Args:
            key: step and group.
            culprit: the last member.
            part: of every member.
            sums: None: the step only tells what happened before the others.
        """
        step, group = key
        ranks: Sequence[int] = part.rank.tolist()
        for rank in ranks:
            if self._ledgers[rank].step != step:
                self._ledgers[rank] = _Ledger(step, {}, {})
        shares = {
            rank: self._shares(rank, culprit, row, part)
            for row, rank in enumerate(ranks)
            if part.lost[row] > 0
        }
        for row, rank in enumerate(ranks):
            ledger = self._ledgers[rank]
            ledger.transfer[group] = ledger.transfer.get(group, 0) + int(part.transfer[row])
            _add(ledger.charges.setdefault(group, {}), shares.get(rank, {}))
            if sums is not None:
                for (other, cause), lost in shares.get(rank, {}).items():
                    sums.add_one(self._places[rank], self._places[other], cause, lost)

    def _shares(self, rank: int, culprit: int, row: int, part: ChainMembers) -> dict[Charge, int]:
        """The wait of one member in proportion to what the culprit had more of, others' doing included.

        A culprit that did no more than the other was released later from the group's previous collective.
        """
        mine, its, lost = self._ledgers[rank], self._ledgers[culprit], int(part.lost[row])
        weights: dict[Charge, int] = {
            (culprit, kind): more for kind, more in zip(OWN, part.weights[row].tolist(), strict=True)
        }
        foreign = its.transfer_outside(self._groups[rank]) - mine.transfer_outside(self._groups[culprit])
        weights[culprit, "communication"] = max(foreign, 0) + int(part.released[row])
        _add(weights, its.charged_outside(self._groups[rank]))
        weights = {charge: weight for charge, weight in weights.items() if weight > 0}
        if not weights:
            return {(culprit, "communication"): lost}
        shares = apportion(lost, list(weights.values()))
        return {charge: share for charge, share in zip(weights, shares, strict=True) if share}


def _add(sums: dict[Charge, int], more: Mapping[Charge, int]) -> None:
    for charge, lost in more.items():
        sums[charge] = sums.get(charge, 0) + lost
