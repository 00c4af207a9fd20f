"""Replays host lines: host, launch, queue of the GPU, collectives of all ranks.

The host works, launches and waits in the order of its line. A kernel starts when it has been launched, when
its stream is free and when the work that it needs has ended. A collective ends on every member when the last
one has come and the transfer is over. Durations on the GPU stay as measured, so less host work shortens a
step only as far as the GPU and the other ranks allow.

The steps are run several times in a row. Queues that were full or empty at the start of the capture then
reach the level that this program keeps. The last rounds give the step time.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from aorta.artefacts.events import ABSENT, Column, among
from aorta.artefacts.hostline import ComputeKind, Item, LineTable

Floats = NDArray[np.float64]
LAUNCH_NS = 3_000.0
"""Time from a launch to the start of a kernel on an idle GPU."""
QUEUE = 1_000
"""Number of launches that the driver queues before the host has to wait."""
_SYNC_NS = 2_000.0
_MOST_OF_STEPS = 0.5
_ABOUT = 1.25
_LEAST_LEFT = 0.1
"""Share of a stretch of host work that stays, whatever is taken from it."""
_MOST_STEPS = 400_000
"""Items of all ranks and rounds that are replayed."""
_PINNED_BYTES_PER_NS = 0.8
"""A thread of the loader pins some GB/s, and the workers' processes hand their batches to it at that rate."""
_NEVER = float("-inf")


class _Do(enum.IntEnum):
    """Says what the replay does at an item."""

    WORK = 0
    """The host works, and nothing else."""
    LAUNCH = 1
    """It launches work that needs only its stream."""
    JOINED = 2
    """It launches a collective, or work that others need, that needs others or that the host waits for."""
    SYNC = 3
    """It waits for work that it launched before."""
    LOADER = 4
    """It waits for a batch."""
    ON = 5
    """It waits for nothing."""


class ReplayLine(Struct, frozen=True):
    """A line as it is replayed; a list per column."""

    work: list[float]
    """The host's work before each item."""
    do: list[int]
    """A `_Do` of each item."""
    waits: list[bool]
    behind: list[float]
    stream: list[int]
    """Numbers from 0."""
    gpu: list[float]
    needs: list[int]
    """The item whose work has to end first: of this round, or of the one before where it comes later. The
    number of items: none.
    """
    call: list[tuple[int, int, str, int] | None]
    """Key of a collective: place of the step, step, group, order."""
    ready: list[float]
    """Time when a batch is ready, from the start of the line."""
    length: float
    """Length of the steps, as measured."""
    steps: int
    rows: NDArray[np.bool_]
    """Mask of the table's items that the line holds."""


class ReplayChanges(Struct, frozen=True):
    """Changes of a replay; one row per item of the line."""

    work_ns: Floats | None = None
    """Host work instead of the measured one."""
    gpu_ns: Floats | None = None
    """Durations on the GPU instead of the measured ones."""
    dropped: NDArray[np.bool_] | None = None
    """Items that do not take place."""
    unheld: NDArray[np.bool_] | None = None
    """Items at which the host does not wait."""


class Moments(Struct, frozen=True, eq=False):
    """The items of the last two rounds of a replay, one row per item; times are ns since the replay began."""

    round: Floats
    """0 or 1."""
    place: Floats
    """Row of the line, among those of the steps that all ranks have."""
    at: Floats
    """Time when the host came to the item."""
    left: Floats
    """Time when the host went on."""
    begin: Floats
    """Time when the GPU began what was launched."""
    end: Floats


class ReplayedStep(Struct, frozen=True):
    """Time of a step in a replay, ns, by rank."""

    step_ns: Mapping[int, float]
    host_ns: Mapping[int, float] = field(default_factory=dict)
    """Time that the host worked per step, without its waits."""
    kept: Mapping[int, list[float]] = field(default_factory=dict)
    """Times that `moments` makes tables of, by rank; empty where they were not asked for."""

    def moments(self, rank: int) -> Moments:
        """Returns when each item of the last two rounds took place."""
        return Moments(*np.array(self.kept[rank], dtype=np.float64).reshape(-1, 6).T)

    @property
    def longest_ns(self) -> float:
        """The step of the slowest rank, which is the job's."""
        return max(self.step_ns.values())

    @property
    def mean_ns(self) -> float:
        """Mean over ranks."""
        return float(np.mean(list(self.step_ns.values())))


