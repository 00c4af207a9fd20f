"""Describes what makes a mesh slow: a worker, a replica, a stage, its microbatches, or a link."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from aorta.artefacts.operations import COMPUTE, OperationRole, Operations
from aorta.metrics.operation_graph import MOVES, Floats, Graph, talking
from aorta.metrics.operation_replay import replayed
from aorta.units import NS_PER_MS

Mask = NDArray[np.bool_]

_SUSPECTS = 8
"""Workers, groups or links that are tried one by one: the slowest."""
SLOW_TOGETHER = 0.5
"""Workers are tried together if their excess time is at least this share of the slowest worker's."""
LEAST_EXCESS = 0.05
"""Workers are not slow together if they take less than this share longer than their stage."""


class Cause(Struct, frozen=True):
    """Something that makes a mesh slow, and the step without it."""

    code: str
    """`slow_worker`, `replica_work`, `stage_work`, `uneven_microbatches` or `slow_link`."""
    ranks: tuple[int, ...]
    stages: tuple[int, ...]
    step_ms: float
    """The step without it."""
    share: float
    """M: what it takes of the difference between T and T_ideal."""
    excess: float
    """Extra time of the operations over those that they are compared with: 0.5 is half as long again. For
    microbatches, the standard deviation over the mean."""


def causes_of(graph: Graph, times: tuple[float, float], suspects: Sequence[int]) -> list[Cause]:
    """Returns the causes that gain anything, the costliest first.

    Args:
        graph: the job.
        times: T and T_ideal, ns.
        suspects: the workers, the one with the largest S first.
    """
    job, (now, best) = graph.operations, times
    tried: list[tuple[str, list[int], list[int], float, Floats]] = []
    work = _Work(job, graph.own)
    for rank in suspects[:_SUSPECTS]:
        tried.append(("slow_worker", [rank], [], work.worker_excess(rank), work.without_worker(rank)))
    together = work.slow_together()
    if together:
        whole = [job.replica_ranks(replica) for replica in np.unique(job.replica).tolist()]
        code = "replica_work" if _made_of(together, whole) and job.stages > 1 else "slow_worker"
        tried.append((code, together, [], *work.without_workers(together)))
    for stage in np.unique(job.stage).tolist():
        there = job.workers(stage)
        tried.append(("stage_work", there, [stage], work.stage_excess(stage), work.without_stage(stage)))
    even, spread = work.even_microbatches()
    tried.append(("uneven_microbatches", [], [], spread, even))
    for link, ends, mask in _links(graph):
        tried.append(("slow_link", ends, list(link), *_as_the_others(graph, mask)))
    for ranks, mask in _slow_groups(graph):
        tried.append(("slow_link", ranks, [], *_as_the_others(graph, mask)))
    without = replayed(graph, [item[-1] for item in tried]).tolist()
    found = [
        Cause(
            code, tuple(ranks), tuple(stages), step / NS_PER_MS, (now - step) / max(now - best, 1.0), excess
        )
        for (code, ranks, stages, excess, _), step in zip(tried, without, strict=True)
        if step < now and excess > 0
    ]
    return sorted(found, key=lambda cause: cause.step_ms)


