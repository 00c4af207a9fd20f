"""The ranks on one clock, and their collectives matched by (step, group, sequence)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from aorta.artefacts.steps import COMMUNICATION_STREAMS, Step
from aorta.intervals import Intervals, as_intervals, subtract, union
from aorta.units import ms_to_ns

Key = tuple[int, str, int]
"""Global step, group, and sequence number (order within the step and group where records have none)."""


@dataclass(frozen=True, slots=True)
class Call:
    """One rank's part in one collective, ns on the common clock."""

    op: str
    entry: int
    end: int
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Timeline:
    """What one rank did over the steps, ns on the common clock."""

    starts: Mapping[int, int]
    """Global step to its start."""
    compute: Intervals
    data: Intervals
    """The loader's blocking time outside of compute and communication."""
    communication: Intervals
    calls: Mapping[Key, Call]
    ends: Mapping[int, int] = field(default_factory=dict)
    """Global step to its end."""

    def shifted(self, offset: int) -> Timeline:
        """The same `offset` ns later."""
        if offset == 0:
            return self
        return Timeline(
            starts={step: start + offset for step, start in self.starts.items()},
            compute=self.compute + offset,
            data=self.data + offset,
            communication=self.communication + offset,
            calls={
                key: replace(call, entry=call.entry + offset, end=call.end + offset)
                for key, call in self.calls.items()
            },
            ends={step: end + offset for step, end in self.ends.items()},
        )


@dataclass(frozen=True, slots=True)
class Matched:
    """One collective of all its members."""

    key: Key
    ranks: tuple[int, ...]
    entry: NDArray[np.int64]
    """When each of `ranks` came to it, ns, shape (len(ranks),)."""
    end: NDArray[np.int64]
    """When it ended on each."""
    op: str = "?"
    bytes: int | None = None
    """What each member brought, the largest; None where a record does not say."""


@dataclass(frozen=True, slots=True)
class Collectives:
    """All timelines, and the collectives in the order in which their last member came."""

    timelines: Mapping[int, Timeline]
    matched: tuple[Matched, ...]
    unmatched: int
    """Calls without a partner on some member: counted, never blamed."""


def match_collectives(by_rank: Mapping[int, Sequence[Step]], clocks: Mapping[int, str]) -> Collectives | str:
    """Put the ranks on one clock and match their collectives.

    Args:
        by_rank: the steps of each rank; ones without ranges contribute none.
        clocks: rank to the name of the machine whose monotonic clock it reads.

    Returns:
        As `match_timelines`.
    """
    return match_timelines({rank: step_timeline(steps) for rank, steps in by_rank.items()}, clocks)


def match_timelines(timelines: Mapping[int, Timeline], clocks: Mapping[int, str]) -> Collectives | str:
    """Put the timelines of ranks on one clock and match their collectives.

    Args:
        timelines: each rank's, on its own clock.
        clocks: rank to the name of its clock.

    Returns:
        The collectives, none of a single rank, or in words why there are none.

    Ranks of one clock keep their places. Another clock is shifted so that collectives end at the same time
    on both: by the median over all collectives with members on it and on one that is placed already.
    """
    if len(timelines) == 1:
        return Collectives(timelines=timelines, matched=(), unmatched=0)
    if not any(timeline.calls for timeline in timelines.values()):
        return "the records hold no collectives"
    keys, unmatched = _match(timelines)
    if not keys:
        return "no collective could be matched across ranks"
    offsets = _offsets(timelines, keys, clocks)
    lost = sorted({clocks[rank] for rank in timelines} - set(offsets))
    if lost:
        return f"no common collective puts the clock of {', '.join(lost)} beside the others'"
    placed = {rank: timeline.shifted(offsets[clocks[rank]]) for rank, timeline in timelines.items()}
    matched = [_matched(key, ranks, placed) for key, ranks in keys.items()]
    matched.sort(key=lambda item: (int(item.entry.max()), item.key))
    return Collectives(timelines=placed, matched=tuple(matched), unmatched=unmatched)


