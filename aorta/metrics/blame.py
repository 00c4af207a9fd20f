"""Who made whom wait: each exposed wait charged to what made its last-arriving rank late.

A rank's time in a collective is *wait* until the last member begins it, then *transfer*. A rank begins a
collective when it has come to it and has left the group's previous one.

What made the last rank late is not what it happened to do while the others waited: a rank with a slow loader
is still computing then. So the work of both since they were last together (the end of the group's last
collective in an earlier step, otherwise the step's first start) is compared by kind (loader, compute, host),
and the exposed wait is charged in proportion to what the late rank had *more* of. If the late rank was itself
held up in a collective of a group that the waiting rank is not in, the charges of that wait are compared in
the same way: the chain is followed to the rank behind it. Shares are integers and sum to the exposed waits
exactly.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from aorta.intervals import subtract
from aorta.metrics.apportion import apportion
from aorta.metrics.collectives import Collectives, Matched
from aorta.metrics.cover import Cover

Cause = Literal["data_loading", "compute", "host", "communication"]
OWN: tuple[Cause, ...] = ("data_loading", "compute", "host")
Charge = tuple[int, Cause]
"""The rank that caused a wait, and what it had more of."""


@dataclass(frozen=True, slots=True)
class BlameTable:
    """Sums over the steady steps, in ns."""

    steps: int
    wait_ns: Mapping[int, int]
    """Each rank's time in collectives before their last member began, hidden and exposed."""
    exposed_wait_ns: Mapping[int, int]
    """The part of it under which nothing was computed."""
    charges: Mapping[int, Mapping[Charge, int]]
    """Waiting rank to charges; they sum to its `exposed_wait_ns`."""
    unmatched: int


@dataclass(slots=True)
class _Ledger:
    """What a rank lost to others so far in one step, by group."""

    step: int
    charges: dict[str, dict[Charge, int]]
    transfer: dict[str, int]
    """Exposed transfer."""

    def charged_outside(self, groups: AbstractSet[str]) -> dict[Charge, int]:
        """Charges in groups other than these."""
        found: dict[Charge, int] = defaultdict(int)
        for group, charges in self.charges.items():
            if group not in groups:
                for charge, lost in charges.items():
                    found[charge] += lost
        return found

    def transfer_outside(self, groups: AbstractSet[str]) -> int:
        """Exposed transfer in groups other than these."""
        return sum(lost for group, lost in self.transfer.items() if group not in groups)


@dataclass(frozen=True, slots=True)
class _Rows:
    """One row a member of a collective, in order of the collectives; all int64 of shape (rows,)."""

    rank: NDArray[np.int64]
    sync: NDArray[np.int64]
    """When the rank left the group's last collective of an earlier step; before the first one, when the first
    member started the step."""
    entry: NDArray[np.int64]
    begin: NDArray[np.int64]
    start: NDArray[np.int64]
    """`begin`, and no earlier collective of any group was running: these windows of a rank are disjoint."""
    end: NDArray[np.int64]
    wait_end: NDArray[np.int64]
    """When the last member began, or the end if that is earlier."""


def blame(collectives: Collectives, steady: Sequence[int]) -> BlameTable:
    """Charge every exposed wait of the steps `steady` (global steps)."""
    rows = _rows(collectives)
    work, wait, exposed_wait, exposed_transfer = _measure(collectives, rows)
    counted = set(steady)
    ranks = sorted(collectives.timelines)
    groups = _groups(collectives.matched, ranks)
    ledgers = {rank: _Ledger(-1, {}, {}) for rank in ranks}
    waited, exposed = dict.fromkeys(ranks, 0), dict.fromkeys(ranks, 0)
    charges: dict[int, dict[Charge, int]] = {rank: defaultdict(int) for rank in ranks}
    first = 0
    for item in collectives.matched:
        step, group, _ = item.key
        members = range(first, first + len(item.ranks))
        first += len(item.ranks)
        for rank in item.ranks:
            if ledgers[rank].step != step:
                ledgers[rank] = _Ledger(step, {}, {})
        late = first - len(item.ranks) + int(np.argmax(rows.begin[members.start : members.stop]))
        shares = {}
        for row in members:
            if exposed_wait[row] > 0 and row != late:
                weights = _weights(rows, work, (row, late), ledgers, groups)
                shares[row] = _split(int(exposed_wait[row]), weights, int(rows.rank[late]))
        for row in members:
            rank = int(rows.rank[row])
            ledgers[rank].charges.setdefault(group, {})
            ledgers[rank].transfer[group] = ledgers[rank].transfer.get(group, 0) + int(exposed_transfer[row])
            _add(ledgers[rank].charges[group], shares.get(row, {}))
            if step in counted:
                waited[rank] += int(wait[row])
                exposed[rank] += int(exposed_wait[row])
                _add(charges[rank], shares.get(row, {}))
    return BlameTable(
        steps=len(steady),
        wait_ns=waited,
        exposed_wait_ns=exposed,
        charges={rank: dict(found) for rank, found in charges.items()},
        unmatched=collectives.unmatched,
    )


