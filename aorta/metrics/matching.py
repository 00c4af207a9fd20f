"""Finds which calls of the ranks are one collective, and how far the ranks' clocks are apart.

Over columns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from aorta.metrics.calls import Calls
from aorta.metrics.clock_lines import ClockLine, clock_line

Ints = NDArray[np.int64]


class Joined(Struct, frozen=True, eq=False):
    """The calls of all ranks, in the order of step, group and number, and of ranks within. (rows,) each."""

    calls: Calls
    """Each key occurs once per rank; names are in order."""
    place: Ints
    """Place of the rank among the ranks."""
    came: Ints
    """Place where the row was, rank by rank."""
    first: Ints
    """The first row of each key, and the end of the last."""
    whole: NDArray[np.bool_]
    """True for each key that every member of its group has, with equally many calls and one operation."""
    unmatched: int
    """Calls of the other keys, but for groups of one rank."""


def join(calls: Mapping[int, Calls]) -> Joined:
    """The calls of the ranks together; the groups' members are those that ever call one of them."""
    names = sorted({name for item in calls.values() for name in item.names})
    codes = {name: code for code, name in enumerate(names)}
    recoded = [np.array([codes[name] for name in item.names], dtype=np.int64) for item in calls.values()]
    items = list(calls.values())
    step = np.concatenate([item.step for item in items])
    group = np.concatenate([code[item.group] for code, item in zip(recoded, items, strict=True)])
    number = np.concatenate([item.number for item in items])
    order = np.lexsort((number, group, step))
    step, group, number = step[order], group[order], number[order]
    place = np.repeat(np.arange(len(items)), [len(item) for item in items])[order]
    op = np.concatenate([code[item.op] for code, item in zip(recoded, items, strict=True)])[order]
    entry, end, size = (
        np.concatenate([getattr(item, name) for item in items])[order] for name in ("entry", "end", "bytes")
    )
    begins = (np.diff(step) != 0) | (np.diff(group) != 0) | (np.diff(number) != 0)
    first = (
        np.concatenate(([0], np.flatnonzero(begins) + 1, [len(order)])) if len(order) else np.zeros(1, int)
    )
    whole, unmatched = _whole(step, group, place, op, first)
    return Joined(
        calls=Calls(tuple(names), step, group, number, op, entry, end, size),
        place=place,
        came=order,
        first=first,
        whole=whole,
        unmatched=unmatched,
    )


def _whole(step: Ints, group: Ints, place: Ints, op: Ints, first: Ints) -> tuple[NDArray[np.bool_], int]:
    """True for each key that all members share; number of calls of other keys, but for groups of one rank."""
    if not len(step):
        return np.empty(0, dtype=np.bool_), 0
    starts, held = first[:-1], np.diff(first)
    size = _members(group, place)[group[starts]]
    # Rows of one step and group lie together; within, each member must have as many.
    begins = np.concatenate(([True], (np.diff(step) != 0) | (np.diff(group) != 0)))
    part = np.cumsum(begins) - 1
    order = np.lexsort((place, part))
    new = (np.diff(part[order]) != 0) | (np.diff(place[order]) != 0)
    edges = np.concatenate(([0], np.flatnonzero(new) + 1, [len(order)]))
    count, of_part = np.diff(edges), part[order][edges[:-1]]
    firsts = np.concatenate(([0], np.flatnonzero(np.diff(of_part)) + 1))
    equal = np.minimum.reduceat(count, firsts) == np.maximum.reduceat(count, firsts)
    callers = np.diff(np.append(firsts, len(of_part)))
    same_count = equal[part[starts]] & (callers[part[starts]] == size)
    same_op = np.minimum.reduceat(op, starts) == np.maximum.reduceat(op, starts)
    whole = same_count & same_op & (held == size) & (size > 1)
    return whole, int(held[~whole & (size > 1)].sum())


