"""Finds which schedule a pipeline follows, and the share of its time in which ranks do not compute."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from aorta.artefacts.operations import COMPUTE, OperationRole, Operations
from aorta.intervals import length, union

Mask = NDArray[np.bool_]

_LETTERS = {int(OperationRole.FORWARD): "F", int(OperationRole.BACKWARD): "B", int(OperationRole.WEIGHT): "W"}
_COMPUTE = [int(role) for role in COMPUTE]


class Schedule(Struct, frozen=True):
    """Tells how a pipeline runs its microbatches."""

    name: str
    """`gpipe`, `1f1b`, `interleaved`, `zero_bubble` or `unknown`."""
    stages: int
    microbatches: int
    chunks: int
    """Model chunks per rank."""
    bubble: float
    """Share of the pipeline's time in which a rank does not compute, mean over ranks and steps."""
    by_stage: dict[int, float]

    @property
    def ideal(self) -> float | None:
        """The same share with equal stages and microbatches and no communication. None if not known."""
        p, m = self.stages, self.microbatches
        if self.name in ("gpipe", "1f1b"):
            return (p - 1) / (m + p - 1)
        if self.name == "interleaved":
            return (p - 1) / (self.chunks * m + p - 1)
        return None


def schedule_of(job: Operations) -> Schedule | None:
    """Returns the schedule of the first step that all ranks have. None if there is no pipeline."""
    stages = job.stages
    role = job.role
    work = np.isin(role, _COMPUTE)
    if stages < 2 or not work.any():
        return None
    step = int(job.step[work][0])
    orders = {
        int(rank): _letters(job, work & (job.rank == rank) & (job.step == step))
        for rank in np.unique(job.rank)
    }
    stage_of = {int(rank): int(job.stage[job.rank == rank][0]) for rank in orders}
    chunks = max(_chunks(job), 1)
    forwards = max(order.count("F") for order in orders.values())
    microbatches = forwards // chunks
    bubble, by_stage = _bubbles(job, work)
    name = "unknown"
    if microbatches:
        name = _name({stage_of[rank]: order for rank, order in orders.items()}, stages, microbatches, chunks)
    return Schedule(name, stages, microbatches, chunks, bubble, by_stage)


def _chunks(job: Operations) -> int:
    known = job.chunk[job.chunk >= 0]
    return max(job.sizes.virtual or 1, int(known.max(initial=0)) + 1)


def _letters(job: Operations, mine: Mask) -> str:
    rows = np.flatnonzero(mine)
    order = rows[np.argsort(job.start[rows], kind="stable")]
    return "".join(_LETTERS[role] for role in job.role[order].tolist())


def _name(orders: dict[int, str], stages: int, microbatches: int, chunks: int) -> str:
    if any("W" in order for order in orders.values()):
        # The first stage of the model has no gradient of an input to compute.
        each = chunks * microbatches
        counts = [(order.count("F"), max(order.count("B"), order.count("W"))) for order in orders.values()]
        return "zero_bubble" if all(count == (each, each) for count in counts) else "unknown"
    whole = {"F": chunks * microbatches, "B": chunks * microbatches}
    if any(order.count(letter) != count for order in orders.values() for letter, count in whole.items()):
        return "unknown"
    if chunks > 1:
        return "interleaved" if all(_alternates(order) for order in orders.values()) else "unknown"
    if all(order == "F" * microbatches + "B" * microbatches for order in orders.values()):
        return "gpipe"
    if all(_one_forward_one_backward(order, stages - stage, microbatches) for stage, order in orders.items()):
        return "1f1b"
    return "unknown"


def _one_forward_one_backward(order: str, left: int, microbatches: int) -> bool:
    """Returns True if a stage with `left` stages from it on warms up, alternates and drains."""
    warm = [min(count, microbatches) for count in (left - 1, left)]
    return any(
        order == "F" * count + "FB" * (microbatches - count) + "B" * count
        or order == "F" * count + "BF" * (microbatches - count) + "B" * count
        for count in warm
    )


def _alternates(order: str) -> bool:
    """Returns True if a rank warms up with forwards, alternates, and drains with backwards."""
    inner = order.lstrip("F").rstrip("B")
    return all(a != b for a, b in pairwise(inner))


def _bubbles(job: Operations, work: Mask) -> tuple[float, dict[int, float]]:
    shares: dict[int, list[float]] = {}
    for replica in np.unique(job.replica).tolist():
        for step in np.unique(job.step).tolist():
            mine = work & (job.replica == replica) & (job.step == step)
            if not mine.any():
                continue
            first, last = int(job.start[mine].min()), int(job.end[mine].max())
            for rank in np.unique(job.rank[mine]).tolist():
                rows = mine & (job.rank == rank)
                busy = length(union(np.stack((job.start[rows], job.end[rows]), axis=1)))
                stage = int(job.stage[rows][0])
                shares.setdefault(stage, []).append(1 - busy / max(last - first, 1))
    every: Sequence[float] = [share for found in shares.values() for share in found]
    means = {stage: float(np.mean(found)) for stage, found in sorted(shares.items())}
    return float(np.mean(every)), means
