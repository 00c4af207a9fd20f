"""Steps replayed from what each rank did between collectives: what a step takes if something were gone.

A rank's main line is its own work, in order, with two kinds of points on it. Where it comes to a collective
it *posts* it. If exposed communication ends with a collective, the rank *waited* for that collective. If it
ends because the rank continues computing, it delayed no rank and counts as the rank's own time. A hidden
collective is needed where the rank waits next, or by the end of the step, so that it can become exposed. A
collective starts on a member when it is posted and the group's previous collective has left that member.
Transfers begin when the last member has started. Each member's transfer takes its measured time. A call that
ended on a member before the last one came, as a broadcast's root may, depends on that member alone.

Steps follow one another on every rank's timeline, as in the run. Time gained at one place is therefore lost
again if the rank waits for the next-slowest rank. Hidden communication becomes exposed if less compute is
left to hide it. A run of steps without a break starts with the measured starts.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec import Struct, field

from aorta.metrics.replay_model import PARTS, Floats, Part, Points, Replayed, ReplayModel


class Removal(Struct, frozen=True):
    """The work to take away: shares of each rank's own time in each step, and of transfers."""

    shares: Mapping[Part, Floats] = field(default_factory=dict)
    """Shares of each part, (ranks, steps): 1 takes it all away, a negative share adds to it."""
    transfer: Floats | float = 1.0
    """Factor of each transfer: one number, or one for each place of a call in its step."""


def replay(model: ReplayModel, removal: Removal | None = None) -> Replayed:
    """The steps without what `removal` takes away; without one, as the model has them."""
    removal = removal or Removal()
    gone = _Gone(model, removal.shares)
    post, wait, bounds = (gone.left(points) for points in (model.post, model.wait, model.bounds))
    factor = np.broadcast_to(np.asarray(removal.transfer, dtype=np.float64), (len(model.places),))
    transfer = np.where(model.transfer >= 0, model.transfer * factor[model.place_of_row], 0.0)
    held = _walk(model, post, wait, transfer)
    count = len(model.ranks)
    reached = _reached(model, held)
    at = model.slots[model.bounds.rank] + model.bounds.rank + model.before_bounds
    times = bounds + reached[at] + np.tile(model.measured.start[:, 0].repeat(len(model.steps)), 2)
    start, end = times.reshape(2, count, len(model.steps))
    return Replayed(start, end)


def _walk(model: ReplayModel, post: Floats, wait: Floats, transfer: Floats) -> Floats:
    """Returns how long each rank had been held up in all when each of its waits ended, ns, by slot."""
    origin = model.measured.start[:, 0]
    held = np.full(int(model.slots[-1]), -np.inf)
    delay, done = np.zeros(len(model.ranks)), np.zeros(len(model.ranks), dtype=np.int64)
    left: dict[int, Floats] = {}
    for item in range(len(model.group)):
        rows = slice(int(model.first[item]), int(model.first[item + 1]))
        ranks = model.post.rank[rows]
        while True:
            behind = ranks[done[ranks] < model.before[rows]]
            if not len(behind):
                break
            delay[behind] = np.maximum(delay[behind], held[model.slots[behind] + done[behind]])
            done[behind] += 1
        group = int(model.group[item])
        if group not in left:
            left[group] = np.full(len(model.ranks), -np.inf)
        begin = np.maximum(origin[ranks] + post[rows] + delay[ranks], left[group][ranks])
        end = np.where(model.transfer[rows] >= 0, begin.max() + transfer[rows], begin + model.alone[rows])
        left[group][ranks] = np.maximum(left[group][ranks], end)
        slot = model.slot[rows]
        waited = slot >= 0
        held[slot[waited]] = (end - origin[ranks] - wait[rows])[waited]
    return held


def _reached(model: ReplayModel, held: Floats) -> Floats:
    """The hold-up of each rank before its first wait (0) and after each, one row more a rank than `held`."""
    out = np.zeros(len(held) + len(model.ranks))
    for rank in range(len(model.ranks)):
        a, b = int(model.slots[rank]), int(model.slots[rank + 1])
        out[a + rank + 1 : b + rank + 1] = np.maximum(np.maximum.accumulate(held[a:b]), 0.0)
    return out


class _Gone:
    """Tells how much of a rank's own time before a place is taken away."""

    def __init__(self, model: ReplayModel, shares: Mapping[Part, Floats]) -> None:
        shape = (len(model.ranks), len(model.steps))
        self._shares = [np.broadcast_to(shares.get(part, np.zeros(1)), shape) for part in PARTS]
        step = sum(
            (share * total for share, total in zip(self._shares, model.totals, strict=True)), np.zeros(shape)
        )
        self._before = np.cumsum(step, axis=1) - step

    def left(self, points: Points) -> Floats:
        """The own time that is left before each place, ns."""
        gone = self._before[points.rank, points.step]
        for index, share in enumerate(self._shares):
            gone = gone + share[points.rank, points.step] * points.parts[:, index]
        return np.asarray(points.own - gone, dtype=np.float64)
