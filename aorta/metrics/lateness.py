"""Finds which ranks come late to collectives, how often, since when; and whether they are whole nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from aorta.artefacts.replayed import Lateness, LatenessTable, LateNode
from aorta.metrics.collectives import MatchedCollectives

Floats = NDArray[np.float64]
Pattern = Literal["persistent", "intermittent", "one_off"]

LATE_SHARE = 0.1
"""A rank is late if it arrives more than this share of the median step after the median rank."""
PERSISTENT = 0.8
"""Lateness is persistent if the rank is late in at least this share of the steps since the first late one."""
PERSISTENT_OF_ALL = 0.25
"""Lateness is persistent only if it covers at least this share of all steps."""
ONE_OFF = 0.05
"""Lateness is one-off if its only stretch is no longer than this share of the steps."""
_MIN_PERSISTENT = 5
"""Least number of steps at the end of a run that show a persistent delay."""
_NS_PER_MS = 1e6


def lateness(
    collectives: MatchedCollectives, steady: Sequence[int], step_ms: float, nodes: Mapping[int, str]
) -> LatenessTable | None:
    """The ranks that were late in any of the steps `steady`, the largest sum of lateness first.

    Args:
        collectives: of all ranks.
        steady: the steps that count.
        step_ms: the median step.
        nodes: each rank's node; a rank without one is on a node of its own.

    A rank's lateness in one step is its largest lateness over the step's collectives, compared with the
    median member. With an even number, the lower median is used, so of two ranks the second is late. None
    for a single rank.
    Steps in which ranks do not meet are left out: some programs average weights only in every tenth step.
    """
    ranks = sorted(collectives.timelines)
    met = {item.key[0] for item in collectives.matched}
    steady = [number for number in steady if number in met]
    if len(ranks) < 2 or not steady:
        return None
    late_ms = late_by(collectives, steady)
    threshold = LATE_SHARE * step_ms
    late = late_ms > threshold
    stretches = collectives.stretches()
    numbers = np.asarray(steady, dtype=np.int64)
    stretch = np.array([stretches.get(number, -1) for number in steady], dtype=np.int64)
    found = [
        _row(rank, nodes.get(rank), late[place], late_ms[place], (numbers, stretch))
        for place, rank in enumerate(ranks)
        if late[place].any()
    ]
    found.sort(key=lambda item: (-item.late_ms * item.late_steps, item.rank))
    least = max(threshold, found[0].late_ms / 2) if found else threshold
    times = {rank: _times(late_ms[place] > least, stretch) for place, rank in enumerate(ranks)}
    found = [msgspec.structs.replace(item, late_times=times[item.rank]) for item in found]
    found = _at_most_half(found, len(ranks))
    slow = [item.rank for item in found if item.pattern != "one_off"]
    persistent = {item.rank for item in found if item.pattern == "persistent"}
    late_nodes = _nodes(ranks, nodes, persistent, late_ms)
    return LatenessTable(
        steps=len(steady),
        threshold_ms=threshold,
        ranks=found,
        nodes=late_nodes,
        scope=_scope(ranks, nodes, slow, late_nodes),
    )


def late_by(collectives: MatchedCollectives, steady: Sequence[int]) -> Floats:
    """Returns how late each rank came in each step, ms, (ranks, steps); 0 in a step without collectives."""
    ranks = sorted(collectives.timelines)
    index = {rank: place for place, rank in enumerate(ranks)}
    column = {number: place for place, number in enumerate(steady)}
    late = np.zeros((len(ranks), len(steady)))
    left: dict[str, tuple[tuple[int, ...], NDArray[np.int64], NDArray[np.int64]]] = {}
    for item in collectives.matched:
        step, group, _ = item.key
        known = left.get(group)
        if known is None or known[0] != item.ranks:
            rows = np.array([index[rank] for rank in item.ranks], dtype=np.int64)
            begin = item.entry
            left[group] = (item.ranks, rows, item.end)
        else:
            rows = known[1]
            begin = np.maximum(item.entry, known[2])
            left[group] = (item.ranks, rows, np.maximum(known[2], item.end))
        if step in column:
            middle = np.partition(begin, (len(begin) - 1) // 2)[(len(begin) - 1) // 2]
            place = column[step]
            late[rows, place] = np.maximum(late[rows, place], (begin - middle) / _NS_PER_MS)
    return late


def pattern(late: NDArray[np.bool_], stretch: NDArray[np.int64]) -> tuple[Pattern, int]:
    """Returns how often a rank is late that is late at least once, and the index of the first step of that.

    Args:
        late: of each step.
        stretch: the unbroken stretch of steps that each one lies in, as counted by
            `MatchedCollectives.stretches`.

    Persistent lateness begins where the fewest steps contradict it: late steps before, punctual steps after.
    The steps between two stretches are unknown, so lateness in both is not one-off.
    """
    count = len(late)
    before = np.concatenate(([0], np.cumsum(late)))
    punctual = np.concatenate(([0], np.cumsum(~late)))
    since = int(np.argmin(before[:-1] + punctual[-1] - punctual[:-1]))
    after = late[since:]
    stays = after.mean() >= PERSISTENT and len(after) >= min(_MIN_PERSISTENT, count)
    if stays and after.sum() >= PERSISTENT_OF_ALL * count:
        return "persistent", since
    where = np.flatnonzero(late)
    once = stretch[where[0]] == stretch[where[-1]]
    if once and where[-1] - where[0] + 1 <= max(ONE_OFF * count, 1):
        return "one_off", int(where[0])
    return "intermittent", int(where[0])


def _row(
    rank: int,
    host: str | None,
    late: NDArray[np.bool_],
    late_ms: Floats,
    steps: tuple[NDArray[np.int64], NDArray[np.int64]],
) -> Lateness:
    """Lateness of one rank; `steps` are the numbers of the steps and their stretches."""
    numbers, stretch = steps
    name, since = pattern(late, stretch)
    return Lateness(
        rank=rank,
        host=host,
        pattern=name,
        late_steps=int(late.sum()),
        share_of_steps=float(late.mean()),
        since_step=int(numbers[since]),
        late_ms=float(late_ms[late].mean()),
    )


def _times(late: NDArray[np.bool_], stretch: NDArray[np.int64]) -> int:
    """Returns the number of unbroken runs of late steps."""
    begins = late & np.concatenate(([True], ~late[:-1] | (stretch[1:] != stretch[:-1])))
    return int(begins.sum())


def _at_most_half(found: Sequence[Lateness], ranks: int) -> list[Lateness]:
    """Returns `found` with at most half of all ranks persistently late: late means later than the others."""
    kept: list[Lateness] = []
    persistent = 0
    for item in found:
        persistent += item.pattern == "persistent"
        too_many = item.pattern == "persistent" and persistent > ranks // 2
        kept.append(msgspec.structs.replace(item, pattern="intermittent") if too_many else item)
    return kept


def _members(ranks: Sequence[int], nodes: Mapping[int, str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for rank in ranks:
        found[nodes.get(rank, f"rank {rank}")].append(rank)
    return found


def _nodes(
    ranks: Sequence[int], nodes: Mapping[int, str], persistent: set[int], late_ms: Floats
) -> list[LateNode]:
    """The nodes of two or more ranks all of which are late persistently."""
    index = {rank: place for place, rank in enumerate(ranks)}
    found = [
        LateNode(host=host, ranks=mine, late_ms=float(late_ms[[index[rank] for rank in mine]].mean()))
        for host, mine in _members(ranks, nodes).items()
        if len(mine) > 1 and persistent.issuperset(mine)
    ]
    return sorted(found, key=lambda item: (-item.late_ms, item.host))


def _scope(
    ranks: Sequence[int], nodes: Mapping[int, str], late: Sequence[int], late_nodes: Sequence[LateNode]
) -> Literal["none", "rank", "node", "not_determined"]:
    if not late:
        return "none"
    members = _members(ranks, nodes)
    if late_nodes:
        return "node" if set(late) == {rank for item in late_nodes for rank in item.ranks} else "rank"
    alone = len(members) > 1 and all(len(mine) == 1 for mine in members.values())
    return "not_determined" if alone else "rank"
