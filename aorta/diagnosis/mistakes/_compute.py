"""Differences in compute between ranks, and products of matrices, which several mistakes share."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from aorta.artefacts.hostline import ComputeKind, Tag
from aorta.artefacts.packed import unpack
from aorta.diagnosis.mistake import Mask, Program, RankProgram, Sign
from aorta.metrics.line_replay import Floats, ReplayChanges
from aorta.units import NS_PER_MS

LEAST_EXCESS = 0.1
"""Least compute beyond that of the typical rank, as a share of the step."""
_ALIKE = 0.9
LEAST_READS = 3.0
"""A rank computes statistics if it reads back at least this many more values per step than the typical rank.
"""
_KERNELS_PER_READ = 20
MORE_KERNELS = 1.05
"""A rank runs more kernels than another one if it runs at least this many times as many per step."""


class Differences(Struct, frozen=True):
    """Compute time of ranks, ms per step."""

    by_step: dict[int, Floats]
    """A value per step."""

    @property
    def means(self) -> dict[int, float]:
        """Mean over steps."""
        return {rank: float(column.mean()) for rank, column in self.by_step.items()}

    def typical(self) -> float:
        """The lower median of the ranks."""
        return float(np.percentile(list(self.means.values()), 50, method="lower"))

    def slow(self, program: Program) -> list[int]:
        """The ranks that always compute for longer, where they are fewer than half."""
        typical = self.typical()
        found = [
            rank
            for rank, ms in self.means.items()
            if program.share(ms - typical) >= LEAST_EXCESS and self.by_step[rank].min() > typical
        ]
        return found if 2 * len(found) <= len(self.means) else []


def differences(program: Program) -> Differences:
    """The compute time of all ranks in the steps that all have."""
    common = set.intersection(*(set(item.numbers.tolist()) for item in program.ranks.values()))
    steps = np.array(sorted(common), dtype=np.int64)
    return Differences({rank: _by_step(item, steps) for rank, item in program.ranks.items()})


def _by_step(item: RankProgram, steps: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> Floats:
    took = item.by_step(np.where(item.compute, item.table.gpu_ns / NS_PER_MS, 0.0))
    return took[np.isin(item.numbers, steps)]


def same_kernels(program: Program, rank: int) -> bool:
    """True where a rank runs the kernels, in the launch shapes, that the others run, and no more of them."""
    mine, count = _kernels(program.ranks[rank])
    for other, item in program.ranks.items():
        theirs, their_count = _kernels(item)
        if other == rank:
            continue
        if len(mine & theirs) < _ALIKE * len(mine | theirs) or count >= MORE_KERNELS * their_count:
            return False
    return True


def _kernels(item: RankProgram) -> tuple[set[int], float]:
    """The compute kernels that a rank runs, by kind and shape, and how many per step."""
    return set(unpack(item.line.census.kernels).tolist()), item.count(item.compute)


def reads_values(program: Program, rank: int, kernels: float) -> bool:
    """True if a rank reads a value back for every few of its additional kernels: those are statistics.

    Args:
        program: of all ranks.
        rank: which one launches more.
        kernels: how many more, per step.
    """
    reads = {number: item.count(item.has(Tag.READ_BACK)) for number, item in program.ranks.items()}
    more = reads[rank] - float(np.percentile(list(reads.values()), 50, method="lower"))
    return more >= LEAST_READS and _KERNELS_PER_READ * more >= kernels


def without_beyond(item: RankProgram, typical: float) -> ReplayChanges:
    """The line without the last kernels of each step beyond the typical number, and the work for them."""
    dropped = np.zeros(len(item.table), dtype=np.bool_)
    for step in item.numbers.tolist():
        rows = np.flatnonzero(item.compute & (item.table.step == step))
        dropped[rows[round(typical) :]] = True
    return ReplayChanges(work_ns=np.where(dropped, 0.0, item.work_ns), dropped=dropped)


def products(item: RankProgram) -> Mask:
    """Mask of the products of matrices."""
    return item.launched(ComputeKind.TENSOR_MATMUL, ComputeKind.PLAIN_MATMUL)


def products_of_scores(item: RankProgram) -> Mask:
    """The products that make or read attention scores: one before each softmax and one after it.

    In the backward pass these are two each.
    """
    places, made = np.flatnonzero(products(item)), np.zeros(len(item.table), dtype=np.bool_)
    softmax, backward = np.flatnonzero(item.launched(ComputeKind.SOFTMAX)), item.has(Tag.BACKWARD)
    for row in softmax.tolist():
        place = int(np.searchsorted(places, row))
        many = 2 if backward[row] else 1
        made[places[max(place - many, 0) : place + many]] = True
    return made


def scaled(item: RankProgram, factor: float) -> ReplayChanges:
    """The line with compute kernels that take `factor` of their time."""
    gpu = item.table.gpu_ns.astype(np.float64)
    gpu[item.compute] *= factor
    return ReplayChanges(gpu_ns=gpu)


def longer_computing(program: Program, *, alike: bool, times: float = 1.0) -> Sign | None:
    """Returns the ranks that always compute for longer, as fast as the typical rank. None if there are none.

    Args:
        program: of all ranks.
        alike: whether they run the other ranks' kernels in the same launch shapes.
        times: compute time over the typical rank's, at least.
    """
    if len(program.ranks) < 2:
        return None
    found = differences(program)
    typical = found.typical()
    slow = [rank for rank in found.slow(program) if found.means[rank] >= times * typical]
    ranks = [rank for rank in slow if same_kernels(program, rank) is alike]
    if not ranks:
        return None
    return Sign(
        {rank: scaled(program.ranks[rank], typical / found.means[rank]) for rank in ranks},
        ranks=ranks,
        evidence={"compute_ms_per_step": {str(rank): round(ms, 2) for rank, ms in found.means.items()}},
    )