def step_timeline(steps: Sequence[Step]) -> Timeline:
    """One rank's steps; ranges are cut at their step, as its breakdown is."""
    starts: dict[int, int] = {}
    ends: dict[int, int] = {}
    compute: list[tuple[int, int]] = []
    data: list[tuple[int, int]] = []
    calls: dict[Key, Call] = {}
    for step in steps:
        if step.profile is None:
            continue
        origin, last = step.mono_start_ns, step.mono_end_ns
        starts[step.global_step], ends[step.global_step] = origin, last
        order: Counter[str] = Counter()
        for item in sorted(step.profile.ranges, key=lambda item: item.start_ms):
            start = min(max(origin + ms_to_ns(item.start_ms), origin), last)
            end = min(max(origin + ms_to_ns(item.end_ms), origin), last)
            if item.stream == "compute":
                compute.append((start, end))
            elif item.stream == "host" and item.tag == "data":
                data.append((start, end))
            elif item.stream in COMMUNICATION_STREAMS:
                meta = item.metadata
                op = (meta and meta.op) or item.stream
                group = (meta and meta.group) or ""
                number = meta.seq if meta and meta.seq is not None else order[group]
                order[group] += 1
                calls[(step.global_step, group, number)] = Call(op, start, end, meta.bytes if meta else None)
    busy = union(as_intervals(compute))
    communication = union(as_intervals([(call.entry, call.end) for call in calls.values()]))
    return Timeline(
        starts=starts,
        compute=busy,
        data=subtract(subtract(as_intervals(data), busy), communication),
        communication=communication,
        calls=calls,
        ends=ends,
    )


def _match(timelines: Mapping[int, Timeline]) -> tuple[dict[Key, tuple[int, ...]], int]:
    """The keys that every member of their group has, with as many calls in the step, of one operation."""
    members: dict[str, set[int]] = defaultdict(set)
    holders: dict[Key, list[int]] = defaultdict(list)
    counts: Counter[tuple[int, int, str]] = Counter()
    for rank, timeline in timelines.items():
        for step, group, number in timeline.calls:
            members[group].add(rank)
            holders[(step, group, number)].append(rank)
            counts[(rank, step, group)] += 1
    keys, unmatched = {}, 0
    for key, ranks in holders.items():
        step, group, _ = key
        same_count = len({counts[(rank, step, group)] for rank in members[group]}) == 1
        same_op = len({timelines[rank].calls[key].op for rank in ranks}) == 1
        if same_count and same_op and len(ranks) == len(members[group]) > 1:
            keys[key] = tuple(sorted(ranks))
        elif len(members[group]) > 1:
            unmatched += len(ranks)
    return keys, unmatched


def _offsets(
    timelines: Mapping[int, Timeline], keys: Mapping[Key, tuple[int, ...]], clocks: Mapping[int, str]
) -> dict[str, int]:
    """Each clock's shift to the clock of the lowest rank; absent where no chain of collectives joins them."""
    reference = clocks[min(timelines)]
    gaps: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    if len({clocks[rank] for rank in timelines}) > 1:
        for key, ranks in keys.items():
            ends: dict[str, int] = {}
            for rank in ranks:
                end = timelines[rank].calls[key].end
                ends[clocks[rank]] = max(ends.get(clocks[rank], end), end)
            hub = clocks[ranks[0]]
            for clock, end in ends.items():
                gaps[hub][clock].append(ends[hub] - end)
                gaps[clock][hub].append(end - ends[hub])
    offsets, placed = {reference: 0}, [reference]
    for clock in placed:
        for other, values in gaps[clock].items():
            if other not in offsets:
                offsets[other] = offsets[clock] + int(np.median(values))
                placed.append(other)
    return offsets


def _matched(key: Key, ranks: tuple[int, ...], timelines: Mapping[int, Timeline]) -> Matched:
    calls = [timelines[rank].calls[key] for rank in ranks]
    return Matched(
        key=key,
        ranks=ranks,
        entry=np.array([call.entry for call in calls], dtype=np.int64),
        end=np.array([call.end for call in calls], dtype=np.int64),
        op=calls[0].op,
        bytes=max((call.bytes for call in calls if call.bytes is not None), default=None),
    )
