"""The ranks' main lines between collectives, as `aorta.metrics.replay` runs through them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from aorta.intervals import EMPTY, subtract
from aorta.metrics.calls import RankTimeline
from aorta.metrics.collectives import Matched, MatchedCollectives
from aorta.metrics.cover import Cover
from aorta.metrics.rows import rows_of
from aorta.metrics.stack import Stack, batches
from aorta.metrics.steady import consecutive

Part = Literal["data_loading", "compute", "host"]
PARTS: tuple[Part, ...] = ("data_loading", "compute", "host")
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_BACK_TO_BACK_NS = 20_000
"""A call that starts within this time of the previous call's end was queued behind it. The records do not
show when it was posted, so the previous call's post is used.
"""
_JUST_BEFORE = 0.05
"""A call that ends before its last member starts still waited for it if the difference is at most this share
of its own time, because the ranks' clocks differ by as much.
"""
_MOST_ROWS = 2_000_000
"""Members of collectives that are replayed; of more, the last steps are."""


class Replayed(Struct, frozen=True, eq=False):
    """Times of the steps, ns, each (ranks, steps)."""

    start: Floats
    end: Floats

    def step_ns(self) -> Floats:
        """Means over ranks, (steps,): from each step's start to the next one's; the last to its end."""
        spans = np.append(self.start[:, 1:], self.end[:, -1:], axis=1) - self.start
        return np.asarray(spans.mean(axis=0), dtype=np.float64)


class Points(Struct, frozen=True, eq=False):
    """Places on the main lines, one a row."""

    rank: Ints
    step: Ints
    own: Ints
    """The rank's own time before it since its first step's start, ns."""
    parts: Ints
    """The part of `own` that lies in its step: (rows, PARTS), ns."""

    def put(self, rows: Ints, found: Points) -> None:
        """Fill in `rows`, but for their ranks."""
        self.step[rows], self.own[rows], self.parts[rows] = found.step, found.own, found.parts


class ReplayModel(Struct, frozen=True, eq=False):
    """An unbroken run of steps. Rows are members of collectives, in the order of the collectives."""

    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    measured: Replayed
    totals: Ints
    """(PARTS, ranks, steps), ns."""
    first: Ints
    """The first row of each collective, and the end of the last."""
    group: Ints
    """Group of each collective."""
    place: Ints
    """Place of each collective in its step, by group and number."""
    places: tuple[tuple[str, int, str], ...]
    """Group, place within the group's calls of a step, and operation, of each place."""
    bytes: Ints
    """Largest number of bytes of a member, for each place; -1: not recorded."""
    post: Points
    wait: Points
    bounds: Points
    """Starts, then ends of steps."""
    transfer: Ints
    """Time from the last member's start to the end on this one, ns; negative: it did not depend on it."""
    alone: Ints
    """Time from the member's own start to its end, ns."""
    before: Ints
    """Number of waits before the post on its rank's line."""
    slot: Ints
    """The row's place among the places where ranks need calls to be over; -1: it is not known."""
    slots: Ints
    """The first slot of each rank, and the end of the last."""
    before_bounds: Ints

    @property
    def place_of_row(self) -> Ints:
        """Place of each row's collective."""
        return np.repeat(self.place, np.diff(self.first))