class _Work:
    """Computation split into what is due to its stage, to its worker, and to its microbatch.

    A duration is a product: the mean of its kind, the ratio of its stage to that mean, the ratio of its
    worker to the stage, and the ratio of its microbatch to the worker's mean.
    """

    def __init__(self, job: Operations, own: Floats) -> None:
        self._job, self._own = job, own
        role = job.role
        self._compute = np.isin(role, [int(one) for one in COMPUTE])
        self._of_kind = _means(own, job.kind)
        self._of_stage = _means(own, job.kind * max(job.stages, 1) + job.stage)
        self._of_rank = _means(own, job.kind * (int(job.rank.max(initial=0)) + 1) + job.rank)

    def without_worker(self, rank: int) -> Floats:
        """Returns the times if this stage had as much work as the other stages."""
        mine = (self._job.rank == rank) & self._compute
        return np.where(mine, self._own * self._others(mine) / np.maximum(self._of_rank, 1.0), self._own)

    def worker_excess(self, rank: int) -> float:
        """Returns how much longer the worker takes than the others of its stage."""
        mine = (self._job.rank == rank) & self._compute
        alone = len(self._job.workers(int(self._job.stage[mine][0]))) == 1 if mine.any() else True
        others = float(self._others(mine)[mine].sum())
        return 0.0 if alone or not others else float(self._own[mine].sum()) / others - 1

    def slow_together(self) -> list[int]:
        """Returns the workers that are nearly as slow as the slowest one of all, if there are several.

        Half of the workers of each stage at most: where more are slow, the others are fast.
        """
        job = self._job
        ranks = np.unique(job.rank[self._compute]).tolist()
        if len(ranks) < 4:
            return []
        excess = {rank: self._beside_its_stage(rank) for rank in ranks}
        least = max(SLOW_TOGETHER * max(excess.values()), LEAST_EXCESS)
        slow = [rank for rank in ranks if excess[rank] >= least]
        for stage in np.unique(job.stage).tolist():
            there = job.workers(stage)
            if 2 * len(set(there) & set(slow)) > len(there):
                return []
        return slow if len(slow) > 1 else []

    def _beside_its_stage(self, rank: int) -> float:
        """Returns how much longer a worker takes than its whole stage takes in the mean."""
        mine = (self._job.rank == rank) & self._compute
        return float(self._own[mine].sum()) / max(float(self._of_stage[mine].sum()), 1.0) - 1

    def without_workers(self, ranks: Sequence[int]) -> tuple[float, Floats]:
        """Returns how much longer they take than the others of their stages, and the times without it."""
        job, found = self._job, self._own.copy()
        its, others = 0.0, 0.0
        for stage in np.unique(job.stage).tolist():
            mine = np.isin(job.rank, ranks) & (job.stage == stage) & self._compute
            if mine.any():
                beside = self._others(mine)
                found = np.where(mine, self._own * beside / np.maximum(self._of_rank, 1.0), found)
                its, others = its + float(self._own[mine].sum()), others + float(beside[mine].sum())
        return (its / others - 1 if others else 0.0), found

    def without_stage(self, stage: int) -> Floats:
        """Returns the times if this stage had as much work as the other stages."""
        mine = (self._job.stage == stage) & self._compute
        return np.where(mine, self._own * self._others(mine) / np.maximum(self._of_stage, 1.0), self._own)

    def stage_excess(self, stage: int) -> float:
        """Returns how much longer the stage takes than the others."""
        mine = (self._job.stage == stage) & self._compute
        others = float(self._others(mine)[mine].sum())
        return float(self._own[mine].sum()) / others - 1 if others else 0.0

    def _others(self, mine: Mask) -> Floats:
        """Mean of each row's kind without `mine`, from the same stage if others are there."""
        job, compute = self._job, self._compute
        stages = np.unique(job.stage[mine])
        near = compute & ~mine & np.isin(job.stage, stages)
        chosen = near if near.any() else compute & ~mine
        found = self._of_kind.copy()
        for kind in np.unique(job.kind[mine]):
            there = chosen & (job.kind == kind)
            if there.any():
                found[job.kind == kind] = self._own[there].mean()
        return found

    def even_microbatches(self) -> tuple[Floats, float]:
        """Returns the times with all microbatches of a worker equal, and how unequal they are: the standard
        deviation ÷ mean of the part that a microbatch's forward and backward pass have in common. Noise of
        the machine is not in common.
        """
        job, ratio = self._job, self._own / np.maximum(self._of_rank, 1.0)
        numbers: dict[tuple[int, int, int, int], float] = {}
        pairs: list[tuple[float, float]] = []
        place = _order(job)
        for row in np.flatnonzero(self._compute & (job.role != OperationRole.WEIGHT)).tolist():
            key = int(job.rank[row]), int(job.step[row]), int(job.chunk[row]), int(place[row])
            if key in numbers:
                pairs.append((numbers[key], float(ratio[row])))
            else:
                numbers[key] = float(ratio[row])
        if len(pairs) < 4:
            return self._own, 0.0
        one, other = np.array(pairs).T
        common = float(np.mean((one - one.mean()) * (other - other.mean())))
        spread = math.sqrt(max(common, 0.0))
        return np.where(self._compute, self._of_rank, self._own), spread


