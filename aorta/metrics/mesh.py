"""A job's operations to what the analysis says of its mesh."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from aorta.artefacts.measured import RankBreakdown
from aorta.artefacts.mesh import Bubble, Mesh, MeshCause, MeshGroup, MeshStage, SlowdownRecord, WorkerSteps
from aorta.artefacts.operations import COMPUTE, OperationRole, Operations
from aorta.intervals import length, subtract, union
from aorta.metrics.operation_graph import MOVES, graph_of, lanes, talking
from aorta.metrics.schedules import Schedule, schedule_of
from aorta.metrics.slowdown import Slowdown, slowdown
from aorta.units import NS_PER_MS


class MeshFacts(Struct, frozen=True):
    """A mesh and how much slower it is than with equal workers."""

    mesh: Mesh
    slowdown: SlowdownRecord | None
    why_not: str | None = None
    """Why there is no slowdown."""


def mesh_of(job: Operations) -> MeshFacts:
    """Returns groups, stages, schedule and slowdown of a job's operations."""
    schedule, graph = schedule_of(job), graph_of(job)
    mesh = Mesh(
        groups=_groups(job, talking(graph) if not isinstance(graph, str) else {}),
        stages=_stages(job, schedule),
        schedule=schedule.name if schedule else None,
        microbatches=schedule.microbatches if schedule else None,
        bubble=Bubble(measured=schedule.bubble, ideal=schedule.ideal) if schedule else None,
    )
    if isinstance(graph, str):
        return MeshFacts(mesh, None, graph)
    return MeshFacts(mesh, _record(slowdown(graph)))


def _record(found: Slowdown) -> SlowdownRecord:
    return SlowdownRecord(
        value=found.value,
        by_rank=found.by_rank,
        by_stage=found.by_stage,
        by_kind=found.by_kind,
        by_step=found.by_step,
        by_worker_and_step=WorkerSteps(
            ranks=list(found.by_rank),
            steps=list(found.by_step),
            values=[[round(value, 4) for value in row] for row in found.by_worker_and_step.tolist()],
        ),
        step_ms=found.step_ms,
        ideal_ms=found.ideal_ms,
        worker_share=found.worker_share,
        stage_share=found.stage_share,
        causes=[
            MeshCause(
                cause=one.code,
                ranks=list(one.ranks),
                stages=list(one.stages),
                step_ms=one.step_ms,
                share=one.share,
                excess=one.excess,
            )
            for one in found.causes
        ],
    )


def _groups(job: Operations, rows_of: Mapping[frozenset[int], Sequence[int]]) -> list[MeshGroup]:
    """Ranks of one replica and stage are a tensor group, of one stage and lane a data group, and so on."""
    lane = lanes(job)
    places = {
        int(rank): (int(job.replica[row]), int(job.stage[row]), int(lane[row]))
        for rank, row in zip(*np.unique(job.rank, return_index=True), strict=True)
    }
    found = []
    for dimension, kept in (("data", (1, 2)), ("pipeline", (0, 2)), ("tensor", (0, 1))):
        members: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for rank, place in places.items():
            members[tuple(place[at] for at in kept)].append(rank)
        found += [
            MeshGroup(
                name=f"{dimension} {number}",
                dimension=dimension,  # type: ignore[arg-type]
                ranks=ranks,
                ms_per_step=_exchange_ms(job, dimension, ranks, rows_of.get(frozenset(ranks), ())),
            )
            for number, ranks in enumerate(group for group in members.values() if len(group) > 1)
        ]
    return found


def _exchange_ms(job: Operations, dimension: str, ranks: list[int], rows: Sequence[int]) -> float | None:
    """Returns the mean communication time per step of a member of a group. None if nothing was recorded."""
    mine = np.isin(np.arange(len(job)), list(rows))
    if dimension == "pipeline":
        mine = np.isin(job.rank, ranks) & np.isin(job.role, MOVES)
    if not mine.any():
        return None
    total = int((job.end[mine] - job.start[mine]).sum())
    return total / len(ranks) / len(np.unique(job.step)) / NS_PER_MS


def _stages(job: Operations, schedule: Schedule | None) -> list[MeshStage]:
    if job.stages < 2:
        return []
    work = np.isin(job.role, [int(role) for role in COMPUTE])
    steps = max(len(np.unique(job.step)), 1)
    found = []
    for stage in range(job.stages):
        ranks, mine = job.workers(stage), work & (job.stage == stage)
        total = int((job.end[mine] - job.start[mine]).sum())
        found.append(
            MeshStage(
                stage=stage,
                of=job.stages,
                ranks=ranks,
                work_ms=total / steps / max(len(ranks), 1) / NS_PER_MS,
                bubble_ratio=schedule.by_stage.get(stage) if schedule else None,
            )
        )
    return found


def breakdowns(job: Operations) -> list[RankBreakdown]:
    """Returns the mean step of each rank: computation, exposed communication, and the unseen rest."""
    steps, found = np.unique(job.step), []
    transfers = np.isin(
        job.role,
        [int(role) for role in (OperationRole.SEND, OperationRole.RECEIVE, OperationRole.COLLECTIVE)],
    )
    bounds = [(job.start[job.step == step].min(), job.end[job.step == step].max()) for step in steps]
    whole = sum(int(last - first) for first, last in bounds)
    for rank in np.unique(job.rank).tolist():
        mine = job.rank == rank
        busy, talk = (
            union(np.stack((job.start[rows], job.end[rows]), axis=1))
            for rows in (mine & ~transfers, mine & transfers)
        )
        compute, exposed, comm = length(busy), length(subtract(talk, busy)), length(talk)
        unseen = max(whole - compute - exposed, 0)
        per_step = max(len(steps), 1) * NS_PER_MS
        found.append(
            RankBreakdown(
                rank=rank,
                host=None,
                steps=len(steps),
                step_ms=whole / per_step,
                compute_ms=compute / per_step,
                exposed_comm_ms=exposed / per_step,
                exposed_copy_ms=None,
                data_wait_ms=0.0,
                host_ms=0.0,
                comm_ms=comm / per_step,
                overlap_ratio=(comm - exposed) / comm if comm else None,
                unseen_ms=unseen / per_step,
            )
        )
    return found
