"""The ranks on one clock, and their collectives matched by step, group and number within them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from msgspec import Struct, field, structs
from numpy.typing import NDArray

from aorta.artefacts.range_columns import ABSENT, RangeKind
from aorta.artefacts.replayed import ClockFit
from aorta.artefacts.step_columns import StepColumns, ranges_of
from aorta.artefacts.step_names import COMMUNICATION_STREAMS
from aorta.artefacts.steps import DecodedStep
from aorta.intervals import Intervals, subtract, union
from aorta.metrics.calls import NO_CALLS, NOT_RECORDED, RING, SEND_RECV, Calls, Key, RankTimeline, TimesByStep
from aorta.metrics.clock_lines import ClockLine, put
from aorta.metrics.matching import Joined, clock_lines, join
from aorta.metrics.rows import in_order, order_within
from aorta.metrics.stack import Stack, batches
from aorta.metrics.steady import Steady
from aorta.units import NS_PER_MS


class Matched(Struct, frozen=True):
    """One collective of all its members."""

    key: Key
    ranks: tuple[int, ...]
    entry: NDArray[np.int64]
    """Time when each of `ranks` came to it, ns, shape (len(ranks),)."""
    end: NDArray[np.int64]
    """Time when it ended on each."""
    op: str = "?"
    bytes: int | None = None
    """Bytes that each member brought, the largest; None where a record does not say."""


class MatchedCollectives(Struct, frozen=True):
    """All timelines, and the collectives in the order in which their last member came."""

    timelines: Mapping[int, RankTimeline]
    matched: tuple[Matched, ...]
    unmatched: int
    """Calls without a partner on some member: counted, never blamed."""
    lines: Mapping[int, ClockLine] = field(default_factory=dict)
    """Fits that put each rank's times on the lowest rank's clock; none if there is only one clock."""

    def clocks(self) -> list[ClockFit]:
        """The same of each clock but the lowest rank's."""
        ranks: dict[ClockLine, list[int]] = {}
        for rank, line in self.lines.items():
            ranks.setdefault(line, []).append(rank)
        return [
            ClockFit(
                ranks=sorted(mine),
                ahead_ms=-line.offset_ns / NS_PER_MS,
                fast_ppm=-1e6 * line.rate,
                uncertainty_ms=line.uncertainty_ns / NS_PER_MS,
            )
            for line, mine in ranks.items()
        ]

    def stretches(self) -> dict[int, int]:
        """Step to the number of its unbroken stretch: between two stretches lie steps of which no rank tells
        what it did.
        """
        numbers: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        for timeline in self.timelines.values():
            if not np.array_equal(numbers, timeline.starts.numbers):
                numbers = np.union1d(numbers, timeline.starts.numbers)
        stretch = np.cumsum(np.diff(numbers, prepend=numbers[:1]) > 1)
        return dict(zip(numbers.tolist(), stretch.tolist(), strict=True))


def match_steady(
    steady: Steady,
    by_rank: Mapping[int, StepColumns],
    clocks: Callable[[Mapping[int, StepColumns]], Mapping[int, str]],
) -> MatchedCollectives | str:
    """Returns the collectives of the steady steps that were timed part by part, as `match_collectives`.

    Args:
        steady: the steps that count.
        by_rank: all records.
        clocks: returns the clock of each rank with these records.
    """
    detailed = steady.detailed()
    if not len(detailed):
        return "no steady step was timed part by part" if len(steady) else "there are no steady steps"
    # What ranks did since they were last together begins in the step before.
    used = detailed.with_one_before(by_rank)
    return match_collectives(used, clocks(used))


def match_collectives(
    by_rank: Mapping[int, Sequence[DecodedStep]], clocks: Mapping[int, str]
) -> MatchedCollectives | str:
    """Put the ranks on one clock and match their collectives.

    Args:
        by_rank: the steps of each rank; ones without ranges, or timed as a whole, contribute nothing.
        clocks: rank to the name of the machine whose monotonic clock it reads.

    Returns:
        As `match_timelines`.
    """
    return match_timelines(step_timelines(by_rank), clocks)


