"""Step records of a pipeline to the operations of a mesh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from aorta.artefacts.operations import UNKNOWN, Ints, MeshSizes, Operations, role_of
from aorta.artefacts.range_columns import ABSENT, STAGE
from aorta.artefacts.step_columns import StepColumns
from aorta.artefacts.step_names import COMMUNICATION_STREAMS
from aorta.metrics.clock_lines import ClockLine
from aorta.metrics.operation_graph import MOVES

BATCHED_NS = 500_000
"""Sends and receives belong to one batch if the rank starts them within this time of each other."""
_PASSES = {"forward": "forward-compute", "backward": "backward-compute", "weight": "backward-weight"}


@dataclass(slots=True)
class _Rows:
    """Operations, one value per row in each list."""

    kind: list[str] = field(default_factory=list)
    rank: list[int] = field(default_factory=list)
    stage: list[int] = field(default_factory=list)
    chunk: list[int] = field(default_factory=list)
    step: list[int] = field(default_factory=list)
    microbatch: list[int] = field(default_factory=list)
    group: list[str] = field(default_factory=list)
    start: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)


def recorded_operations(
    by_rank: Mapping[int, StepColumns], steps: Sequence[int], lines: Mapping[int, ClockLine]
) -> Operations | None:
    """Returns the operations of a pipeline over `steps` (global steps).

    Args:
        by_rank: the records of each rank.
        steps: those that all ranks timed part by part.
        lines: how the clock of a rank is put on that of the others. None if it is theirs.

    Returns:
        None where passes of microbatches are not marked on every rank, or there is one stage.
    """
    stages = {rank: _stages(columns) for rank, columns in by_rank.items()}
    if not stages or any(not found for found in stages.values()):
        return None
    ranks = len({min(found) for found in stages.values()})
    if ranks < 2:
        return None
    rows, replica = _Rows(), _replicas(by_rank)
    for rank, columns in by_rank.items():
        place = {stage: chunk for chunk, stage in enumerate(sorted(stages[rank]))}
        _read(rows, rank, columns.where(np.isin(columns.column("global_step"), steps)), place)
    return _made(rows, stages, replica, lines)


def _stages(columns: StepColumns) -> set[int]:
    return {
        int(kind.group.removeprefix(STAGE))
        for kind in columns.ranges().kinds
        if kind.group is not None and kind.group.startswith(STAGE) and kind.op in _PASSES
    }


def _replicas(by_rank: Mapping[int, StepColumns]) -> dict[int, int]:
    """Ranks that send to each other are one replica, numbered by their lowest rank."""
    leader = {rank: rank for rank in by_rank}

    def first(rank: int) -> int:
        while leader[rank] != rank:
            rank = leader[rank]
        return rank

    for columns in by_rank.values():
        for kind in columns.ranges().kinds:
            ends = _ends(kind.group) if kind.op in ("send", "recv") else None
            if ends and ends[0] in leader and ends[1] in leader:
                a, b = first(ends[0]), first(ends[1])
                leader[max(a, b)] = min(a, b)
    numbers = {head: number for number, head in enumerate(sorted({first(rank) for rank in leader}))}
    return {rank: numbers[first(rank)] for rank in leader}


def _ends(group: str | None) -> tuple[int, int] | None:
    """The ranks of a send and its receive."""
    source, arrow, target = (group or "").rpartition(" ")[2].partition(">")
    return (int(source), int(target)) if arrow and source.isdigit() and target.isdigit() else None


def _read(rows: _Rows, rank: int, columns: StepColumns, place: Mapping[int, int]) -> None:
    found, number = columns.ranges(), columns.column("global_step")
    begin, home = columns.column("mono_start_ns"), min(place)
    for row, code, start, end, seq in zip(
        found.row.tolist(),
        found.kind.tolist(),
        found.start_ns.tolist(),
        found.end_ns.tolist(),
        found.seq.tolist(),
        strict=True,
    ):
        kind = found.kinds[code]
        stage, chunk, microbatch, group = home, UNKNOWN, UNKNOWN, ""
        if kind.op in _PASSES and kind.group is not None and kind.group.startswith(STAGE):
            name = _PASSES[kind.op]
            chunk = place[int(kind.group.removeprefix(STAGE))]
            microbatch = UNKNOWN if seq == ABSENT else seq
        elif kind.stream in COMMUNICATION_STREAMS:
            name, group = kind.op or kind.stream, kind.group or ""
        elif kind.tag == "optimizer":
            name = "optimizer"
        else:
            continue
        rows.kind.append(name)
        rows.rank.append(rank)
        rows.stage.append(stage)
        rows.chunk.append(chunk)
        rows.step.append(int(number[row]))
        rows.microbatch.append(microbatch)
        rows.group.append(group)
        rows.start.append(int(begin[row]) + start)
        rows.end.append(int(begin[row]) + end)


def _made(
    rows: _Rows,
    stages: Mapping[int, set[int]],
    replica: Mapping[int, int],
    lines: Mapping[int, ClockLine],
) -> Operations:
    place = {rank: min(found) for rank, found in stages.items()}
    order = {stage: at for at, stage in enumerate(sorted(set(place.values())))}
    # With several chunks per rank, the last rank sends forwards to the first one.
    ring = len(order) if len(order) > 2 and max(len(found) for found in stages.values()) > 1 else 0
    at = {rank: order[stage] for rank, stage in place.items()}
    names = [_direction(kind, group, at, ring) for kind, group in zip(rows.kind, rows.group, strict=True)]
    kinds, kind = np.unique(names, return_inverse=True)
    groups = {name: at for at, name in enumerate(sorted(set(rows.group)))}
    group = np.array([groups[name] if name else UNKNOWN for name in rows.group], dtype=np.int64)
    rank, start, end = (np.array(column, dtype=np.int64) for column in (rows.rank, rows.start, rows.end))
    for one, line in lines.items():
        mine = rank == one
        start[mine], end[mine] = line.of(np.stack((start[mine], end[mine]), axis=1)).T
    chunks = max(len(found) for found in stages.values())
    return Operations(
        sizes=MeshSizes(pipeline=len(order), virtual=chunks if chunks > 1 else None),
        kinds=tuple(str(name) for name in kinds),
        roles=tuple(role_of(str(name)) for name in kinds),
        kind=kind.reshape(-1).astype(np.int64),
        rank=rank,
        replica=np.array([replica[one] for one in rows.rank], dtype=np.int64),
        stage=np.array([order[stage] for stage in rows.stage], dtype=np.int64),
        step=np.array(rows.step, dtype=np.int64),
        chunk=np.array(rows.chunk, dtype=np.int64),
        microbatch=np.array(rows.microbatch, dtype=np.int64),
        start=start,
        end=end,
        group=group,
        batch=_batches(rank, start, np.isin([role_of(str(name)) for name in names], MOVES)),
    )


def _batches(rank: Ints, start: Ints, moves: NDArray[np.bool_]) -> Ints:
    """Returns a number for each batch: sends and receives that a rank starts one right after the other."""
    order = np.lexsort((start, rank))
    near = np.diff(start[order]) < BATCHED_NS
    joined = near & moves[order][1:] & moves[order][:-1] & (np.diff(rank[order]) == 0)
    number = np.cumsum(np.concatenate(([True], ~joined)))
    found = np.empty(len(rank), dtype=np.int64)
    found[order] = np.where(np.bincount(number)[number] > 1, number, UNKNOWN)
    return np.where(moves, found, UNKNOWN)


def _direction(kind: str, group: str, place: Mapping[int, int], ring: int) -> str:
    """The name of a send or receive says which way it goes."""
    ends = _ends(group) if kind in ("send", "recv") else None
    if ends is None or ends[0] not in place or ends[1] not in place:
        return kind
    step = place[ends[1]] - place[ends[0]]
    ahead = step % ring == 1 if ring else step > 0
    return f"{'forward' if ahead else 'backward'}-{kind}"