def _members(group: Ints, place: Ints) -> Ints:
    """Returns how many ranks ever call each group, by its code."""
    ranks = int(place.max()) + 1
    return np.bincount(np.unique(group * ranks + place) // ranks)


def clock_lines(joined: Joined, clocks: list[str], reference: str) -> dict[str, ClockLine]:
    """Returns how each clock is put on `reference`; absent where no chain of whole collectives joins them.

    Args:
        joined: the calls.
        clocks: the name of each rank's clock, by place.
        reference: a clock.
    """
    codes = {name: code for code, name in enumerate(dict.fromkeys(clocks))}
    names = list(codes)
    if len(names) < 2:
        return {reference: ClockLine()}
    gaps = _gaps(joined, np.array([codes[name] for name in clocks], dtype=np.int64), len(names))
    lines = {codes[reference]: ClockLine()}
    placed = list(lines)
    for clock in placed:
        for other, line in gaps[clock].items():
            if other not in lines:
                lines[other] = line.then(lines[clock])
                placed.append(other)
    return {names[clock]: line for clock, line in lines.items()}


def _gaps(joined: Joined, clock_of: Ints, clocks: int) -> dict[int, dict[int, ClockLine]]:
    """Returns how much later one clock shows the ends of collectives than another one does.

    Of each collective, the clock of its first member is compared with the others', both ways. A kernel of
    several sends and receives ends with the last of them. Such ends count only where two clocks have no
    others in common.
    """
    key = np.repeat(np.arange(len(joined.first) - 1), np.diff(joined.first))
    rows = np.flatnonzero(joined.whole[key])
    code = key[rows] * clocks + clock_of[joined.place[rows]]
    order = np.argsort(code, kind="stable")
    new = np.flatnonzero(np.diff(code[order])) + 1
    starts = np.concatenate(([0], new)).astype(np.int64)[: len(order)]
    if not len(starts):
        return defaultdict(dict)
    end = np.maximum.reduceat(joined.calls.end[rows][order], starts)
    came = np.minimum.reduceat(order, starts)
    of_key, clock = np.divmod(code[order][starts], clocks)
    hub = clock_of[joined.place[joined.first[of_key]]]
    at_hub = np.searchsorted(code[order][starts], of_key * clocks + hub)
    gap = end[at_hub] - end
    # In the order in which the keys come, rank by rank, and of the ranks within each.
    seen = np.lexsort((came, joined.came[joined.first[of_key]]))
    a = np.stack((hub[seen], clock[seen]), axis=1).reshape(-1)
    b = np.stack((clock[seen], hub[seen]), axis=1).reshape(-1)
    value = np.stack((gap[seen], -gap[seen]), axis=1).reshape(-1)
    at = np.stack((end[seen], end[at_hub][seen]), axis=1).reshape(-1)
    pair, mixed = a * clocks + b, np.repeat(_mixed(joined)[of_key][seen], 2)
    kept = ~mixed | ~np.isin(pair, pair[~mixed])
    return _lines(pair[kept], at[kept], value[kept], clocks)


def _mixed(joined: Joined) -> NDArray[np.bool_]:
    """Tells for each key whether a member did it in one kernel with calls of other keys."""
    calls = joined.calls
    order = np.lexsort((calls.end, calls.entry, joined.place))
    same = np.ones(max(len(order) - 1, 0), dtype=np.bool_)
    for column in (joined.place, calls.entry, calls.end):
        same &= np.diff(column[order]) == 0
    shared = np.zeros(len(order), dtype=np.bool_)
    shared[order[1:]] |= same
    shared[order[:-1]] |= same
    return np.logical_or.reduceat(shared, joined.first[:-1]) if len(order) else shared


def _lines(pair: Ints, at: Ints, value: Ints, clocks: int) -> dict[int, dict[int, ClockLine]]:
    """Clock to other clocks, in order of appearance, to the line that puts the other one on it."""
    order = np.argsort(pair, kind="stable")
    edges = np.concatenate(([0], np.flatnonzero(np.diff(pair[order])) + 1, [len(order)]))
    parts = [order[a:b] for a, b in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)]
    found: dict[int, dict[int, ClockLine]] = defaultdict(dict)
    for rows in sorted(parts, key=lambda rows: int(rows[0])):
        one, other = divmod(int(pair[rows[0]]), clocks)
        found[one][other] = clock_line(at[rows], value[rows])
    return found
