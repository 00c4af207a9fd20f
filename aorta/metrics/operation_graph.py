"""The operations that each operation of a mesh waited for: a graph that can be replayed.

An operation waits for earlier operations on its own worker. Computation waits for the computation before it,
for the receive that brings its input, and for collectives that ended before it. A send waits for the
computation that produced its data. A receive or a collective waits for the last computation or collective
that had ended when it began. A send and its receive, and the members of a collective, transfer when the last
of them has begun.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from aorta.artefacts.operations import Ints, OperationRole, Operations, backwards
from aorta.metrics.stage_transfers import Transfers, transfers_of

Floats = NDArray[np.float64]

SEND, RECEIVE, COLLECTIVE = int(OperationRole.SEND), int(OperationRole.RECEIVE), int(OperationRole.COLLECTIVE)
MOVES = (SEND, RECEIVE)
SLACK_NS = 100_000
"""Assumed error of the workers' clocks. An operation that ended later by less than this may have come first.
"""


class Graph(Struct, frozen=True, eq=False):
    """Nodes in an order in which they can be replayed."""

    operations: Operations
    members: Sequence[Sequence[int]]
    """Rows of each node: one of a computation, several of a transfer."""
    before: Sequence[Sequence[int]]
    """Rows that each row waited for."""
    shared: NDArray[np.bool_]
    """True for each row that is part of a transfer, so its own time begins when the last member has begun."""
    own: Floats
    """Own time of each row, ns: its duration, or its transfer after the last member had begun."""
    unmatched: int
    """Sends and receives without another side."""
    idle: NDArray[np.bool_]
    """True for each send or receive at an end of the model, which exchanges nothing."""


def graph_of(operations: Operations) -> Graph | str:
    """Returns the graph, or in words why there is none."""
    rows = _by_worker(operations)
    before: list[list[int]] = [[] for _ in range(len(operations))]
    role = operations.role
    lane = lanes(operations)
    moved = transfers_of(operations, rows, lane) if operations.group is None else Transfers()
    busy = np.zeros(len(operations), dtype=np.int64)
    for mine in rows:
        _on_one_worker(operations, mine, role[mine], before, moved)
        busy[mine] = _busy_until(operations, mine, role[mine])
        if operations.batch is not None:
            _together(operations, mine, role[mine], before, busy)
    groups, unmatched = _groups(operations, rows, lane, moved)
    members: list[list[int]] = list(groups)
    grouped = {row for group in groups for row in group}
    members += [[row] for row in range(len(operations)) if row not in grouped]
    shared = np.zeros(len(operations), dtype=np.bool_)
    shared[list(grouped)] = True
    order = _ordered(members, before)
    if order is None:
        return "the operations wait for each other in a circle: their clocks or order are wrong"
    own = (operations.end - operations.start).astype(np.float64)
    idle = np.zeros(len(operations), dtype=np.bool_)
    idle[list(moved.idle)] = True
    own[idle] = 0.0
    for group in groups:
        own[group] = np.maximum(operations.end[group] - operations.start[group].max(), 0)
        if role[group[0]] in MOVES:
            own[group] = _transfer(operations, group, role, busy)
    return Graph(operations, [members[node] for node in order], before, shared, own, unmatched, idle)


def _transfer(operations: Operations, group: Sequence[int], role: Ints, busy: Ints) -> int:
    """Returns how long a send and its receive took once both had begun.

    A receiver that waited for nothing else says it. A side that is waited for late, because its worker was
    busy until then, was done by then. So the other side, or the rest of the wait, says how long it took at
    most.
    """
    begun = int(operations.start[group].max())
    for row in group:
        if role[row] == RECEIVE and busy[row] <= begun + SLACK_NS:
            return max(int(operations.end[row]) - begun, 0)
    left = operations.end[list(group)] - np.maximum(begun, busy[list(group)])
    return max(int(left.min()), 0)


def talking(graph: Graph) -> dict[frozenset[int], list[int]]:
    """Returns the rows of the collectives of each set of ranks."""
    found: dict[frozenset[int], list[int]] = defaultdict(list)
    role, rank = graph.operations.role, graph.operations.rank.tolist()
    for rows in graph.members:
        if len(rows) > 1 and role[rows[0]] == COLLECTIVE:
            found[frozenset(rank[row] for row in rows)] += rows
    return found


def _by_worker(operations: Operations) -> list[Ints]:
    """Rows of each worker and step, by start."""
    order = np.lexsort((operations.end, operations.start, operations.step, operations.rank))
    rank, step = operations.rank[order], operations.step[order]
    edges = np.flatnonzero((np.diff(rank) != 0) | (np.diff(step) != 0)) + 1
    return np.split(order, edges) if len(order) else []


def _on_one_worker(
    operations: Operations, mine: Ints, role: Ints, before: list[list[int]], moved: Transfers
) -> None:
    start, end, kind = operations.start[mine], operations.end[mine], operations.kind[mine]
    moves = np.isin(role, MOVES)
    work, there = np.flatnonzero(~moves), np.arange(len(mine))
    pairs = list(_sources(operations, mine, role, moved))
    for one in np.unique(kind[moves]):
        same = np.flatnonzero(kind == one)
        pairs += zip(same[1:].tolist(), same[:-1].tolist(), strict=True)
    # All work that had ended stands in one line: the last of it is enough.
    if len(work):
        ended = np.searchsorted(np.maximum.accumulate(end[work]), start + SLACK_NS, side="right") - 1
        place = np.minimum(ended, np.searchsorted(work, there, side="left") - 1)
        waits = (place >= 0) & (role != SEND)
        pairs += zip(there[waits].tolist(), work[place[waits]].tolist(), strict=True)
    computing = work[role[work] != COLLECTIVE]
    pairs += zip(computing[1:].tolist(), computing[:-1].tolist(), strict=True)
    rows = mine.tolist()
    for later, earlier in pairs:
        before[rows[later]].append(rows[earlier])


def _together(operations: Operations, mine: Ints, role: Ints, before: list[list[int]], busy: Ints) -> None:
    """Lets the computation after a batch wait for all of it that had ended by then. Of a batch, the ones that
    are waited for last were done at the latest when the wait for the others ended.
    """
    assert operations.batch is not None
    batches: dict[int, list[int]] = defaultdict(list)
    for row in mine[np.isin(role, MOVES)].tolist():
        if operations.batch[row] >= 0:
            batches[int(operations.batch[row])].append(row)
    work = mine[~np.isin(role, MOVES)]
    begins = operations.start[work]
    for rows in batches.values():
        ends = operations.end[rows]
        for row, end in zip(rows, ends.tolist(), strict=True):
            busy[row] = max(int(busy[row]), int(ends[ends < end].max(initial=0)))
        at = int(np.searchsorted(begins, int(operations.start[rows].max())))
        if at < len(work):
            done = [row for row in rows if operations.end[row] <= begins[at] + SLACK_NS]
            before[int(work[at])] += done


def _busy_until(operations: Operations, mine: Ints, role: Ints) -> Ints:
    """Returns when the worker's last work had ended that ended before each operation did."""
    ends = np.sort(operations.end[mine[~np.isin(role, MOVES)]])
    if not len(ends):
        return operations.start[mine]
    place = np.searchsorted(ends, operations.end[mine], side="right") - 1
    return np.where(place >= 0, ends[np.maximum(place, 0)], operations.start[mine])