def match_timelines(
    timelines: Mapping[int, RankTimeline], clocks: Mapping[int, str]
) -> MatchedCollectives | str:
    """Put the timelines of ranks on one clock and match their collectives.

    Args:
        timelines: each rank's, on its own clock.
        clocks: rank to the name of its clock.

    Returns:
        The collectives, none of a single rank, or in words why there are none.

    Ranks of one clock keep their places. Another clock is aligned so that collectives end at the same time
    on both. Its offset and drift come from the line through all collectives with members on this clock and
    on a clock that is already aligned.
    """
    if len(timelines) == 1:
        return MatchedCollectives(timelines=timelines, matched=(), unmatched=0)
    if not any(len(timeline.calls) for timeline in timelines.values()):
        return "the records contain no collectives"
    joined = join({rank: timeline.calls for rank, timeline in timelines.items()})
    if not joined.whole.any():
        return "no collective could be matched across ranks"
    own = clocks[min(timelines)]
    lines = clock_lines(joined, [clocks[rank] for rank in timelines], own)
    lost = sorted({clocks[rank] for rank in timelines} - set(lines))
    if lost:
        return f"no collective in common aligns the clock of {', '.join(lost)} with the other clocks"
    # One by one, so that of thousands of ranks no two copies are in memory.
    placed = {rank: structs.replace(timeline, calls=NO_CALLS) for rank, timeline in timelines.items()}
    del timelines
    for rank, timeline in placed.items():
        placed[rank] = timeline.placed(lines[clocks[rank]])
    return MatchedCollectives(
        timelines=placed,
        matched=_matched(joined, list(placed), [lines[clocks[rank]] for rank in placed]),
        unmatched=joined.unmatched,
        lines={rank: lines[clocks[rank]] for rank in placed if clocks[rank] != own},
    )


def step_timelines(by_rank: Mapping[int, Sequence[DecodedStep]]) -> dict[int, RankTimeline]:
    """Each rank's steps on its own clock; ranges are cut at their step, as its breakdown is."""
    columns = [StepColumns.of(steps) for steps in by_rank.values()]
    columns = [steps.where(steps.profiled) for steps in columns]
    first, last = (
        np.array([getattr(steps.column(name), side)() if len(steps) else 0 for steps in columns])
        for name, side in (("mono_start_ns", "min"), ("mono_end_ns", "max"))
    )
    made = [
        timeline
        for part in batches(first, last)
        for timeline in _timelines(columns[part], Stack.of(first[part], last[part]))
    ]
    return dict(zip(by_rank, made, strict=True))


def _timelines(columns: Sequence[StepColumns], stack: Stack) -> Iterator[RankTimeline]:
    """Timelines of ranks that lie on one line."""
    number, begin, stop = (
        np.concatenate([steps.column(name) for steps in columns])
        for name in ("global_step", "mono_start_ns", "mono_end_ns")
    )
    edges = np.cumsum([0, *(len(steps) for steps in columns)])
    found = ranges_of(columns)
    order = in_order(found.row, found.start_ns)
    row, kind, seq = found.row[order], found.kind[order], found.seq[order]
    rank = np.repeat(np.arange(len(columns)), np.diff(edges))[row]
    origin, last = begin[row], stop[row]
    spans = np.stack(
        [
            stack.on(rank, np.clip(origin + side[order], origin, last))
            for side in (found.start_ns, found.end_ns)
        ],
        axis=1,
    )
    busy = union(spans[_of(found.kinds, "compute")[kind]])
    called = np.array([item.stream in COMMUNICATION_STREAMS for item in found.kinds], dtype=np.bool_)[kind]
    # Of each rank's steps a number of their own, in order.
    numbers, code = np.unique(number, return_inverse=True)
    code = rank * len(numbers) + code.reshape(-1)[row]
    calls = _calls(found.kinds, code[called], kind[called], seq[called], spans[called])
    communication = union(np.stack((calls.entry, calls.end), axis=1))
    data = union(spans[_of(found.kinds, "host", "data")[kind]])
    data = subtract(subtract(data, busy), communication)
    sets = zip(*(stack.apart(one) for one in (busy, data, communication)), strict=True)
    rows = np.searchsorted(calls.step, np.arange(len(columns) + 1) * len(numbers))
    for place, (compute, loading, talking) in enumerate(sets):
        steps, own = slice(edges[place], edges[place + 1]), slice(rows[place], rows[place + 1])
        yield RankTimeline(
            starts=TimesByStep(number[steps], begin[steps]),
            compute=compute,
            data=loading,
            communication=talking,
            calls=_own_calls(calls, own, numbers, int(stack.first[place] - stack.zero[place])),
            ends=TimesByStep(number[steps], stop[steps]),
        )


