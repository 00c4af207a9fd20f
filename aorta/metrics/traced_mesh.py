"""Traces of a pipeline to the operations of a mesh: passes, sends and receives, and collectives."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from aorta.artefacts.events import ABSENT
from aorta.artefacts.operations import UNKNOWN, MeshSizes, Operations, role_of
from aorta.averages import fmean
from aorta.metrics.calls import RING, SEND_RECV, pair_of
from aorta.metrics.clock_lines import ClockLine
from aorta.metrics.collectives import MatchedCollectives
from aorta.metrics.trace_capture import TraceCapture
from aorta.metrics.trace_passes import BACKWARD, FORWARD, WEIGHT
from aorta.metrics.trace_work import GpuWork

if TYPE_CHECKING:
    from aorta.metrics.mesh import MeshFacts

LEAST_REPLAYED = 0.6
"""Lowest accepted ratio of a pipeline's replayed step to its traced step. Below it, host work delays the
GPUs by so much that no rank is charged with host time.
"""
MOST_REPLAYED = 1.2
"""Highest accepted ratio of a pipeline's replayed step to its traced step."""
_PASS = {FORWARD: "forward-compute", BACKWARD: "backward-compute", WEIGHT: "backward-weight"}


class _Operation(Struct, frozen=True):
    kind: str
    rank: int
    step: int
    microbatch: int
    chunk: int
    group: int
    batch: int
    start: int
    end: int


def traced_mesh(found: TraceCapture, expected: int | None) -> tuple[MeshFacts | None, str | None]:
    """Returns the pipeline of traces, and why its replay is not used; both None: the traces hold no pipeline.

    Args:
        found: the traces.
        expected: ranks of the job.
    """
    whole = chained(found.work)
    step_ms = [row.step_ms for row in found.breakdown_rows()[0] if row.rank in whole]
    if not step_ms or not any(len(found.work[rank].passes) for rank in whole):
        return None, None
    from aorta.metrics.mesh import mesh_of  # few traces hold a pipeline

    # Ranks that are missing belong to other replicas: each pipeline that is left is whole.
    few = replace(found, work={rank: found.work[rank] for rank in whole})
    collectives = few.collectives(expected if len(whole) == expected else len(whole))
    if isinstance(collectives, str):
        return None, None
    job = traced_operations(few.work, collectives, found.steps)
    mesh = mesh_of(job) if job is not None else None
    if mesh is None or mesh.slowdown is None:
        return None, None
    replayed, traced = mesh.slowdown.step_ms, fmean(step_ms)
    if LEAST_REPLAYED <= replayed / traced <= MOST_REPLAYED:
        return mesh, None
    return None, f"the pipeline's replayed step takes {replayed:.1f} ms, the traced step {traced:.1f} ms"


def sends(work: Mapping[int, GpuWork]) -> bool:
    """Returns True if ranks send to each other, so that they may be stages with unequal work."""
    return any(SEND_RECV in item.names for item in work.values())


def chained(work: Mapping[int, GpuWork]) -> list[int]:
    """Returns the ranks that exchange with no rank whose traces are missing, however far along the chain."""
    around: dict[int, set[int]] = {rank: set() for rank in work}
    for rank, item in work.items():
        for name in item.names:
            for end in pair_of(name) or ():
                around[rank].add(end)
                around.setdefault(end, set()).add(rank)
    lost = open_ = set(around) - set(work)
    while open_:
        open_ = {end for rank in open_ for end in around[rank]} - lost
        lost = lost | open_
    return sorted(set(work) - lost)


def traced_operations(
    work: Mapping[int, GpuWork], collectives: MatchedCollectives, steps: Sequence[int]
) -> Operations | None:
    """Returns the operations of a pipeline over `steps`.

    Args:
        work: of each rank.
        collectives: of all ranks, on one clock.
        steps: those that are whole on every rank.

    Returns:
        None where ranks do not send to each other along a chain, or passes cannot be told apart.
    """
    stage, replica = _chain(collectives)
    named = {rank: sorted(set(item.passes.stage.tolist()) - {ABSENT}) for rank, item in work.items()}
    if all(named.values()):
        firsts = sorted({found[0] for found in named.values()})
        stage = {rank: firsts.index(found[0]) for rank, found in named.items() if rank in stage}
    if len(set(stage.values())) < 2 or set(stage) != set(work):
        return None
    if any(not _both(item) for item in work.values()):
        return None
    found = _passes(work, collectives.lines, set(steps), named)
    found += _transfers(collectives, stage, set(steps))
    return _made(found, stage, replica, _chunks(found, stage))


def _chunks(found: Sequence[_Operation], stage: Mapping[int, int]) -> int | None:
    """Returns how many model chunks each rank has. None if unknown.

    The first stage receives activations only if the last stage sends the output of a chunk to the next
    chunk. The first chunk's passes are therefore those without such a receive.
    """
    first = [one for one in found if stage[one.rank] == 0]
    passes = sum(one.kind == _PASS[FORWARD] for one in first)
    around = sum(one.kind == "forward-recv" for one in first)
    alone = passes - around
    return passes // alone if around and alone > 0 and passes % alone == 0 else None


def _both(item: GpuWork) -> bool:
    codes = set(item.passes.code.tolist())
    return {FORWARD, BACKWARD} <= codes