def lessened(table: LineTable, weight_ns: Floats, work_ns: Floats | None = None) -> Floats:
    """Work before each item without `weight_ns`.

    What a stretch is too short for is taken from the following ones, up to the next wait.
    """
    work = (table.work_ns if work_ns is None else work_ns).astype(np.float64)
    fewest = _LEAST_LEFT * work
    left = np.asarray(work - weight_ns, dtype=np.float64)
    columns = (work, weight_ns, fewest, table.held_ns > 0)
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    end = 0
    # A stretch that is long enough, behind one that was, loses its own weight and nothing else.
    for first in np.flatnonzero(left < fewest).tolist():
        place, debt = max(first, end), 0.0
        while place < len(rows) and (debt > 0.0 or place == first):
            took, weight, least, wait = rows[place]
            wanted = took - weight - debt
            left[place] = kept = max(wanted, least)
            debt = 0.0 if wait else kept - wanted
            place += 1
        end = place
    return left


def lanes(
    tables: Mapping[int, LineTable], groups: Mapping[int, Sequence[str]], changes: Mapping[int, ReplayChanges]
) -> dict[int, ReplayLine]:
    """The lines of the steps that all ranks have, changed."""
    common = set.intersection(*(set(table.step.tolist()) for table in tables.values()))
    found = {
        rank: _lane(table, groups[rank], changes.get(rank, ReplayChanges()), np.array(sorted(common)))
        for rank, table in tables.items()
    }
    return _at_one_pace(found)


def _at_one_pace(lines: Mapping[int, ReplayLine]) -> dict[int, ReplayLine]:
    """The lines with loaders of one pace where they are about as fast: few steps tell it roughly."""
    paced = {rank: lane.length for rank, lane in lines.items() if max(lane.ready, default=_NEVER) > _NEVER}
    pace = max(paced.values(), default=0.0)
    return {
        rank: replace(lane, ready=[at * pace / lane.length for at in lane.ready], length=pace)
        if rank in paced and 0 < pace <= _ABOUT * lane.length
        else lane
        for rank, lane in lines.items()
    }


def _lane(
    table: LineTable, groups: Sequence[str], change: ReplayChanges, steps: NDArray[np.int64]
) -> ReplayLine:
    kept = np.isin(table.step, steps)
    dropped = np.zeros(len(table), dtype=np.bool_) if change.dropped is None else change.dropped
    work = table.work_ns.astype(np.float64) if change.work_ns is None else change.work_ns
    gpu = table.gpu_ns.astype(np.float64) if change.gpu_ns is None else change.gpu_ns
    held = table.held_ns > 0
    waits = held if change.unheld is None else held & ~change.unheld
    clock = np.cumsum(table.work_ns + table.held_ns)
    start = clock[kept][0] - (table.work_ns + table.held_ns)[kept][0] if kept.any() else 0
    places = np.searchsorted(steps, table.step)
    call: list[tuple[int, int, str, int] | None] = [None] * int(kept.sum())
    called = (table.group != ABSENT)[kept] & ~dropped[kept]
    columns = (places[kept], table.step[kept], table.group[kept], table.order[kept])
    at = np.flatnonzero(called).tolist()
    for row, place, step, group, order in zip(at, *(c[called].tolist() for c in columns), strict=True):
        call[row] = place, step, groups[group], order
    item = np.where(dropped & ~among(table.item, (Item.STEP, Item.END)), ABSENT, table.item)[kept]
    # A loader that is waited for in most steps sets the pace; a wait now and then lasts as long as it did.
    loaded = np.unique(table.step[kept & (table.item == Item.LOADER)])
    paced = len(loaded) >= _MOST_OF_STEPS * len(steps) and not _pins(table)
    ready = (clock - start)[kept].astype(np.float64) if paced else np.full(int(kept.sum()), _NEVER)
    behind = np.where((table.item == Item.LOADER) & (not paced), table.held_ns, table.behind_ns)
    return ReplayLine(
        work=work[kept].tolist(),
        do=_does(item, waits[kept] | called, _sources(table.needs[kept]), waits[kept]).tolist(),
        waits=waits[kept].tolist(),
        behind=behind[kept].astype(np.float64).tolist(),
        stream=np.unique(table.stream[kept], return_inverse=True)[1].reshape(-1).tolist(),
        gpu=gpu[kept].tolist(),
        needs=_sources(table.needs[kept]).tolist(),
        call=call,
        ready=ready.tolist(),
        length=float((table.work_ns + table.held_ns)[kept].sum()),
        steps=int((item == Item.STEP).sum()),
        rows=kept,
    )