def _own_calls(calls: Calls, rows: slice, numbers: NDArray[np.int64], shift: int) -> Calls:
    """One rank's of the line, with its steps and on its clock."""
    mine = calls.rows(rows)
    return dataclasses.replace(
        mine, step=numbers[mine.step % len(numbers)], entry=mine.entry + shift, end=mine.end + shift
    )


def _of(kinds: Sequence[RangeKind], stream: str, tag: str | None = None) -> NDArray[np.bool_]:
    return np.array([item.stream == stream and tag in (None, item.tag) for item in kinds], dtype=np.bool_)


def _calls(
    kinds: Sequence[RangeKind],
    step: NDArray[np.int64],
    kind: NDArray[np.int64],
    seq: NDArray[np.int64],
    spans: Intervals,
) -> Calls:
    """The collectives among the ranges, which come in order of their starts.

    Sequence numbers count timed calls. If ranks timed different steps part by part, for example because only
    one runs under a profiler, their numbers are shifted from then on. So the numbers here begin with each
    step and group: which collective it is of those in the step, the ranks do agree on.
    """
    names: dict[str, int] = {}
    group_of, op_of = (
        np.array([names.setdefault(name, len(names)) for name in found], dtype=np.int64)
        for found in ([item.group or "" for item in kinds], [_operation(item) for item in kinds])
    )
    size_of = np.array([NOT_RECORDED if item.bytes is None else item.bytes for item in kinds], dtype=np.int64)
    group = group_of[kind]
    if (seq == ABSENT).any():
        seq = np.where(seq == ABSENT, order_within(step, group), seq)
    place = step * max(len(names), 1) + group
    lowest = np.full(int(place.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(lowest, place, seq)
    seq = seq - lowest[place]
    span = spans[:, 0], spans[:, 1]
    return Calls.of(tuple(names), (step, group, seq), op_of[kind], span, size_of[kind])


def _operation(kind: RangeKind) -> str:
    """Returns what all members call by one name: a send and its receive are one operation."""
    return SEND_RECV if kind.op in ("send", "recv") else kind.op or kind.stream


def _done(
    joined: Joined, entry: NDArray[np.int64], end: NDArray[np.int64], pairs: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Returns the ends, where both sides of a send end when the first side ends. Records note when a side
    was waited for, and a kernel of several sends and receives ends with the last of them.
    """
    earliest = np.minimum.reduceat(end, joined.first[:-1]) if len(end) else end
    first = np.repeat(earliest, np.diff(joined.first))
    return np.where(pairs, np.maximum(first, entry), end)


def _matched(joined: Joined, ranks: Sequence[int], lines: Sequence[ClockLine]) -> tuple[Matched, ...]:
    """The whole collectives, by when their last member came."""
    calls = joined.calls
    entry, end = (put(times, lines, joined.place) for times in (calls.entry, calls.end))
    starts = joined.first[:-1]
    pairs = [code for code, name in enumerate(calls.names) if name in (SEND_RECV, RING)]
    if pairs:
        end = _done(joined, entry, end, np.isin(calls.op, pairs))
    latest, size = np.maximum.reduceat(entry, starts), np.maximum.reduceat(calls.bytes, starts)
    members: dict[bytes, tuple[tuple[int, ...], NDArray[np.intp]]] = {}
    found = []
    for at in np.flatnonzero(joined.whole).tolist():
        rows = slice(int(joined.first[at]), int(joined.first[at + 1]))
        place = joined.place[rows]
        code = place.tobytes()
        if code not in members:
            own = [ranks[one] for one in place.tolist()]
            by_rank = np.argsort(own, kind="stable")
            members[code] = tuple(own[one] for one in by_rank), by_rank
        those, by_rank = members[code]
        row = rows.start
        key = int(calls.step[row]), calls.names[int(calls.group[row])], int(calls.number[row])
        biggest = int(size[at])
        found.append(
            (
                int(latest[at]),
                Matched(
                    key=key,
                    ranks=those,
                    entry=entry[rows][by_rank],
                    end=end[rows][by_rank],
                    op=calls.names[int(calls.op[row])],
                    bytes=None if biggest == NOT_RECORDED else biggest,
                ),
            )
        )
    found.sort(key=lambda item: (item[0], item[1].key))
    return tuple(item for _, item in found)