def _add(sums: dict[Charge, int], more: Mapping[Charge, int]) -> None:
    for charge, lost in more.items():
        sums[charge] = sums.get(charge, 0) + lost


def _weights(
    rows: _Rows,
    work: NDArray[np.int64],
    pair: tuple[int, int],
    ledgers: Mapping[int, _Ledger],
    groups: Mapping[int, frozenset[str]],
) -> dict[Charge, int]:
    """What row pair[1], the last one, had more of than row pair[0], in ns; only what is positive."""
    waiting, late = pair
    rank, culprit = int(rows.rank[waiting]), int(rows.rank[late])
    weights: dict[Charge, int] = {}
    for kind, more in zip(OWN, (work[late] - work[waiting]).tolist(), strict=True):
        weights[(culprit, kind)] = max(more, 0)
    foreign = ledgers[culprit].transfer_outside(groups[rank])
    foreign -= ledgers[rank].transfer_outside(groups[culprit])
    # Leaving the previous collective later than the other is part of being late, too.
    released = int(rows.sync[late] - rows.sync[waiting])
    weights[(culprit, "communication")] = max(foreign, 0) + max(released, 0)
    _add(weights, ledgers[culprit].charged_outside(groups[rank]))
    return {charge: weight for charge, weight in weights.items() if weight > 0}


def _split(lost: int, weights: Mapping[Charge, int], culprit: int) -> dict[Charge, int]:
    """The wait `lost` in proportion to `weights`.

    A late rank that did no more than the other was released later from the group's previous collective.
    """
    if not weights:
        return {(culprit, "communication"): lost}
    shares = apportion(lost, list(weights.values()))
    return {charge: share for charge, share in zip(weights, shares, strict=True) if share}


def _groups(matched: Sequence[Matched], ranks: Sequence[int]) -> dict[int, frozenset[str]]:
    found: dict[int, set[str]] = {rank: set() for rank in ranks}
    for item in matched:
        for rank in item.ranks:
            found[rank].add(item.key[1])
    return {rank: frozenset(groups) for rank, groups in found.items()}


def _rows(collectives: Collectives) -> _Rows:
    """Where each member of each collective stood, walking through the collectives in order."""
    last_of_rank = dict.fromkeys(collectives.timelines, np.iinfo(np.int64).min)
    states: dict[str, tuple[int, NDArray[np.int64], NDArray[np.int64]]] = {}
    columns: dict[str, list[NDArray[np.int64]]] = defaultdict(list)
    for item in collectives.matched:
        step, group, _ = item.key
        if group in states:
            known, sync, left = states[group]
            sync = left if known != step else sync
        else:
            first = min(collectives.timelines[rank].starts[step] for rank in item.ranks)
            sync = left = np.full(len(item.ranks), first, dtype=np.int64)
        begin = np.maximum(item.entry, left)
        busy_until = np.array([last_of_rank[rank] for rank in item.ranks], dtype=np.int64)
        states[group] = (step, sync, np.maximum(left, item.end))
        last_of_rank.update(zip(item.ranks, np.maximum(busy_until, item.end).tolist(), strict=True))
        start = np.minimum(np.maximum(item.entry, busy_until), item.end)
        columns["rank"].append(np.array(item.ranks, dtype=np.int64))
        columns["sync"].append(sync)
        columns["entry"].append(np.maximum(item.entry, sync))
        columns["begin"].append(begin)
        columns["start"].append(start)
        columns["end"].append(item.end)
        columns["wait_end"].append(np.maximum(np.minimum(begin.max(), item.end), start))
    return _Rows(**{name: np.concatenate(parts) for name, parts in columns.items()})


def _measure(
    collectives: Collectives, rows: _Rows
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Of each row, in ns: own work since the sync by kind (rows × OWN), wait, exposed wait and transfer."""
    count = len(rows.rank)
    work = np.zeros((count, len(OWN)), dtype=np.int64)
    wait = rows.wait_end - rows.start
    exposed_wait, exposed_transfer = np.zeros_like(wait), np.zeros_like(wait)
    for rank, timeline in collectives.timelines.items():
        mine = rows.rank == rank
        compute, data = Cover(timeline.compute), Cover(timeline.data)
        exposed = Cover(subtract(timeline.communication, timeline.compute))
        since, until = rows.sync[mine], rows.entry[mine]
        in_loader = data.before(until) - data.before(since)
        computing = compute.before(until) - compute.before(since)
        communicating = exposed.before(until) - exposed.before(since)
        host = until - since - in_loader - computing - communicating
        work[mine] = np.stack((in_loader, computing, host), axis=1)
        start, middle, end = rows.start[mine], rows.wait_end[mine], rows.end[mine]
        hidden = compute.before(middle) - compute.before(start)
        exposed_wait[mine] = middle - start - hidden
        exposed_transfer[mine] = end - middle - (compute.before(end) - compute.before(middle))
    return work, wait, exposed_wait, exposed_transfer