def worked(lane: ReplayLine, work_ns: Floats) -> ReplayLine:
    """The line with other work of the host before the items of its table."""
    return replace(lane, work=work_ns[lane.rows].tolist())


def _sources(needs: Column) -> Column:
    """The item that each item needs; the number of items: none."""
    count = len(needs)
    return np.where(needs != 0, (np.arange(count) - needs) % max(count, 1), count)


def _does(item: Column, joined: NDArray[np.bool_], needs: Column, waits: NDArray[np.bool_]) -> Column:
    """A `_Do` for each item, of which some are `joined` whatever they need."""
    linked = np.append(joined | (needs < len(item)), False)
    linked[needs] = True
    done = np.where(linked[:-1], int(_Do.JOINED), int(_Do.LAUNCH))
    other = np.where(item == Item.SYNC, int(_Do.SYNC), int(_Do.LOADER))
    done = np.where(item == Item.LAUNCH, done, np.where(waits, other, int(_Do.ON)))
    return np.where((item <= Item.STEP) | (item == Item.END), int(_Do.WORK), done)


def _pins(table: LineTable) -> bool:
    """True if batches are so large that it is their copying to pinned memory that the host waits for.

    A thread of the same process does that, and the host's own work keeps it waiting: it has no pace.
    """
    loaded = table.item == Item.LOADER
    held = table.held_ns[loaded].sum()
    launched = table.item == Item.LAUNCH
    copies = launched & (table.kind == ComputeKind.COPY)
    # A batch is copied right behind the wait for it, before anything is computed.
    others = np.cumsum(launched & ~copies)
    since = np.maximum.accumulate(np.where(loaded, others, -1))
    copied = np.maximum(table.bytes[copies & (others == since)], 0).sum()
    return bool(held > 0 and copied >= _PINNED_BYTES_PER_NS * held)


