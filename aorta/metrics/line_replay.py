"""Replays host lines: host, launch, queue of the GPU, collectives of all ranks.

The host works, launches and waits in the order of its line. A kernel starts when it has been launched, when
its stream is free and when the work that it needs has ended. A collective ends on every member when the last
one has come and the transfer is over. Durations on the GPU stay as they were measured, so that less work of
the host shortens a step only as far as the GPU and the other ranks let it.

The steps are run several times in a row. Queues that were full or empty at the start of the capture are then
as full as this program keeps them, and the last rounds say what a step takes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from aorta.artefacts.events import ABSENT
from aorta.artefacts.hostline import Item, LineTable

Floats = NDArray[np.float64]
LAUNCH_NS = 3_000.0
"""From a launch to the start of a kernel on an idle GPU."""
QUEUE = 1_000
"""Launches that the driver keeps before it makes the host wait."""
_SYNC_NS = 2_000.0
_MOST_OF_STEPS = 0.5
_ABOUT = 1.25
_LEAST_LEFT = 0.1
"""Share of a stretch of host work that stays, whatever is taken from it."""
_MOST_STEPS = 400_000
"""Items of all ranks and rounds that are replayed."""
_NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class ReplayLine:
    """A line as it is replayed; a list per column."""

    work: list[float]
    """The host's work before each item."""
    item: list[int]
    waits: list[bool]
    behind: list[float]
    stream: list[int]
    gpu: list[float]
    needs: list[int]
    call: list[tuple[int, int, str, int] | None]
    """Key of a collective: place of the step, step, group, order."""
    ready: list[float]
    """When a batch is ready, from the start of the line."""
    length: float
    """Length of the steps, as measured."""


@dataclass(frozen=True, slots=True)
class ReplayChanges:
    """Changes of a replay; one row per item of the line."""

    work_ns: Floats | None = None
    """Host work instead of the measured one."""
    gpu_ns: Floats | None = None
    """Durations on the GPU instead of the measured ones."""
    dropped: NDArray[np.bool_] | None = None
    """Items that do not take place."""
    unheld: NDArray[np.bool_] | None = None
    """Items at which the host does not wait."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One item in the last two rounds of a replay, ns since the replay began."""

    round: int
    """0 or 1."""
    place: int
    """Row of the line, among those of the steps that all ranks have."""
    at: float
    """When the host came to it."""
    left: float
    """When the host went on."""
    begin: float
    """When the GPU began what was launched."""
    end: float


@dataclass(frozen=True, slots=True)
class ReplayedStep:
    """Time of a step in a replay, ns, by rank."""

    step_ns: Mapping[int, float]
    host_ns: Mapping[int, float] = field(default_factory=dict)
    """How long the host worked per step, without its waits."""
    moments: Mapping[int, list[Moment]] = field(default_factory=dict)
    """Moments by rank; empty where they were not asked for."""

    @property
    def mean_ns(self) -> float:
        """Mean over ranks."""
        return float(np.mean(list(self.step_ns.values())))


def lessened(table: LineTable, weight_ns: Floats, work_ns: Floats | None = None) -> Floats:
    """Work before each item without `weight_ns`.

    What a stretch is too short for is taken from the following ones, up to the next wait.
    """
    work = (table.work_ns if work_ns is None else work_ns).astype(np.float64)
    waits = table.held_ns > 0
    left = np.empty(len(work))
    debt = 0.0
    for place, (took, weight, wait) in enumerate(
        zip(work.tolist(), weight_ns.tolist(), waits.tolist(), strict=True)
    ):
        wanted = took - weight - debt
        kept = max(wanted, _LEAST_LEFT * took)
        debt = kept - wanted
        left[place] = kept
        if wait:
            debt = 0.0
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
    call = [
        (place, step, groups[group], order) if group != ABSENT and not out else None
        for place, step, group, order, out in zip(
            places[kept].tolist(),
            table.step[kept].tolist(),
            table.group[kept].tolist(),
            table.order[kept].tolist(),
            dropped[kept].tolist(),
            strict=True,
        )
    ]
    item = np.where(dropped & ~np.isin(table.item, (Item.STEP, Item.END)), ABSENT, table.item)
    # A loader that is waited for in most steps sets the pace; a wait now and then lasts as long as it did.
    loaded = np.unique(table.step[kept & (table.item == Item.LOADER)])
    paced = len(loaded) >= _MOST_OF_STEPS * len(steps)
    ready = (clock - start)[kept].astype(np.float64) if paced else np.full(int(kept.sum()), _NEVER)
    behind = np.where((table.item == Item.LOADER) & (not paced), table.held_ns, table.behind_ns)
    return ReplayLine(
        work=work[kept].tolist(),
        item=item[kept].tolist(),
        waits=waits[kept].tolist(),
        behind=behind[kept].astype(np.float64).tolist(),
        stream=table.stream[kept].tolist(),
        gpu=gpu[kept].tolist(),
        needs=table.needs[kept].tolist(),
        call=call,
        ready=ready.tolist(),
        length=float((table.work_ns + table.held_ns)[kept].sum()),
    )


