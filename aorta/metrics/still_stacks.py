"""Finds who holds a job up that stands still, from one stack per rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from aorta.metrics.stacks import Frame, Stack, is_loading, is_waiting, line_of, without_ours

_CALLS = ("torch/distributed/distributed_c10d.py", "torch/distributed/_functional_collectives.py")
_ENGINE = "_engine_run_backward"
"""Function in which a rank waits that exchanges gradients in its backward pass, as DDP and FSDP do."""
_PRIVATE = ("wrapper", "wait", "synchronize", "__exit__", "__call__")


@dataclass(frozen=True, slots=True)
class StillRank:
    """Tells where one rank stands."""

    rank: int
    kind: str
    """A kind as in `artefacts.hang.Hang.kind`; `waiting` for a rank that waits for others."""
    call: str | None
    """The collective that it is in. None if there is none, or if its stack does not show it."""
    line: Frame
    """Its own line of the program, otherwise the innermost one."""


def still_ranks(stacks: Mapping[int, Stack]) -> dict[int, StillRank]:
    """Returns where each rank stands, and which of them hold the others up.

    A rank that is in no call of torch's distributed code did not come to the call that the others are in. If
    every rank is in such a call, the ranks that are in another one than most are the cause.
    """
    bare = {rank: without_ours(stack) for rank, stack in stacks.items()}
    found = {rank: _of(rank, stack) for rank, stack in bare.items()}
    if any(item.kind != "waiting" for item in found.values()):
        return found
    odd = _others_than_most({rank: place for rank, stack in bare.items() if (place := _waits_in(stack))})
    return {
        rank: StillRank(rank, "other_collective" if rank in odd else "waiting", item.call, item.line)
        for rank, item in found.items()
    }


def _of(rank: int, stack: Stack) -> StillRank:
    line = line_of(stack)
    if is_loading(stack):
        return StillRank(rank, "loader_stuck", None, line)
    if is_waiting(stack):
        return StillRank(rank, "waiting", _call(stack), line)
    return StillRank(rank, "host_stuck", None, line)


def _call(stack: Stack) -> str | None:
    """The outermost function of torch's interface to collectives in the stack."""
    for function, file, _ in stack:
        name = function.rsplit(".", 1)[-1]
        if file.endswith(_CALLS) and name not in _PRIVATE:
            return name
    return None


def _waits_in(stack: Stack) -> str | None:
    return _call(stack) or (_ENGINE if stack[-1][0] == _ENGINE else None)


def _others_than_most(places: Mapping[int, str]) -> set[int]:
    """The ranks whose call differs from that of most; all of them where there is no majority."""
    counts = Counter(places.values())
    if len(counts) < 2:
        return set()
    (usual, most), (_, second) = counts.most_common(2)
    return {rank for rank, place in places.items() if most == second or place != usual}