def replay(lines: Mapping[int, ReplayLine], *, keep: bool = False) -> ReplayedStep:
    """Time of a step on each rank; with `keep` also when each item of the last two rounds took place."""
    size = max(sum(len(lane.work) for lane in lines.values()), 1)
    rounds = int(np.clip(_MOST_STEPS // size, 3, 6))
    shared = _Shared(lines, rounds)
    runs = {rank: _Run(rank, lane, shared, rounds, keep=keep) for rank, lane in lines.items()}
    active = {rank: run.go() for rank, run in runs.items()}
    while active:
        before = shared.posted
        for rank in list(active):
            try:
                next(active[rank])
            except StopIteration:
                del active[rank]
                before = -1
        if active and shared.posted == before:
            # A member waits for a call that another one never makes: it goes on alone.
            shared.give_up()
    return ReplayedStep(
        {rank: run.step_ns() for rank, run in runs.items()},
        {rank: run.worked / rounds / max(run.steps, 1) for rank, run in runs.items()},
        {rank: run.kept for rank, run in runs.items()} if keep else {},
    )


class _Shared:
    """Collectives on their way."""

    def __init__(self, lines: Mapping[int, ReplayLine], rounds: int) -> None:
        number: dict[tuple[int, int, str, int], int] = {}
        members: defaultdict[int, set[int]] = defaultdict(set)
        self.transfer: dict[int, float] = {}
        self.calls: dict[int, list[int | None]] = {}
        """The number of each item's collective, by rank. None if the item is of none."""
        for rank, lane in lines.items():
            own = [None if key is None else number.setdefault(key, len(number)) for key in lane.call]
            self.calls[rank] = own
            for call, took in zip(own, lane.gpu, strict=True):
                if call is not None:
                    members[call].add(rank)
                    # The member that comes last waits for nobody.
                    self.transfer[call] = min(self.transfer.get(call, took), took)
        self.members = {call: len(found) for call, found in members.items()}
        self.posts: list[list[dict[int, float]]] = [[{} for _ in number] for _ in range(rounds)]
        self.posted = 0
        self.alone = 0

    def give_up(self) -> None:
        """Let one call go on without the members that have not come."""
        self.alone += 1
        self.posted += 1


class _Run:
    """One rank's replay."""

    def __init__(self, rank: int, lane: ReplayLine, shared: _Shared, rounds: int, *, keep: bool) -> None:
        self._rank, self._lane, self._shared, self._rounds = rank, lane, shared, rounds
        self.steps = lane.steps
        self.worked = 0.0
        self.kept: list[float] = []
        self._first_kept = rounds - 2 if keep else rounds
        self._ends: list[float] = []

    def step_ns(self) -> float:
        """Mean step of the last two rounds, from where the GPU begins each round to where it ends."""
        first = self._ends[-3]
        return (self._ends[-1] - first) / 2 / max(self.steps, 1)

    def go(self) -> Generator[None, None, None]:
        lane = self._lane
        rows = list(zip(range(len(lane.work)), lane.do, lane.work, lane.stream, lane.gpu, strict=True))
        # Names are looked up once, and max() is not called: this loop takes a good part of an analysis.
        launch, only_work, joined = int(_Do.LAUNCH), int(_Do.WORK), int(_Do.JOINED)
        needs, waits, behind = lane.needs, lane.waits, lane.behind
        calls = self._shared.calls[self._rank]
        moments = self.kept
        now, launched = 0.0, 0
        free = [_NEVER] * (max(lane.stream, default=0) + 1)
        starts = [_NEVER] * QUEUE
        ended = [_NEVER] * (len(rows) + 1)
        for number in range(self._rounds):
            kept = number >= self._first_kept
            for place, do, work, stream, took in rows:
                now += work
                if do == launch:
                    room = starts[launched]
                    if room > now:  # noqa: PLR1730
                        now = room
                    launched += 1
                    at = now
                    begin = now + LAUNCH_NS
                    before = free[stream]
                    if before > begin:  # noqa: PLR1730
                        begin = before
                    free[stream] = end = begin + took
                    starts.append(begin)
                elif do == only_work:
                    continue
                elif do == joined:
                    at = now = max(now, starts[launched])
                    launched += 1
                    begin = max(now + LAUNCH_NS, free[stream], ended[needs[place]])
                    call = calls[place]
                    end = begin + took if call is None else (yield from self._met(number, call, begin))
                    starts.append(begin)
                    free[stream] = ended[place] = end
                    if waits[place]:
                        now = max(now + _SYNC_NS, end + behind[place])
                else:
                    at = begin = end = now
                    now = self._on(place, number, now, ended[needs[place]])
                if kept:
                    moments += (number - self._first_kept, place, at, now, begin, end)
            self.worked += sum(lane.work)
            self._ends.append(max(now, *free))

    def _on(self, place: int, number: int, now: float, need: float) -> float:
        """Returns when the host goes on after an item that launches nothing."""
        lane, do = self._lane, self._lane.do[place]
        if do == _Do.SYNC:
            return max(now + _SYNC_NS, need + lane.behind[place])
        if do == _Do.LOADER:
            paced = number * lane.length + lane.ready[place]
            return max(now + _SYNC_NS, now + lane.behind[place], paced)
        return now

    def _met(self, number: int, call: int, begin: float) -> Generator[None, None, float]:
        """Returns when a collective of a round ends that this rank comes to at `begin`."""
        shared = self._shared
        posts, members, given = shared.posts[number][call], shared.members[call], shared.alone
        posts[self._rank] = begin
        shared.posted += 1
        while len(posts) < members and shared.alone == given:
            yield
        return max(posts.values()) + shared.transfer[call]