def _sources(operations: Operations, mine: Ints, role: Ints, moved: Transfers) -> Iterator[tuple[int, int]]:
    """Pairs of places: a send and the computation before it, a computation and its receive."""
    place = {row: at for at, row in enumerate(mine.tolist())}
    for at, row in enumerate(mine.tolist()):
        if row in moved.work and row not in moved.idle:
            work = place[moved.work[row]]
            yield (at, work) if role[at] == SEND else (work, at)
    told = np.array([row in moved.work for row in mine.tolist()], dtype=np.bool_)
    back = np.array([backwards(name) for name in operations.kinds])[operations.kind[mine]]
    for gradients, direction in ((False, OperationRole.FORWARD), (True, OperationRole.BACKWARD)):
        compute = np.flatnonzero(role == direction)
        for transfer in (OperationRole.SEND, OperationRole.RECEIVE):
            moves = np.flatnonzero((role == transfer) & (back == gradients) & ~told)
            yield from _paired(operations, mine, compute, moves, transfer)


def _paired(
    operations: Operations, mine: Ints, compute: Ints, moves: Ints, transfer: OperationRole
) -> Iterator[tuple[int, int]]:
    start, end = operations.start[mine], operations.end[mine]
    if len(compute) == len(moves):
        pairs = zip(moves.tolist(), compute.tolist(), strict=True)
    elif transfer == OperationRole.SEND:
        place = np.searchsorted(end[compute], start[moves] + SLACK_NS, side="right") - 1
        pairs = zip(moves[place >= 0].tolist(), compute[place[place >= 0]].tolist(), strict=True)
    else:
        place = np.searchsorted(start[compute], end[moves] - SLACK_NS, side="left")
        there = place < len(compute)
        pairs = zip(moves[there].tolist(), compute[place[there]].tolist(), strict=True)
    for move, work in pairs:
        yield (move, work) if transfer == OperationRole.SEND else (work, move)