def build(collectives: MatchedCollectives, steady: Sequence[int]) -> list[ReplayModel]:
    """The models of the unbroken runs of the steps `steady` (global steps), as many as are replayed.

    Every rank must have all of the steps.
    """
    members = sum(len(item.ranks) for item in collectives.matched)
    per_step = max(members // max(len(steady), 1), 1)
    kept = list(steady)[-max(_MOST_ROWS // per_step, 1) :]
    by_step: dict[int, list[Matched]] = {}
    for item in collectives.matched:
        by_step.setdefault(item.key[0], []).append(item)
    models = []
    for a, b in consecutive(kept):
        numbers = tuple(kept[a:b])
        items = [item for number in numbers for item in by_step.get(number, ())]
        models.append(_Builder(collectives.timelines, numbers, items).model())
    return models


class _Line:
    """The main lines of some ranks on their stack: own time and its parts at any time."""

    def __init__(self, timelines: Sequence[RankTimeline], stack: Stack, starts: Ints, ends: Ints) -> None:
        """Lay out ranks whose steps start and end at `starts` and `ends`, (ranks, steps) each."""
        places = np.repeat(np.arange(len(starts)), starts.shape[1])
        self._steps = starts.shape[1]
        self.starts, self.ends = stack.on(places, starts.reshape(-1)), stack.on(places, ends.reshape(-1))
        """On the line, rank by rank."""
        data, compute = (
            stack.line([getattr(one, part) for one in timelines]) for part in ("data", "compute")
        )
        self._covers = [Cover(data), Cover(compute)]
        self._exposed = subtract(stack.line([one.communication for one in timelines]), compute)
        self._blocked = Cover(EMPTY)

    def wait(self, rank: Ints, entry: Ints, end: Ints, queued: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Returns which calls their main lines waited for; from here on that time is not the ranks' own.

        Exposed communication before a rank's last sign of life (a post, or the end of a wait) is not waiting.
        """
        if not len(self._exposed) or not len(end):
            return np.zeros(len(end), dtype=np.bool_)
        origin = self.starts[rank * self._steps]
        place = np.searchsorted(self._exposed[:, 0], end, side="left") - 1
        waited: NDArray[np.bool_] = (
            (place >= 0) & (end <= self._exposed[np.maximum(place, 0), 1]) & (end > origin)
        )
        signs = np.unique(np.concatenate((entry[~queued], end[waited])))
        last = np.searchsorted(signs, end, side="left") - 1
        sign = np.where(last >= 0, signs[np.maximum(last, 0)], np.iinfo(np.int64).min)
        since = np.maximum(np.maximum(self._exposed[np.maximum(place, 0), 0], sign), origin)
        self._blocked = Cover(np.stack((since, end), axis=1)[waited])
        return waited

    def needed(self, rank: Ints, end: Ints, waited: NDArray[np.bool_]) -> Ints:
        """Returns when each rank's main line needs each call to be over; -1: unknown, it ended later.

        A hidden call is needed where the line waits next, or by the end of the step.
        """
        at = np.where(waited, end, -1)
        last = rank * self._steps + self._steps - 1
        step = np.searchsorted(self.ends, end, side="left")
        hidden = ~waited & (step <= last)
        limit = self.ends[np.minimum(step, last)]
        stops = np.sort(end[waited])
        if len(stops):
            # Of another rank's stops the first is beyond the limit.
            place = np.searchsorted(stops, end, side="left")
            following = np.where(place < len(stops), stops[np.minimum(place, len(stops) - 1)], limit)
            limit = np.minimum(limit, following)
        at[hidden] = limit[hidden]
        return np.asarray(at, dtype=np.int64)

    def points(self, rank: Ints, times: Ints) -> Points:
        """The places that ranks reached at `times`."""
        least = rank * self._steps
        step = np.searchsorted(self.starts, times, side="right") - 1
        return self.in_steps(rank, times, np.clip(step, least, least + self._steps - 1) - least)

    def in_steps(self, rank: Ints, times: Ints, step: Ints) -> Points:
        """Likewise, where the steps are known."""
        at = rank * self._steps + step
        since = self.starts[at]
        inside = np.clip(times, since, self.ends[at])
        data, compute = (cover.before(inside) - cover.before(since) for cover in self._covers)
        host = self._own(inside) - self._own(since) - data - compute
        return Points(
            rank=rank,
            step=step,
            own=self._own(times) - self._own(self.starts[rank * self._steps]),
            parts=np.stack((data, compute, host), axis=1),
        )

    def _own(self, times: Ints) -> Ints:
        return np.asarray(times - self._blocked.before(times), dtype=np.int64)


class _Places(Struct, frozen=True, eq=False):
    """Collects the rows and step bounds of `ReplayModel`, for some ranks at a time."""

    post: Points
    wait: Points
    before: Ints
    slot: Ints
    bounds: Points
    before_bounds: Ints

    @classmethod
    def of(cls, rank: Ints, ranks: int, steps: int) -> _Places:
        """Returns empty places for rows of these ranks, with this number of ranks and of steps per rank."""
        bounds = np.tile(np.repeat(np.arange(ranks), steps), 2)
        post, wait, of_bounds = (
            Points(one, np.empty_like(one), np.empty_like(one), np.empty((len(one), len(PARTS)), np.int64))
            for one in (rank, rank, bounds)
        )
        return cls(post, wait, np.empty_like(rank), np.full_like(rank, -1), of_bounds, np.empty_like(bounds))


class _Builder:
    """Rows by rank, where the line of each is needed, put back into the order of the collectives."""

    def __init__(
        self, timelines: Mapping[int, RankTimeline], numbers: tuple[int, ...], items: Sequence[Matched]
    ) -> None:
        self._timelines, self._numbers, self._items = timelines, numbers, items
        self._ranks = tuple(sorted(timelines))
        self._first = np.concatenate(([0], np.cumsum([len(item.ranks) for item in items], dtype=np.int64)))
        index = {rank: place for place, rank in enumerate(self._ranks)}
        places = {
            ranks: np.array([index[rank] for rank in ranks]) for ranks in {item.ranks for item in items}
        }
        self._rank = _joined([places[item.ranks] for item in items])
        self._entry = _joined([item.entry for item in items])
        self._end = _joined([item.end for item in items])

    def model(self) -> ReplayModel:
        names = sorted({item.key[1] for item in self._items})
        group = np.array([names.index(item.key[1]) for item in self._items], dtype=np.int64)
        begin, queued = self._begins(group)
        last = np.maximum.reduceat(begin, self._first[:-1]) if len(self._items) else begin
        starts, ends = self._bounds()
        by_rank = rows_of(self._rank, len(self._ranks))
        made = _Places.of(self._rank, len(self._ranks), len(self._numbers))
        limits, slots = self._limits(), [np.zeros(1, dtype=np.int64)]
        for part in batches(*limits):
            stack = Stack.of(limits[0][part], limits[1][part])
            line = _Line(
                [self._timelines[rank] for rank in self._ranks[part]], stack, starts[part], ends[part]
            )
            count = self._fill(
                made, line, stack, (part, np.concatenate(by_rank[part]), queued), slots[-1][-1]
            )
            slots.append(slots[-1][-1] + np.cumsum(count))
        places, kinds = self._places()
        return ReplayModel(
            ranks=self._ranks,
            steps=self._numbers,
            measured=Replayed(starts.astype(np.float64), ends.astype(np.float64)),
            totals=made.bounds.parts[len(starts.reshape(-1)) :].T.reshape(len(PARTS), *starts.shape).copy(),
            first=self._first,
            group=group,
            place=places,
            places=kinds,
            bytes=self._bytes(places, len(kinds)),
            post=made.post,
            wait=made.wait,
            bounds=made.bounds,
            transfer=dependent_transfers(
                self._end - np.repeat(last, np.diff(self._first)), self._end - begin
            ),
            alone=self._end - begin,
            before=made.before,
            slot=made.slot,
            slots=np.concatenate(slots),
            before_bounds=made.before_bounds,
        )

    def _limits(self) -> tuple[Ints, Ints]:
        """The first and the last time of each rank, of its calls as of all else, (ranks,) each."""
        spans = [self._timelines[rank].span for rank in self._ranks]
        first, last = (np.array(side, dtype=np.int64) for side in zip(*spans, strict=True))
        np.minimum.at(first, self._rank, self._entry)
        np.maximum.at(last, self._rank, self._end)
        return first, last

    def _fill(
        self,
        made: _Places,
        line: _Line,
        stack: Stack,
        rows: tuple[slice, Ints, NDArray[np.bool_]],
        first_slot: int,
    ) -> Ints:
        """Returns what some ranks have; how many slots each of them does.

        Args:
            made: to fill in.
            line: of these ranks.
            stack: their line.
            rows: their places, their rows rank by rank, and of all rows whether they were queued.
            first_slot: of the first of them.
        """
        part, mine, queued = rows
        rank = self._rank[mine] - part.start
        entry, end = stack.on(rank, self._entry[mine]), stack.on(rank, self._end[mine])
        waited = line.wait(rank, entry, end, queued[mine])
        at = line.needed(rank, end, waited)
        # In the order in which the lines need them: later ones wait at least as long.
        kept = np.flatnonzero(at >= 0)
        order = kept[np.lexsort((end[kept], at[kept]))]
        made.slot[mine[order]] = first_slot + np.arange(len(order))
        slots = np.bincount(rank[order], minlength=part.stop - part.start)
        # Slots of the ranks before do not count.
        others = np.cumsum(slots) - slots
        posted = self._posted(entry, queued[mine])
        made.before[mine] = np.searchsorted(at[order], posted, side="right") - others[rank]
        made.post.put(mine, line.points(rank, posted))
        made.wait.put(mine, line.points(rank, np.where(at >= 0, at, end)))
        steps, ranks = len(self._numbers), len(self._ranks)
        place, step = np.divmod(np.arange(len(slots) * steps), steps)
        for side, edges in enumerate((line.starts, line.ends)):
            there = np.arange(len(edges)) + (side * ranks + part.start) * steps
            made.bounds.put(there, line.in_steps(place, edges, step))
            made.before_bounds[there] = np.searchsorted(at[order], edges, side="right") - others[place]
        return slots

    def _begins(self, group: Ints) -> tuple[Ints, NDArray[np.bool_]]:
        """Returns when each member started its part, and if it was queued behind the previous call."""
        left: dict[int, Ints] = {}
        begin, queued = self._entry.copy(), np.zeros(len(self._entry), dtype=np.bool_)
        for item in range(len(self._items)):
            rows = slice(int(self._first[item]), int(self._first[item + 1]))
            ranks, entry = self._rank[rows], self._entry[rows]
            known = left.setdefault(int(group[item]), np.full(len(self._ranks), np.iinfo(np.int64).min // 2))
            gap = entry - known[ranks]
            queued[rows] = (gap >= 0) & (gap <= _BACK_TO_BACK_NS)
            begin[rows] = np.maximum(entry, known[ranks])
            known[ranks] = np.maximum(known[ranks], self._end[rows])
        return begin, queued

    def _posted(self, entry: Ints, queued: NDArray[np.bool_]) -> Ints:
        """Returns when ranks posted their rows, rank by rank: that of the one before where it was queued."""
        if not len(entry):
            return entry
        # A rank's first row is never queued, so that none takes another rank's.
        real = np.where(queued, 0, np.arange(len(entry)))
        return np.asarray(entry[np.maximum.accumulate(real)], dtype=np.int64)

    def _bounds(self) -> tuple[Ints, Ints]:
        numbers = np.array(self._numbers, dtype=np.int64)
        starts = np.array([self._timelines[rank].starts.at(numbers) for rank in self._ranks])
        ends = np.array([self._timelines[rank].ends.at(numbers) for rank in self._ranks])
        return starts, ends

    def _places(self) -> tuple[Ints, tuple[tuple[str, int, str], ...]]:
        """Each collective's place: the n-th of its group in its step."""
        count: dict[tuple[int, str], int] = {}
        known: dict[tuple[str, int, str], int] = {}
        found = []
        for item in self._items:
            step, group, _ = item.key
            number = count.get((step, group), 0)
            count[(step, group)] = number + 1
            found.append(known.setdefault((group, number, item.op), len(known)))
        return np.array(found, dtype=np.int64), tuple(known)

    def _bytes(self, places: Ints, count: int) -> Ints:
        sizes = np.full(count, -1, dtype=np.int64)
        known = np.array([-1 if item.bytes is None else item.bytes for item in self._items], dtype=np.int64)
        np.maximum.at(sizes, places, known)
        return sizes


def dependent_transfers(after_last: Ints, alone: Ints) -> Ints:
    """Returns the time from the last member's start to each end, 0 where a long call ends just before it."""
    waited = (after_last < 0) & (-after_last <= _JUST_BEFORE * alone)
    return np.where(waited, 0, after_last)


def _joined(parts: Sequence[NDArray[np.int64]]) -> Ints:
    return np.concatenate([np.empty(0, dtype=np.int64), *parts]).astype(np.int64)
