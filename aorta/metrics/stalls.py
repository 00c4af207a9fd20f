"""Steps, and gaps between steps, that took many times as long as the others."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from aorta.artefacts.range_columns import ABSENT
from aorta.artefacts.step_columns import StepColumns
from aorta.artefacts.stops import Standing, Stop

TIMES = 10.0
"""A step or gap is a stall if it takes at least this many times the median step."""
FEWEST = 8
"""Fewest steps of a rank from which its median shows what is usual."""
_FIRST = 2
"""Steps at the start that are left out: there programs compile and connect."""
_MOST_SHARE = 0.05
"""Largest share of the steps: what is more frequent is part of the program, such as saving weights."""
_ALIKE = 0.5
"""Ranks that lost this share of what the worst one lost stood still as well."""

_Where = Literal["step", "between"]


@dataclass(frozen=True, slots=True)
class Stall:
    """The time that ranks stood still, and the longest piece of it."""

    where: _Where
    step: int
    """The global step; of a gap, the step before it."""
    ranks: tuple[int, ...]
    waiting: bool
    """All of them waited in communication then, so it is not known which rank stood still."""
    seconds: float
    """Length of the longest piece, as the worst rank measured it."""
    share: float
    """Share of all pieces in the worst rank's measured time (0 to 1)."""
    pieces: int
    cost_ms: float
    """Mean per step of the worst rank."""
    state: Standing | None = None
    """The kernel's state of the processes of `ranks` then. None if they could run, or if this was not
    recorded.
    """


@dataclass(frozen=True, slots=True)
class _Rank:
    numbers: NDArray[np.int64]
    length: NDArray[np.int64]
    """Length of each step, in ns."""
    own: NDArray[np.int64]
    """Length of each step without its exposed communication, where that is known."""
    gap: NDArray[np.int64]
    """Time in ns behind each step, except the last."""
    span: int


def longest_stall(
    by_rank: Mapping[int, StepColumns], stops: Sequence[Stop] = (), but: Container[int] = ()
) -> Stall | None:
    """Returns where a run stood still; None where it did not, or where too few steps tell.

    Steps of every phase count: a rank can stand still in any of them.

    Args:
        by_rank: the steps of each rank.
        stops: when ranks' processes could not run, on the wall clocks of their nodes. They tell who stood
            still where all ranks waited.
        but: steps that do not count, nor the gaps behind them: a profiler holds the program up in them.
    """
    ranks = {rank: _of(steps) for rank, steps in by_rank.items() if len(steps) >= FEWEST}
    for waiting in (False, True):
        found = {rank: _lost(item, waiting, but) for rank, item in ranks.items()}
        worst = max(found, key=lambda rank: int(found[rank][1].sum()), default=None)
        if worst is not None and found[worst][1].any():
            return _with_state(_stall(ranks, found, worst, waiting), by_rank, stops)
    return None


def _with_state(stall: Stall, by_rank: Mapping[int, StepColumns], stops: Sequence[Stop]) -> Stall:
    """Returns the stall with the ranks alone whose process could not run for most of it, if any."""
    guilty: dict[int, Standing] = {}
    for stop in stops:
        window = _window(by_rank[stop.rank], stall) if stop.rank in by_rank else None
        if window is not None:
            shared_ns = min(stop.to_wall_ns, window[1]) - max(stop.from_wall_ns, window[0])
            if shared_ns >= _ALIKE * 1e9 * stall.seconds:
                guilty[stop.rank] = stop.state
    if not guilty:
        return stall
    ranks = tuple(sorted(guilty))
    return replace(stall, ranks=ranks, waiting=False, state=guilty[ranks[0]])


def _window(steps: StepColumns, stall: Stall) -> tuple[int, int] | None:
    """Returns [start, end) of the stall on a rank, on its wall clock. None if the rank has no such step."""
    start, end = steps.column("wall_start_ns"), steps.column("wall_end_ns")
    (places,) = np.nonzero(steps.column("global_step") == stall.step)
    if not len(places):
        return None
    place = int(places[0])
    if stall.where == "step":
        return int(start[place]), int(end[place])
    return (int(end[place]), int(start[place + 1])) if place + 1 < len(start) else None


def _of(steps: StepColumns) -> _Rank:
    start, end = steps.column("mono_start_ns"), steps.column("mono_end_ns")
    comm = steps.column("exposed_comm_ns")
    length = end - start
    own = length - np.where(comm == ABSENT, 0, comm)
    return _Rank(steps.column("global_step"), length, own, start[1:] - end[:-1], int(end[-1] - start[0]))


def _lost(rank: _Rank, waiting: bool, but: Container[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the length of each step and gap, and what of it is a stall (0: none): steps first."""
    usual = float(np.median(rank.length))
    steps = rank.length if waiting else rank.own
    every = np.concatenate([steps, rank.gap])
    stalls = every > TIMES * usual
    stalls[:_FIRST] = False
    stalls[len(steps) : len(steps) + _FIRST - 1] = False
    held_up = np.array([step in but for step in rank.numbers.tolist()], dtype=np.bool_)
    stalls[np.concatenate([held_up, held_up[: len(rank.gap)]])] = False
    if stalls.sum() > max(1.0, _MOST_SHARE * len(steps)):
        stalls[:] = False
    return every, np.where(stalls, every - int(usual), 0)


def _stall(
    ranks: Mapping[int, _Rank],
    found: Mapping[int, tuple[NDArray[np.int64], NDArray[np.int64]]],
    worst: int,
    waiting: bool,
) -> Stall:
    every, lost = found[worst]
    place, item = int(np.argmax(lost)), ranks[worst]
    where: _Where = "step" if place < len(item.length) else "between"
    step = int(item.numbers[place if where == "step" else place - len(item.length)])
    alike = [
        rank
        for rank, (_, others) in found.items()
        if _at(ranks[rank], others, where, step) >= _ALIKE * int(lost[place])
    ]
    return Stall(
        where=where,
        step=step,
        ranks=tuple(sorted(alike)),
        waiting=waiting,
        seconds=int(every[place]) / 1e9,
        share=float(every[lost > 0].sum()) / item.span,
        pieces=int((lost > 0).sum()),
        cost_ms=float(lost.sum()) / 1e6 / len(item.length),
    )


def _at(rank: _Rank, lost: NDArray[np.int64], where: _Where, step: int) -> int:
    (places,) = np.nonzero(rank.numbers == step)
    if not len(places) or (where == "between" and places[0] >= len(rank.gap)):
        return 0
    return int(lost[places[0] + (len(rank.length) if where == "between" else 0)])