def replay(lines: Mapping[int, ReplayLine], *, keep: bool = False) -> ReplayedStep:
    """Time of a step on each rank; with `keep` also when each item of the last two rounds took place."""
    size = max(sum(len(lane.work) for lane in lines.values()), 1)
    rounds = int(np.clip(_MOST_STEPS // size, 3, 6))
    shared = _Shared(lines)
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
        {rank: run.moments for rank, run in runs.items()} if keep else {},
    )


class _Shared:
    """Collectives on their way."""

    def __init__(self, lines: Mapping[int, ReplayLine]) -> None:
        members: defaultdict[tuple[int, int, str, int], set[int]] = defaultdict(set)
        self.transfer: dict[tuple[int, int, str, int], float] = {}
        for rank, lane in lines.items():
            for key, took in zip(lane.call, lane.gpu, strict=True):
                if key is not None:
                    members[key].add(rank)
                    # The member that comes last waits for nobody.
                    self.transfer[key] = min(self.transfer.get(key, took), took)
        self.members = {key: len(found) for key, found in members.items()}
        self.posts: defaultdict[tuple[int, tuple[int, int, str, int]], dict[int, float]] = defaultdict(dict)
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
        self.steps = sum(item == Item.STEP for item in lane.item)
        self.worked = 0.0
        self.moments: list[Moment] = []
        self._first_kept = rounds - 2 if keep else rounds
        self._ends: list[float] = []

    def step_ns(self) -> float:
        """Mean step of the last two rounds, from where the GPU begins each round to where it ends."""
        first = self._ends[-3]
        return (self._ends[-1] - first) / 2 / max(self.steps, 1)

    def go(self) -> Generator[None, None, None]:
        lane = self._lane
        columns = list(
            zip(
                lane.work, lane.item, lane.waits, lane.behind, lane.stream, lane.gpu, lane.needs, lane.call,
                lane.ready, strict=True,
            )
        )  # fmt: skip
        count = len(columns)
        # Names of the class are looked up once, and max() is not called: this loop takes a good part of the
        # time of an analysis.
        launch, sync, loader = int(Item.LAUNCH), int(Item.SYNC), int(Item.LOADER)
        end_of_line = int(Item.END)
        now, busy, launched = 0.0, 0.0, 0
        free: dict[int, float] = {}
        ended: list[float] = [_NEVER] * count
        starts: list[float] = []
        for number in range(self._rounds):
            previous = ended
            ended = [_NEVER] * count
            for place, (work, item, waits, behind, stream, took, needs, key, ready) in enumerate(columns):
                now += work
                if item <= 0 or item == end_of_line:
                    continue
                need = _NEVER
                if needs:
                    back = place - needs
                    need = ended[back] if back >= 0 else previous[back]
                at = begin = end = now
                if item == launch:
                    if launched >= QUEUE and starts[launched - QUEUE] > now:
                        at = now = starts[launched - QUEUE]
                    launched += 1
                    begin = now + LAUNCH_NS
                    before = free.get(stream, _NEVER)
                    if before > begin:  # noqa: PLR1730
                        begin = before
                    if need > begin:  # noqa: PLR1730
                        begin = need
                    end = begin + took if key is None else (yield from self._met((number, key), begin))
                    starts.append(begin)
                    free[stream] = ended[place] = end
                    if end > busy:  # noqa: PLR1730
                        busy = end
                    if waits:
                        now = max(now + _SYNC_NS, end + behind)
                elif waits:
                    until = need + behind if item == sync else now + behind
                    paced = number * lane.length + ready if item == loader else _NEVER
                    now = max(now + _SYNC_NS, until, paced)
                if number >= self._first_kept:
                    self.moments.append(Moment(number - self._first_kept, place, at, now, begin, end))
            self.worked += sum(lane.work)
            self._ends.append(max(now, busy))

    def _met(self, call: tuple[int, tuple[int, int, str, int]], begin: float) -> Generator[None, None, float]:
        """When a collective ends that this rank comes to at `begin`."""
        shared = self._shared
        posts = shared.posts[call]
        posts[self._rank] = begin
        shared.posted += 1
        given = shared.alone
        while len(posts) < shared.members[call[1]] and shared.alone == given:
            yield
        return max(posts.values()) + shared.transfer[call[1]]