def _order(job: Operations) -> Floats:
    """Microbatch of each row; where none is recorded, its place among the rows of its kind in the step."""
    if (job.microbatch[np.isin(job.role, [int(one) for one in COMPUTE])] >= 0).all():
        return job.microbatch.astype(np.float64)
    order = np.lexsort((job.start, job.kind, job.step, job.rank))
    keys = np.stack([column[order] for column in (job.rank, job.step, job.kind)])
    first = np.flatnonzero(np.concatenate(([True], (np.diff(keys, axis=1) != 0).any(axis=0))))
    found = np.empty(len(job))
    found[order] = np.arange(len(job)) - np.repeat(first, np.diff(np.append(first, len(job))))
    return found


def _means(own: Floats, code: NDArray[np.int64]) -> Floats:
    """Mean over the rows with the same code, for each row."""
    _, place = np.unique(code, return_inverse=True)
    place = place.reshape(-1)
    return np.asarray((np.bincount(place, own) / np.bincount(place))[place], dtype=np.float64)


def _as_the_others(graph: Graph, mask: Mask) -> tuple[float, Floats]:
    """Returns how much longer some transfers take than the others of their kinds, and times without it."""
    own, kind = graph.own, graph.operations.kind
    found, longer, others = own.copy(), 0.0, 0.0
    for one in np.unique(kind[mask]):
        mine, rest = mask & (kind == one), ~mask & (kind == one) & ~graph.idle
        if rest.any() and own[mine].mean() > 0:
            found[mine] = own[mine] * min(float(own[rest].mean() / own[mine].mean()), 1.0)
            longer += float(own[mine].sum())
            others += float(own[rest].mean()) * int(mine.sum())
    return (longer / others - 1 if others else 0.0), found


def _slow_groups(graph: Graph) -> list[tuple[list[int], Mask]]:
    """Groups of collectives that have others of their kind to be compared with: the slowest ones first."""
    job = graph.operations
    found: list[tuple[list[int], Mask]] = []
    for ranks, rows in talking(graph).items():
        mask = _mask(job, rows)
        if np.isin(job.kind[~mask], np.unique(job.kind[mask])).any():
            found.append((sorted(ranks), mask))
    found.sort(key=lambda item: -_as_the_others(graph, item[1])[0])
    return found[:_SUSPECTS]


def _links(graph: Graph) -> list[tuple[tuple[int, int], list[int], Mask]]:
    """Returns links that can be compared with others: their stages, their ranks, their sends and receives.

    Links between two stages come first, then the slowest ones between two ranks.
    """
    job = graph.operations
    stage, rank = job.stage.tolist(), job.rank.tolist()
    stages: dict[tuple[int, int], list[int]] = {}
    pairs: dict[tuple[int, int], list[int]] = {}
    for rows in graph.members:
        if len(rows) == 2 and job.roles[job.kind[rows[0]]] in MOVES:
            one, other = sorted(rows, key=lambda row: (stage[row], rank[row]))
            stages.setdefault((stage[one], stage[other]), []).extend(rows)
            pairs.setdefault((rank[one], rank[other]), []).extend(rows)
    found = []
    for link, rows in stages.items() if len(stages) > 1 else ():
        found.append((link, sorted({rank[row] for row in rows}), _mask(job, rows)))
    slowest = sorted(pairs, key=lambda pair: -float(graph.own[pairs[pair]].mean()))[:_SUSPECTS]
    for pair in slowest if len(pairs) > len(stages) else ():
        first = {rank[row]: stage[row] for row in pairs[pair]}
        found.append(((first[pair[0]], first[pair[1]]), list(pair), _mask(job, pairs[pair])))
    return found


def _mask(job: Operations, rows: Sequence[int]) -> Mask:
    mask = np.zeros(len(job), dtype=np.bool_)
    mask[rows] = True
    return mask


def _made_of(ranks: Sequence[int], wholes: Sequence[Sequence[int]]) -> bool:
    """Returns True if some of `wholes` together are exactly these ranks."""
    inside = [rank for whole in wholes if set(whole) <= set(ranks) for rank in whole]
    return sorted(inside) == sorted(ranks)
