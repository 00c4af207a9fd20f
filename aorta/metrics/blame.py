"""Finds who made whom wait: each exposed wait charged to what made its last-arriving rank late.

A rank's time in a collective is *wait* until the last member begins it, then *transfer*. A rank begins a
collective when it has come to it and has left the group's previous one.

The work of the last rank while the others wait is not what made it late: a rank with a slow loader is still
computing then. The work of both ranks since they were last together is therefore compared by kind: loader,
compute, host. They were last together at the end of the group's last collective in an earlier step,
otherwise at the first step's start. The same holds if steps between them were not timed part by part,
because the work in those is not known. The exposed wait is charged in proportion to what the late rank did
*more* of. The late rank may itself have waited in a collective of a group that the waiting rank is not in.
The charges of that wait are then compared in the same way, which follows the chain to the rank behind it.
Shares are integers and sum to the exposed waits exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from aorta.intervals import subtract
from aorta.metrics.chains import ChainMembers, Chains
from aorta.metrics.charges import OWN, Charge, Charges, split
from aorta.metrics.collectives import Matched, MatchedCollectives
from aorta.metrics.cover import Cover
from aorta.metrics.rows import rows_of
from aorta.metrics.stack import Stack, batches
from aorta.units import plural


class BlameTable(Struct, frozen=True):
    """Sums over the steady steps, in ns."""

    steps: int
    wait_ns: Mapping[int, int]
    """Each rank's time in collectives before their last member began, hidden and exposed."""
    exposed_wait_ns: Mapping[int, int]
    """The part of it under which nothing was computed."""
    charges: Mapping[int, Mapping[Charge, int]]
    """Waiting rank to charges; they sum to its `exposed_wait_ns`."""
    unmatched: int


class _Rows(Struct, frozen=True):
    """One row per member of a collective, in order of the collectives; all int64 of shape (rows,)."""

    rank: NDArray[np.int64]
    place: NDArray[np.int64]
    """Place of the rank among all ranks in order."""
    step: NDArray[np.int64]
    sync: NDArray[np.int64]
    """Time at which the rank left the group's last collective of an earlier step. Before the first one of a
    stretch, it is the time at which the first member started the step."""
    entry: NDArray[np.int64]
    begin: NDArray[np.int64]
    start: NDArray[np.int64]
    """`begin`, and no earlier collective of any group was running: these windows of a rank are disjoint."""
    end: NDArray[np.int64]
    wait_end: NDArray[np.int64]
    """Time when the last member began, or the end if that is earlier."""


def charged(collectives: MatchedCollectives | str, steady: Sequence[int], alone: str) -> BlameTable | str:
    """Returns waits charged to ranks, or why they cannot be; `alone`: the reason where there is one rank."""
    if isinstance(collectives, str):
        return collectives
    return blame(collectives, steady) if len(collectives.timelines) > 1 else alone


def charge_notes(waits: BlameTable | str, expected: int | None, one: str, many: str = "") -> list[str]:
    """Returns which waits are not charged to ranks, and why; `one` and `many` name the calls."""
    if isinstance(waits, str):
        return [f"waits are not charged to ranks: {waits}"] if expected != 1 else []
    lost = plural(waits.unmatched, one, many or f"{one}s")
    return [f"{lost} without a matching call on another rank: not charged"] if waits.unmatched else []


def blame(collectives: MatchedCollectives, steady: Sequence[int]) -> BlameTable:
    """Charge every exposed wait of the steps `steady` (global steps).

    If all ranks are in the same groups, no rank can wait in a group that another rank is not in. All members
    of a collective are then charged at once.
    """
    rows = _rows(collectives)
    work, wait, exposed_wait, exposed_transfer = _measure(collectives, rows)
    ranks = sorted(collectives.timelines)
    groups = _groups(collectives.matched, ranks)
    counted = np.isin(rows.step, np.asarray(steady, dtype=np.int64))
    chains = (
        Chains(groups, {rank: at for at, rank in enumerate(ranks)}) if len(set(groups.values())) > 1 else None
    )
    found, first = Charges(len(ranks)), 0
    for item in collectives.matched:
        part = slice(first, first + len(item.ranks))
        first = part.stop
        late = part.start + int(np.argmax(rows.begin[part]))
        weights = np.maximum(work[late] - work[part], 0)
        # Leaving the previous collective later than the other is part of being late, too.
        released = np.maximum(rows.sync[late] - rows.sync[part], 0)
        lost = exposed_wait[part].copy()
        lost[late - part.start] = 0
        counts = bool(counted[part.start])
        if chains is not None:
            members = ChainMembers(rows.rank[part], weights, released, lost, exposed_transfer[part])
            chains.add(item.key[:2], int(rows.rank[late]), members, found if counts else None)
        elif counts and lost.any():
            shares = split(lost, np.column_stack((weights, released)))
            found.add(rows.place[part], int(rows.place[late]), shares)
    return BlameTable(
        steps=len(steady),
        wait_ns=_sums(ranks, rows.place, np.where(counted, wait, 0)),
        exposed_wait_ns=_sums(ranks, rows.place, np.where(counted, exposed_wait, 0)),
        charges=found.by_rank(ranks),
        unmatched=collectives.unmatched,
    )