def _chain(collectives: MatchedCollectives) -> tuple[dict[int, int], dict[int, int]]:
    """Returns the stage and the replica of each rank that sends or receives.

    The first thing that two neighbours exchange in a step goes forwards. The first stage is the one that
    nothing goes forwards to; of a ring, as with several chunks per rank, the one that sends first.
    """
    ways: dict[tuple[int, int], list[int]] = defaultdict(list)
    first: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)
    for item in collectives.matched:
        ends = pair_of(item.key[1]) if item.op == SEND_RECV else None
        if ends is None or set(ends) != set(item.ranks):
            continue
        step, at = item.key[0], int(item.end.min())
        first[ends][step] = min(first[ends].get(step, at), at)
        ways[min(ends), max(ends)].append(step)
    ahead: dict[int, set[int]] = defaultdict(set)
    for one, other in ways:
        out, back = first.get((one, other), {}), first.get((other, one), {})
        votes = [out.get(step, np.inf) <= back.get(step, np.inf) for step in out.keys() | back.keys()]
        source, target = (one, other) if 2 * sum(votes) >= len(votes) else (other, one)
        ahead[source].add(target)
    return _numbered(ahead, first)


def _numbered(
    ahead: Mapping[int, set[int]], first: Mapping[tuple[int, int], Mapping[int, int]]
) -> tuple[dict[int, int], dict[int, int]]:
    every = set(ahead) | {rank for targets in ahead.values() for rank in targets}
    around: dict[int, set[int]] = defaultdict(set)
    for source, targets in ahead.items():
        for target in targets:
            around[source].add(target)
            around[target].add(source)
    stage: dict[int, int] = {}
    replica: dict[int, int] = {}
    for rank in sorted(every):
        if rank in replica:
            continue
        members, open_ = {rank}, [rank]
        for one in open_:
            fresh = around[one] - members
            members |= fresh
            open_ += sorted(fresh)
        number = len(set(replica.values()))
        replica |= dict.fromkeys(members, number)
        targets = {target for one in members for target in ahead.get(one, ())}
        heads = sorted(members - targets) or [_first_sender(members, first)]
        stage[heads[0]] = 0
        chain = [heads[0]]
        for one in chain:
            for target in sorted(ahead.get(one, ())):
                if target not in stage:
                    stage[target] = stage[one] + 1
                    chain.append(target)
    return stage, replica


def _first_sender(members: set[int], first: Mapping[tuple[int, int], Mapping[int, int]]) -> int:
    sent = [(min(at.values()), ends[0]) for ends, at in first.items() if ends[0] in members]
    return min(sent)[1]


def _passes(
    work: Mapping[int, GpuWork],
    lines: Mapping[int, ClockLine],
    steps: set[int],
    named: Mapping[int, Sequence[int]],
) -> list[_Operation]:
    found = []
    for rank, item in work.items():
        table = item.passes
        span = np.stack((table.start_ns, table.end_ns), axis=1)
        span = lines[rank].of(span) if rank in lines else span
        count: dict[tuple[int, int], int] = defaultdict(int)
        columns = (table.step, table.code, table.stage, table.microbatch, span[:, 0], table.busy_ns)
        for step, code, stage, number, start, busy in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            if step not in steps:
                continue
            chunk = named[rank].index(stage) if stage != ABSENT else UNKNOWN
            microbatch = number if number != ABSENT else count[step, code]
            count[step, code] += 1
            # Gaps between its kernels are the host's, not the stage's work.
            end = start + busy
            found.append(_Operation(_PASS[code], rank, step, microbatch, chunk, UNKNOWN, UNKNOWN, start, end))
    return found


def _transfers(
    collectives: MatchedCollectives, stage: Mapping[int, int], steps: set[int]
) -> list[_Operation]:
    groups: dict[str, int] = {}
    batches: dict[tuple[int, int, int], int] = {}
    last = max(stage.values())
    found = []
    for item in collectives.matched:
        step, name, _ = item.key
        if step not in steps:
            continue
        group = groups.setdefault(name, len(groups))
        ends = pair_of(name) if item.op == SEND_RECV else None
        for place, rank in enumerate(item.ranks):
            start, end = int(item.entry[place]), int(item.end[place])
            kind, batch = "ring-all-to-all" if item.op == RING else item.op, UNKNOWN
            if ends is not None:
                hop = stage[ends[1]] - stage[ends[0]]
                ahead = hop == 1 or (hop == -last and last > 1)
                kind = f"{'forward' if ahead else 'backward'}-{'send' if rank == ends[0] else 'recv'}"
                # Calls of one kernel, which were made together, begin and end together.
                batch = batches.setdefault((rank, start, end), len(batches))
            found.append(_Operation(kind, rank, step, UNKNOWN, UNKNOWN, group, batch, start, end))
    return found


def _made(
    found: Sequence[_Operation], stage: Mapping[int, int], replica: Mapping[int, int], chunks: int | None
) -> Operations:
    order = sorted(found, key=lambda one: (one.rank, one.step, one.start))
    kinds = sorted({one.kind for one in order})
    column = {
        name: np.array([getattr(one, name) for one in order], dtype=np.int64)
        for name in ("rank", "step", "microbatch", "chunk", "group", "batch", "start", "end")
    }
    origin = int(column["start"].min(initial=0))
    shared = np.bincount(column["batch"][column["batch"] >= 0]) if (column["batch"] >= 0).any() else None
    alone = [shared is None or number < 0 or shared[number] < 2 for number in column["batch"].tolist()]
    return Operations(
        sizes=MeshSizes(pipeline=max(stage.values()) + 1, virtual=chunks),
        kinds=tuple(kinds),
        roles=tuple(role_of(name) for name in kinds),
        kind=np.array([kinds.index(one.kind) for one in order], dtype=np.int64),
        rank=column["rank"],
        replica=np.array([replica[one.rank] for one in order], dtype=np.int64),
        stage=np.array([stage[one.rank] for one in order], dtype=np.int64),
        step=column["step"],
        chunk=column["chunk"],
        microbatch=column["microbatch"],
        start=column["start"] - origin,
        end=column["end"] - origin,
        group=column["group"],
        batch=np.where(alone, UNKNOWN, column["batch"]),
    )
