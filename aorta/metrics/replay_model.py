"""The ranks' main lines between collectives, as `aorta.metrics.replay` runs through them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from aorta.intervals import EMPTY, Intervals, subtract
from aorta.metrics.collectives import Collectives, Matched, Timeline
from aorta.metrics.cover import Cover
from aorta.metrics.rows import rows_of
from aorta.metrics.steady import consecutive

Part = Literal["data_loading", "compute", "host"]
PARTS: tuple[Part, ...] = ("data_loading", "compute", "host")
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_BACK_TO_BACK_NS = 20_000
"""A call that starts within this time of the previous one's end was queued behind it: when it was posted is
not in the records, and the previous one's post stands for it."""
_MOST_ROWS = 2_000_000
"""Members of collectives that are replayed; of more, the last steps are."""


@dataclass(frozen=True, slots=True, eq=False)
class Replayed:
    """Times of the steps, ns, each (ranks, steps)."""

    start: Floats
    end: Floats

    def step_ns(self) -> Floats:
        """Means over ranks, (steps,): from each step's start to the next one's; the last to its end."""
        spans = np.append(self.start[:, 1:], self.end[:, -1:], axis=1) - self.start
        return np.asarray(spans.mean(axis=0), dtype=np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class Points:
    """Places on the main lines, one a row."""

    rank: Ints
    step: Ints
    own: Ints
    """The rank's own time before it since its first step's start, ns."""
    parts: Ints
    """Of the part of it that lies in its step: (rows, PARTS), ns."""


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """An unbroken run of steps. Rows are members of collectives, in the order of the collectives."""

    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    measured: Replayed
    totals: Ints
    """(PARTS, ranks, steps), ns."""
    first: Ints
    """The first row of each collective, and the end of the last."""
    group: Ints
    """Of each collective."""
    place: Ints
    """Of each collective in its step, by group and number."""
    places: tuple[tuple[str, int, str], ...]
    """Group, place within the group's calls of a step, and operation, of each place."""
    bytes: Ints
    """The largest that a member brought, of each place; -1: not recorded."""
    post: Points
    wait: Points
    bounds: Points
    """Starts, then ends of steps."""
    transfer: Ints
    """From the last member's start to the end on this one, ns; negative: it did not depend on it."""
    alone: Ints
    """From the member's own start to its end, ns."""
    before: Ints
    """How many waits lie before the post on its rank's line."""
    slot: Ints
    """The row's place among the places where ranks need calls to be over; -1: it is not known."""
    slots: Ints
    """The first slot of each rank, and the end of the last."""
    before_bounds: Ints

    @property
    def place_of_row(self) -> Ints:
        """Place of each row's collective."""
        return np.repeat(self.place, np.diff(self.first))


def build(collectives: Collectives, steady: Sequence[int]) -> list[Model]:
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
    """One rank's main line: its own time and its parts at any time."""

    def __init__(self, timeline: Timeline, starts: Ints, ends: Ints, blocked: Intervals) -> None:
        self._covers = [Cover(timeline.data), Cover(timeline.compute)]
        self._blocked, self._starts, self._ends = Cover(blocked), starts, ends

    def points(self, rank: int, times: Ints) -> Points:
        """The places that it reached at `times`."""
        step = np.maximum(np.searchsorted(self._starts, times, side="right") - 1, 0)
        return self.in_steps(rank, times, step)

    def in_steps(self, rank: int, times: Ints, step: Ints) -> Points:
        """Likewise, where the steps are known."""
        since = self._starts[step]
        inside = np.clip(times, since, self._ends[step])
        data, compute = (cover.before(inside) - cover.before(since) for cover in self._covers)
        host = self._own(inside) - self._own(since) - data - compute
        return Points(
            rank=np.full(len(times), rank, dtype=np.int64),
            step=step,
            own=self._own(times) - self._own(self._starts[:1]),
            parts=np.stack((data, compute, host), axis=1),
        )

    def _own(self, times: Ints) -> Ints:
        return np.asarray(times - self._blocked.before(times), dtype=np.int64)


class _Builder:
    """Rows by rank, where the line of each is needed, put back into the order of the collectives."""

    def __init__(
        self, timelines: Mapping[int, Timeline], numbers: tuple[int, ...], items: Sequence[Matched]
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

    def model(self) -> Model:
        names = sorted({item.key[1] for item in self._items})
        group = np.array([names.index(item.key[1]) for item in self._items], dtype=np.int64)
        begin, queued = self._begins(group)
        last = np.maximum.reduceat(begin, self._first[:-1]) if len(self._items) else begin
        starts, ends = self._bounds()
        rows = len(self._rank)
        before, slot = np.zeros(rows, dtype=np.int64), np.full(rows, -1, dtype=np.int64)
        posts, waits, bounds, slots, before_bounds, origin = [], [], [], [0], [], []
        by_place = rows_of(self._rank, len(self._ranks))
        for place, rank in enumerate(self._ranks):
            mine = by_place[place]
            origin.append(mine)
            timeline = self._timelines[rank]
            waited, blocked = _waits(
                timeline, self._entry[mine], self._end[mine], queued[mine], starts[place, 0]
            )
            line = _Line(timeline, starts[place], ends[place], blocked)
            at = _needed(self._end[mine], waited, ends[place])
            # In the order in which the line needs them: later ones wait at least as long.
            kept = np.flatnonzero(at >= 0)
            order = kept[np.lexsort((self._end[mine][kept], at[kept]))]
            slot[mine[order]] = slots[-1] + np.arange(len(order))
            slots.append(slots[-1] + len(order))
            ended = at[order]
            posted = self._posted(mine, queued)
            before[mine] = np.searchsorted(ended, posted, side="right")
            posts.append(line.points(place, posted))
            waits.append(line.points(place, np.where(at >= 0, at, self._end[mine])))
            steps = np.arange(len(self._numbers))
            bounds.append(
                (line.in_steps(place, starts[place], steps), line.in_steps(place, ends[place], steps))
            )
            before_bounds.append([np.searchsorted(ended, at[place], side="right") for at in (starts, ends)])
        back = np.argsort(_joined(origin), kind="stable")
        places, kinds = self._places()
        return Model(
            ranks=self._ranks,
            steps=self._numbers,
            measured=Replayed(starts.astype(np.float64), ends.astype(np.float64)),
            totals=self._totals([pair[1] for pair in bounds]),
            first=self._first,
            group=group,
            place=places,
            places=kinds,
            bytes=self._bytes(places, len(kinds)),
            post=_take(_concatenate(posts), back),
            wait=_take(_concatenate(waits), back),
            bounds=_concatenate([pair[side] for side in (0, 1) for pair in bounds]),
            transfer=self._end - np.repeat(last, np.diff(self._first)),
            alone=self._end - begin,
            before=before,
            slot=slot,
            slots=np.array(slots, dtype=np.int64),
            before_bounds=_joined([pair[side] for side in (0, 1) for pair in before_bounds]),
        )

    def _begins(self, group: Ints) -> tuple[Ints, NDArray[np.bool_]]:
        """When each member started its part, and whether it was queued behind the group's previous call."""
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

    def _posted(self, mine: Ints, queued: NDArray[np.bool_]) -> Ints:
        """When the rank posted each of its rows: that of the one before where it was queued."""
        entry = self._entry[mine]
        if not len(mine):
            return entry
        real = np.where(queued[mine], 0, np.arange(len(mine)))
        return np.asarray(entry[np.maximum.accumulate(real)], dtype=np.int64)

    def _bounds(self) -> tuple[Ints, Ints]:
        numbers = np.array(self._numbers, dtype=np.int64)
        starts = np.array([self._timelines[rank].starts.at(numbers) for rank in self._ranks])
        ends = np.array([self._timelines[rank].ends.at(numbers) for rank in self._ranks])
        return starts, ends

    def _totals(self, ends: Sequence[Points]) -> Ints:
        return np.stack([points.parts.T for points in ends], axis=1)

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


def _waits(
    timeline: Timeline, entry: Ints, end: Ints, queued: NDArray[np.bool_], origin: int
) -> tuple[NDArray[np.bool_], Intervals]:
    """Which calls of a rank its main line waited for, and when it did.

    Exposed communication before the rank's last sign of life (a post, or the end of a wait) is not waiting.
    """
    exposed = subtract(timeline.communication, timeline.compute)
    if not len(exposed) or not len(end):
        return np.zeros(len(end), dtype=np.bool_), EMPTY
    place = np.searchsorted(exposed[:, 0], end, side="left") - 1
    waited = (place >= 0) & (end <= exposed[np.maximum(place, 0), 1]) & (end > origin)
    signs = np.unique(np.concatenate((entry[~queued], end[waited])))
    last = np.searchsorted(signs, end, side="left") - 1
    sign = np.where(last >= 0, signs[np.maximum(last, 0)], np.iinfo(np.int64).min)
    since = np.maximum(np.maximum(exposed[np.maximum(place, 0), 0], sign), origin)
    blocked = np.stack((since, end), axis=1)[waited]
    return waited, blocked[np.argsort(blocked[:, 0], kind="stable")]


def _needed(end: Ints, waited: NDArray[np.bool_], step_ends: Ints) -> Ints:
    """When a rank's main line needs each call to be over; -1: it ended beyond its step, and nobody tells.

    A hidden call is needed where the line waits next, or by the end of the step.
    """
    at = np.where(waited, end, -1)
    step = np.searchsorted(step_ends, end, side="left")
    hidden = ~waited & (step < len(step_ends))
    limit = step_ends[np.minimum(step, len(step_ends) - 1)]
    stops = np.sort(end[waited])
    if len(stops):
        place = np.searchsorted(stops, end, side="left")
        following = np.where(place < len(stops), stops[np.minimum(place, len(stops) - 1)], limit)
        limit = np.minimum(limit, following)
    at[hidden] = limit[hidden]
    return np.asarray(at, dtype=np.int64)


def _joined(parts: Sequence[NDArray[np.int64]]) -> Ints:
    return np.concatenate([np.empty(0, dtype=np.int64), *parts]).astype(np.int64)


def _concatenate(parts: Sequence[Points]) -> Points:
    return Points(
        rank=np.concatenate([part.rank for part in parts]),
        step=np.concatenate([part.step for part in parts]),
        own=np.concatenate([part.own for part in parts]),
        parts=np.concatenate([part.parts for part in parts]),
    )


def _take(points: Points, order: Ints) -> Points:
    return Points(points.rank[order], points.step[order], points.own[order], points.parts[order])