def within_idle(waits: BlameTable, idle_ns: Mapping[int, int]) -> BlameTable:
    """Limits the charge to a rank's host to the time in which its GPU computed nothing.

    A host is not what the others wait for while its GPU computes: the rest is charged to the rank's compute.

    Args:
        waits: charges of waits.
        idle_ns: each rank's time without compute over the steps; a rank that is not in it is left as it is.
    """
    made = {}
    for waiting, charges in waits.charges.items():
        kept = dict(charges)
        for rank, idle in idle_ns.items():
            more = kept.get((rank, "host"), 0) - max(idle, 0)
            if more > 0:
                kept[rank, "host"] -= more
                kept[rank, "compute"] = kept.get((rank, "compute"), 0) + more
        made[waiting] = kept
    return replace(waits, charges=made)


def _sums(ranks: Sequence[int], place: NDArray[np.int64], values: NDArray[np.int64]) -> dict[int, int]:
    sums = np.zeros(len(ranks), dtype=np.int64)
    np.add.at(sums, place, values)
    return dict(zip(ranks, sums.tolist(), strict=True))


def _groups(matched: Sequence[Matched], ranks: Sequence[int]) -> dict[int, frozenset[str]]:
    members = {(item.key[1], item.ranks) for item in matched}
    found: dict[int, set[str]] = {rank: set() for rank in ranks}
    for group, those in members:
        for rank in those:
            found[rank].add(group)
    return {rank: frozenset(groups) for rank, groups in found.items()}


def _rows(collectives: MatchedCollectives) -> _Rows:
    """Returns where each member of each collective stood, walking through the collectives in order."""
    places = {rank: at for at, rank in enumerate(sorted(collectives.timelines))}
    busy = np.full(len(places), np.iinfo(np.int64).min)
    known: dict[tuple[int, ...], tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
    stretch = collectives.stretches()
    states: dict[str, tuple[int, NDArray[np.int64], NDArray[np.int64]]] = {}
    count, first_row = sum(len(item.ranks) for item in collectives.matched), 0
    columns = {name: np.empty(count, dtype=np.int64) for name in _Rows.__struct_fields__}
    for item in collectives.matched:
        step, group, _ = item.key
        rows = slice(first_row, first_row + len(item.ranks))
        first_row = rows.stop
        if item.ranks not in known:
            rank = np.array(item.ranks, dtype=np.int64)
            known[item.ranks] = rank, np.array([places[one] for one in item.ranks], dtype=np.int64)
        rank, place = known[item.ranks]
        if group in states and stretch[states[group][0]] == stretch[step]:
            before, sync, left = states[group]
            sync = left if before != step else sync
        else:
            first = min(collectives.timelines[rank].starts[step] for rank in item.ranks)
            sync = left = np.full(len(item.ranks), first, dtype=np.int64)
        begin = np.maximum(item.entry, left)
        start = np.minimum(np.maximum(item.entry, busy[place]), item.end)
        states[group] = (step, sync, np.maximum(left, item.end))
        busy[place] = np.maximum(busy[place], item.end)
        columns["place"][rows] = place
        columns["step"][rows] = step
        columns["rank"][rows] = rank
        columns["sync"][rows] = sync
        columns["entry"][rows] = np.maximum(item.entry, sync)
        columns["begin"][rows] = begin
        columns["start"][rows] = start
        columns["end"][rows] = item.end
        columns["wait_end"][rows] = np.maximum(np.minimum(begin.max(), item.end), start)
    return _Rows(**columns)


def _measure(
    collectives: MatchedCollectives, rows: _Rows
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Own work since the sync by kind (rows × OWN), wait, exposed wait and transfer of each row, in ns."""
    count = len(rows.rank)
    work = np.zeros((count, len(OWN)), dtype=np.int64)
    wait = rows.wait_end - rows.start
    exposed_wait, exposed_transfer = np.zeros_like(wait), np.zeros_like(wait)
    lines = [collectives.timelines[rank] for rank in sorted(collectives.timelines)]
    first, last = (
        np.array(side, dtype=np.int64) for side in zip(*(line.span for line in lines), strict=True)
    )
    by_rank = rows_of(rows.place, len(lines))
    for part in batches(first, last):
        mine = np.concatenate(by_rank[part])
        stack, rank = Stack.of(first[part], last[part]), rows.place[mine] - part.start
        busy, talk = (
            stack.line([getattr(line, name) for line in lines[part]]) for name in ("compute", "communication")
        )
        data = Cover(stack.line([line.data for line in lines[part]]))
        compute, exposed = Cover(busy), Cover(subtract(talk, busy))
        since, until, start, middle, end = (
            stack.on(rank, column[mine])
            for column in (rows.sync, rows.entry, rows.start, rows.wait_end, rows.end)
        )
        in_loader = data.before(until) - data.before(since)
        computing = compute.before(until) - compute.before(since)
        communicating = exposed.before(until) - exposed.before(since)
        host = rows.entry[mine] - rows.sync[mine] - in_loader - computing - communicating
        work[mine] = np.stack((in_loader, computing, host), axis=1)
        hidden = compute.before(middle) - compute.before(start)
        exposed_wait[mine] = wait[mine] - hidden
        after = compute.before(end) - compute.before(middle)
        exposed_transfer[mine] = rows.end[mine] - rows.wait_end[mine] - after
    return work, wait, exposed_wait, exposed_transfer
