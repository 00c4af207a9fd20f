"""Meshes of ranks, simulated: each rank does its operations in order. Every time follows from a few numbers.

Computation and communication run on a GPU's own streams. A receive and a collective hold the computation
after them up, a send does not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Op:
    """One operation of a rank; times are µs."""

    kind: str
    """`F`, `B` or `W` (passes), `send`, `recv`, `batch` or the name of a collective."""
    took: float = 0.0
    """Computation, or the transfer once all sides are there."""
    peer: int = -1
    group: str = ""
    ranks: tuple[int, ...] = ()
    size: int = 1 << 20
    """Bytes."""
    sizes: tuple[int, ...] = ()
    """Bytes to each peer of an all-to-all."""
    calls: tuple[Op, ...] = ()
    """Sends and receives of a batch."""
    label: str = ""
    """Name of a pass, in the host's ranges."""
    hidden: bool = False
    """A collective that holds nothing up: what is computed next runs beside it."""


@dataclass(slots=True)
class Done:
    """An operation of a step, and when it ran."""

    op: Op
    step: int
    begin: float
    end: float = -1.0


@dataclass(slots=True)
class _Rank:
    free: float = 0.0
    busy: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Each communication stream is busy until then."""
    at: int = 0
    waits: Done | None = None
    done: list[Done] = field(default_factory=list)


Key = tuple[object, ...]


class _Meetings:
    """The sides of each transfer that have come so far."""

    def __init__(self) -> None:
        self._count: dict[Key, int] = defaultdict(int)
        self.sides: dict[Key, dict[int, float]] = defaultdict(dict)

    def come(self, rank: int, key: Key, begin: float) -> Key:
        """Enter the next transfer of a key, and return its name."""
        number = self._count[rank, key]
        self._count[rank, key] += 1
        self.sides[key, number][rank] = begin
        return key, number


def simulate(program: dict[int, Sequence[Op]], steps: int) -> dict[int, list[Done]]:
    """Returns what each rank did in `steps` steps of its program.

    Args:
        program: of each rank; the ranks must meet.
        steps: how often it is done.
    """
    ranks, meet = {rank: _Rank() for rank in program}, _Meetings()
    open_: dict[int, list[tuple[Done, list[tuple[Key, int, float]]]]] = {rank: [] for rank in program}
    moved = True
    while moved:
        moved = False
        for rank, state in ranks.items():
            moved |= _settle(rank, state, open_[rank], meet)
            while state.waits is None and state.at < steps * len(program[rank]):
                step, place = divmod(state.at, len(program[rank]))
                _begin(rank, state, program[rank][place], step, open_[rank], meet)
                state.at, moved = state.at + 1, True
                _settle(rank, state, open_[rank], meet)
    for rank, state in ranks.items():
        assert state.at == steps * len(program[rank]), f"rank {rank} waits for ever"
        assert all(one.end >= 0 for one in state.done)
    return {rank: state.done for rank, state in ranks.items()}


def _calls(rank: int, op: Op) -> list[tuple[Key, int, float, str]]:
    """Key, sides, transfer and stream of each call of an operation."""
    if op.kind == "batch":
        return [call for one in op.calls for call in _calls(rank, one)]
    if op.kind in ("send", "recv"):
        ends = (rank, op.peer) if op.kind == "send" else (op.peer, rank)
        return [(("p2p", op.group, *ends), 2, op.took, f"{op.group} {op.kind} {op.peer}")]
    return [((op.group, op.ranks), len(op.ranks), op.took, op.group)]


def _begin(
    rank: int,
    state: _Rank,
    op: Op,
    step: int,
    open_: list[tuple[Done, list[tuple[Key, int, float]]]],
    meet: _Meetings,
) -> None:
    if op.kind in "FBW" or op.kind == "work":
        state.done.append(Done(op, step, state.free, state.free + op.took))
        state.free += op.took
        return
    calls = _calls(rank, op)
    begin = max([state.free, *(state.busy[stream] for *_, stream in calls)])
    found = Done(op, step, begin)
    state.done.append(found)
    open_.append((found, [(meet.come(rank, key, begin), sides, took) for key, sides, took, _ in calls]))
    if op.kind != "send" and not op.hidden:
        state.waits = found


def _settle(
    rank: int,
    state: _Rank,
    open_: list[tuple[Done, list[tuple[Key, int, float]]]],
    meet: _Meetings,
) -> bool:
    moved = False
    for item in list(open_):
        found, calls = item
        if all(len(meet.sides[key]) == sides for key, sides, _ in calls):
            found.end = max(max(meet.sides[key].values()) + took for key, _, took in calls)
            for *_, stream in _calls(rank, found.op):
                state.busy[stream] = found.end
            open_.remove(item)
            if found is state.waits:
                state.waits, state.free = None, found.end
            moved = True
    return moved
