"""How much slower a mesh is than with all workers equal, and who or what makes it so.

Definitions are those of *Understanding Stragglers in Large Model Training Using What-if Analysis*,
equations 1 to 5. T is the mean step replayed with the recorded times, and T_ideal the one in which each
operation takes what its kind typically takes (the mean of a computation, the median of a transfer):

- S = T / T_ideal
- S of some operations = the step in which these keep their recorded times and all others are ideal, over
  T_ideal
- M of some operations = (T - the step in which these alone are ideal) / (T - T_ideal)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aorta.artefacts.operations import COMPUTE, OperationRole, Operations
from aorta.metrics.operation_graph import MOVES, Floats, Graph, talking
from aorta.units import NS_PER_MS

Mask = NDArray[np.bool_]

_SUSPECTS = 8
"""Workers that are tried one by one: those with the largest S."""
_AT_ONCE = 128
"""Scenarios that are replayed together."""


def replayed(graph: Graph, own: Sequence[Floats]) -> Floats:
    """Returns the mean step of each scenario, ns.

    Args:
        graph: the job.
        own: of each scenario, the time of each operation, (rows,).
    """
    parts = [own[first : first + _AT_ONCE] for first in range(0, len(own), _AT_ONCE)]
    return np.concatenate([_step_times(graph, part).mean(axis=0) for part in parts])


def _step_times(graph: Graph, own: Sequence[Floats]) -> Floats:
    """Returns the end of each step since its start, ns: (steps, scenarios)."""
    return _replay(graph, np.stack(own, axis=1))


def _replay(graph: Graph, own: Floats) -> Floats:
    end = np.zeros_like(own)
    before = graph.before
    for rows in graph.members:
        begun = None
        for row in rows:
            for source in before[row]:
                begun = end[source] if begun is None else np.maximum(begun, end[source])
        for row in rows:
            end[row] = own[row] if begun is None else begun + own[row]
    step = graph.operations.step
    return np.stack([end[step == one].max(axis=0) for one in np.unique(step)])


def ideal(graph: Graph) -> Floats:
    """Returns what each operation takes if all of its kind are equal: the mean, of transfers the median."""
    found = np.empty_like(graph.own)
    conceptual = graph.shared
    for kind in range(len(graph.operations.kinds)):
        mine = graph.operations.kind == kind
        if mine.any():
            middle = np.median if conceptual[mine].any() else np.mean
            found[mine] = middle(graph.own[mine])
    return found


@dataclass(frozen=True, slots=True)
class Cause:
    """Something that makes a mesh slow, and the step without it."""

    code: str
    """`slow_worker`, `stage_work`, `uneven_microbatches` or `slow_link`."""
    ranks: tuple[int, ...]
    stages: tuple[int, ...]
    step_ms: float
    """The step without it."""
    share: float
    """M: what it takes of the difference between T and T_ideal."""
    excess: float
    """How much longer the operations take than those that they are compared with: 0.5 is half as long again;
    of microbatches the standard deviation over the mean.
    """


@dataclass(frozen=True, slots=True)
class Slowdown:
    """S and its parts."""

    value: float
    step_ms: float
    """T."""
    ideal_ms: float
    by_kind: dict[str, float]
    by_rank: dict[int, float]
    by_stage: dict[int, float]
    by_step: dict[int, float]
    worker_share: float | None
    """M_W: of the slowest 3 % of the workers; None where all are equal."""
    stage_share: float | None
    """M_S: of the last stage."""
    causes: list[Cause]
    """The one that gains most first."""


def slowdown(graph: Graph) -> Slowdown:
    """Returns S, whom it is due to, and the causes that gain anything."""
    job, own, equal = graph.operations, graph.own, ideal(graph)
    ranks, stages = (np.unique(column).tolist() for column in (job.rank, job.stage))
    kinds = list(range(len(job.kinds)))
    masks = [job.kind == kind for kind in kinds]
    masks += [job.rank == rank for rank in ranks] + [job.stage == stage for stage in stages]
    times = replayed(graph, [own, equal, *(np.where(mask, own, equal) for mask in masks)])
    now, best, parts = float(times[0]), float(times[1]), (times[2:] / times[1]).tolist()
    by_rank = dict(zip(ranks, parts[len(kinds) : len(kinds) + len(ranks)], strict=True))
    slowest = sorted(by_rank, key=lambda rank: -by_rank[rank])[: math.ceil(len(ranks) * 0.03)]
    shares = replayed(
        graph,
        [
            np.where(np.isin(job.rank, slowest), equal, own),
            np.where(job.stage == stages[-1], equal, own),
        ],
    )
    lost = now - best
    suspects = sorted(by_rank, key=lambda rank: -by_rank[rank])[:_SUSPECTS]
    causes = _causes(graph, (now, best), suspects)
    return Slowdown(
        value=now / best,
        step_ms=now / NS_PER_MS,
        ideal_ms=best / NS_PER_MS,
        by_kind=dict(zip(job.kinds, parts[: len(kinds)], strict=True)),
        by_rank=by_rank,
        by_stage=dict(zip(stages, parts[len(kinds) + len(ranks) :], strict=True)),
        by_step=_by_step(graph, own, equal),
        worker_share=(now - float(shares[0])) / lost if lost > 0 else None,
        stage_share=(now - float(shares[1])) / lost if lost > 0 and len(stages) > 1 else None,
        causes=causes,
    )


def _by_step(graph: Graph, own: Floats, equal: Floats) -> dict[int, float]:
    step = graph.operations.step
    return {
        int(one): float(mine / best)
        for one, mine, best in zip(np.unique(step), *_step_times(graph, [own, equal]).T, strict=True)
    }


def _causes(graph: Graph, times: tuple[float, float], suspects: Sequence[int]) -> list[Cause]:
    """The causes: how much of the recorded times goes with each, and the step without it."""
    job, (now, best) = graph.operations, times
    tried: list[tuple[str, list[int], list[int], float, Floats]] = []
    work = _Work(job, graph.own)
    for rank in suspects:
        tried.append(("slow_worker", [rank], [], work.worker_excess(rank), work.without_worker(rank)))
    for stage in np.unique(job.stage).tolist():
        there = job.workers(stage)
        tried.append(("stage_work", there, [stage], work.stage_excess(stage), work.without_stage(stage)))
    even, spread = work.even_microbatches()
    tried.append(("uneven_microbatches", [], [], spread, even))
    for link, mask in _links(job).items():
        ends = sorted({rank for stage in link for rank in job.workers(stage)})
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

    A duration is the mean of its kind, times how much more its stage takes, times how much more its worker
    takes than the stage, times how much more its microbatch takes than the worker's mean.
    """

    def __init__(self, job: Operations, own: Floats) -> None:
        self._job, self._own = job, own
        role = job.role
        self._compute = np.isin(role, [int(one) for one in COMPUTE])
        self._of_kind = _means(own, job.kind)
        self._of_stage = _means(own, job.kind * max(job.stages, 1) + job.stage)
        self._of_rank = _means(own, job.kind * (int(job.rank.max(initial=0)) + 1) + job.rank)

    def without_worker(self, rank: int) -> Floats:
        """Returns the times with this worker as fast as the others of its stage, or of its kind if alone."""
        mine = (self._job.rank == rank) & self._compute
        return np.where(mine, self._own * self._others(mine) / np.maximum(self._of_rank, 1.0), self._own)

    def worker_excess(self, rank: int) -> float:
        """Returns how much longer the worker takes than the others of its stage."""
        mine = (self._job.rank == rank) & self._compute
        alone = len(self._job.workers(int(self._job.stage[mine][0]))) == 1 if mine.any() else True
        others = float(self._others(mine)[mine].sum())
        return 0.0 if alone or not others else float(self._own[mine].sum()) / others - 1

    def without_stage(self, stage: int) -> Floats:
        """Returns the times with this stage as much work as the other stages."""
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
        deviation over the mean that the forward and the backward pass of a microbatch have in common. Noise
        of the machine is not in common.
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
        mine, rest = mask & (kind == one), ~mask & (kind == one)
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
        mask = np.zeros(len(job), dtype=np.bool_)
        mask[rows] = True
        if np.isin(job.kind[~mask], np.unique(job.kind[mask])).any():
            found.append((sorted(ranks), mask))
    found.sort(key=lambda item: -_as_the_others(graph, item[1])[0])
    return found[:_SUSPECTS]


def _links(job: Operations) -> dict[tuple[int, int], Mask]:
    """Pairs of neighbouring stages to the sends and receives between them; none where only one pair talks."""
    role, stages = job.role, max(job.stages, 1)
    moves = np.isin(role, MOVES)
    found: dict[tuple[int, int], Mask] = {}
    if stages < 3:
        return found
    ahead = np.array([-1 if "back" in name.lower() or "bwd" in name.lower() else 1 for name in job.kinds])
    step = np.where(role == OperationRole.SEND, ahead[job.kind], -ahead[job.kind])
    peer = job.stage + step
    low, high = np.minimum(job.stage, peer), np.maximum(job.stage, peer)
    for one in range(stages - 1):
        mask = moves & (low == one) & (high == one + 1)
        if mask.any():
            found[one, one + 1] = mask
    return found
