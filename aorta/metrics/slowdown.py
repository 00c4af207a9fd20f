"""Finds how much slower a mesh is than with equal workers, and which workers or messages slow it down.

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

import numpy as np
from msgspec import Struct

from aorta.metrics.mesh_causes import Cause, causes_of
from aorta.metrics.operation_graph import Floats, Graph
from aorta.metrics.operation_replay import replayed, step_times
from aorta.units import NS_PER_MS


def ideal(graph: Graph) -> Floats:
    """Returns what each operation takes if all of its kind are equal: the mean, of transfers the median."""
    found = np.empty_like(graph.own)
    conceptual = graph.shared
    found[graph.idle] = 0.0
    for kind in range(len(graph.operations.kinds)):
        mine = (graph.operations.kind == kind) & ~graph.idle
        if mine.any():
            middle = np.median if conceptual[mine].any() else np.mean
            found[mine] = middle(graph.own[mine])
    return found


class Slowdown(Struct, frozen=True):
    """S and its parts."""

    value: float
    step_ms: float
    """T."""
    ideal_ms: float
    by_kind: dict[str, float]
    by_rank: dict[int, float]
    by_stage: dict[int, float]
    by_step: dict[int, float]
    by_worker_and_step: Floats
    """S of each worker in each step, (workers, steps)."""
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
    kinds, steps = list(range(len(job.kinds))), np.unique(job.step).tolist()
    masks = [job.kind == kind for kind in kinds]
    masks += [job.rank == rank for rank in ranks] + [job.stage == stage for stage in stages]
    whole = step_times(graph, [own, equal, *(np.where(mask, own, equal) for mask in masks)])
    times, of_steps = whole.mean(axis=0), whole / np.maximum(whole[:, 1:2], 1.0)
    now, best, parts = float(times[0]), float(times[1]), (times[2:] / times[1]).tolist()
    first = 2 + len(kinds)
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
    causes = causes_of(graph, (now, best), sorted(by_rank, key=lambda rank: -by_rank[rank]))
    return Slowdown(
        value=now / best,
        step_ms=now / NS_PER_MS,
        ideal_ms=best / NS_PER_MS,
        by_kind=dict(zip(job.kinds, parts[: len(kinds)], strict=True)),
        by_rank=by_rank,
        by_stage=dict(zip(stages, parts[len(kinds) + len(ranks) :], strict=True)),
        by_step=dict(zip(steps, of_steps[:, 0].tolist(), strict=True)),
        by_worker_and_step=of_steps[:, first : first + len(ranks)].T,
        worker_share=(now - float(shares[0])) / lost if lost > 0 else None,
        stage_share=(now - float(shares[1])) / lost if lost > 0 and len(stages) > 1 else None,
        causes=causes,
    )
