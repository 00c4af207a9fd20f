"""Timelines of interleaved pipelines: each rank has several model chunks, and the last stage sends on to the
first one.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.support.pipelines import Row

Cost = Callable[[int, int, int, int], int]
"""Duration in ns of a forward by replica, stage, chunk and microbatch; a backward takes twice as long."""

Pass = tuple[str, int, int]
"""Letter, chunk and microbatch."""


def order_of(stage: int, stages: int, microbatches: int, chunks: int) -> list[Pass]:
    """The passes of a stage, in Megatron's order: groups of `stages` microbatches, chunk by chunk."""
    total = microbatches * chunks

    def one(letter: str, number: int) -> Pass:
        turn, place = divmod(number, stages * chunks)
        chunk = place // stages
        return letter, chunk if letter == "F" else chunks - 1 - chunk, turn * stages + place % stages

    warm = min((stages - stage - 1) * 2 + (chunks - 1) * stages, total)
    order = [one("F", number) for number in range(warm)]
    for number in range(total - warm):
        order += [one("F", warm + number), one("B", number)]
    return order + [one("B", number) for number in range(total - warm, total)]


def interleaved(
    stages: int,
    microbatches: int,
    chunks: int,
    cost: Cost,
    *,
    replicas: int = 1,
    steps: int = 3,
    transfer: int = 1_000,
    idle_calls: bool = False,
) -> list[Row]:
    """Rows of operations.

    Args:
        stages: ranks of a replica.
        microbatches: per step, a multiple of `stages`.
        chunks: model chunks per rank.
        cost: of a forward.
        replicas: copies of the pipeline.
        steps: how many.
        transfer: ns of a send, once its receiver is there.
        idle_calls: the ends of the model call send and receive as well, and exchange nothing.
    """
    rows: list[Row] = []
    for step in range(steps):
        for replica in range(replicas):
            rows += _one((stages, microbatches, chunks), (step, replica), cost, transfer, idle_calls)
    return rows


def _one(
    shape: tuple[int, int, int], where: tuple[int, int], cost: Cost, transfer: int, idle_calls: bool
) -> list[Row]:
    (stages, microbatches, chunks), (step, replica) = shape, where
    orders = [order_of(stage, stages, microbatches, chunks) for stage in range(stages)]
    free, at = [0] * stages, [0] * stages
    sent: dict[tuple[str, int, int], int] = {}
    """End of each pass by letter, place in the model, and microbatch."""
    rows: list[Row] = []

    def row(kind: str, stage: int, chunk: int, microbatch: int, start: int, end: int) -> None:
        rows.append(
            {
                "rank": replica * stages + stage,
                "step": step,
                "kind": kind,
                "replica": replica,
                "stage": stage,
                "chunk": chunk,
                "microbatch": microbatch,
                "start_ns": start + step * 10**10,
                "duration_ns": end - start,
            }
        )

    while any(at[stage] < len(orders[stage]) for stage in range(stages)):
        moved = False
        for stage in range(stages):
            if at[stage] == len(orders[stage]):
                continue
            letter, chunk, microbatch = orders[stage][at[stage]]
            place, name = chunk * stages + stage, "forward" if letter == "F" else "backward"
            source = place - 1 if letter == "F" else place + 1
            inside = 0 <= source < stages * chunks
            if inside and (letter, source, microbatch) not in sent:
                continue
            if letter == "B" and ("F", place, microbatch) not in sent:
                continue
            moved = True
            if inside:
                done = max(sent[letter, source, microbatch], free[stage]) + transfer
                begun = sent[letter, source, microbatch]
                row(f"{name}-send", source % stages, -1, -1, begun, done)
                row(f"{name}-recv", stage, -1, -1, free[stage], done)
                free[stage] = done
            elif idle_calls:
                row(f"{name}-recv", stage, -1, -1, free[stage], free[stage])
            took = cost(replica, stage, chunk, microbatch) * (1 if letter == "F" else 2)
            row(f"{name}-compute", stage, chunk, microbatch, free[stage], free[stage] + took)
            free[stage] += took
            sent[letter, place, microbatch] = free[stage]
            target = place + 1 if letter == "F" else place - 1
            if idle_calls and not 0 <= target < stages * chunks:
                row(f"{name}-send", stage, -1, -1, free[stage], free[stage])
            at[stage] += 1
        assert moved, "the schedule waits for itself"
    return rows