def _groups(
    operations: Operations, rows: list[Ints], lane_of: Ints, moved: Transfers
) -> tuple[list[list[int]], int]:
    """Rows that transfer together, two or more each; and how many sends and receives have no other side."""
    stages = max(operations.stages, 1)
    step, stage, replica, lane = (
        column.tolist() for column in (operations.step, operations.stage, operations.replica, lane_of)
    )
    kinds, roles = operations.kind.tolist(), [int(role) for role in operations.roles]
    back = [backwards(name) for name in operations.kinds]
    known = None if operations.group is None else operations.group.tolist()
    sides: dict[tuple[object, ...], list[int]] = defaultdict(list)
    together: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for mine in rows:
        count: dict[object, int] = defaultdict(int)
        for row in mine.tolist():
            kind = kinds[row]
            if known is not None and known[row] >= 0:
                key = step[row], known[row], roles[kind] == COLLECTIVE
                together[key, count[key, roles[kind]]].append(row)
                count[key, roles[kind]] += 1
            elif row in moved.work:
                continue
            elif roles[kind] in MOVES:
                # Both sides name the stage that sends.
                ahead = -1 if back[kind] else 1
                source = stage[row] if roles[kind] == SEND else (stage[row] - ahead) % stages
                way: tuple[object, ...] = (step[row], replica[row], lane[row], source, back[kind])
                sides[way, count[way, kind]].append(row)
                count[way, kind] += 1
            elif roles[kind] == COLLECTIVE:
                name = _who(operations.kinds[kind], step[row], (replica[row], stage[row], lane[row]))
                together[name, count[name]].append(row)
                count[name] += 1
    pairs = [group for group in sides.values() if len(group) == 2]
    collectives = [group for group in together.values() if len(group) > 1]
    alone = sum(len(group) for group in sides.values() if len(group) != 2)
    return moved.pairs + pairs + collectives, moved.alone + alone


def lanes(operations: Operations) -> Ints:
    """Tensor-parallel rank of each row: the place of its rank among those of its replica and stage."""
    found = np.zeros(len(operations), dtype=np.int64)
    place = operations.replica * max(operations.stages, 1) + operations.stage
    ranks, first = np.unique(operations.rank, return_index=True)
    seen: dict[int, int] = defaultdict(int)
    for rank, row in zip(ranks.tolist(), first.tolist(), strict=True):
        where = int(place[row])
        found[operations.rank == rank] = seen[where]
        seen[where] += 1
    return found


def _who(kind: str, step: int, place: tuple[int, int, int]) -> tuple[object, ...]:
    """Names the members of a collective, by what the name of its kind says."""
    text, (replica, stage, lane) = kind.lower(), place
    if "clip" in text or "norm" in text.replace("layernorm", ""):
        return step, kind
    if "embedding" in text:
        return step, kind, "replica", replica, lane
    if any(word in text for word in ("layernorm", "tp-", "tensor", "sequence")):
        return step, kind, "worker", replica, stage
    return step, kind, "stage", stage, lane


def _ordered(members: Sequence[Sequence[int]], before: Sequence[Sequence[int]]) -> list[int] | None:
    """Nodes after all that they wait for. None if there is a circle."""
    node_of = {row: node for node, rows in enumerate(members) for row in rows}
    waiting = [0] * len(members)
    followers: list[list[int]] = [[] for _ in members]
    for node, rows in enumerate(members):
        sources = {node_of[source] for row in rows for source in before[row]} - {node}
        waiting[node] = len(sources)
        for source in sources:
            followers[source].append(node)
    ready = [node for node, count in enumerate(waiting) if not count]
    for node in ready:
        for follower in followers[node]:
            waiting[follower] -= 1
            if not waiting[follower]:
                ready.append(follower)
    return ready if len(ready) == len(members) else None
