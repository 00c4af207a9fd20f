"""Timelines of pipelines, made from nothing: every time follows from a few numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable

Row = dict[str, int | str]
Cost = Callable[[int, int, int], int]
"""Duration in ns by replica, stage and microbatch."""

HEADER = "rank,step,kind,replica,stage,microbatch,start_ns,duration_ns"


def order_of(schedule: str, stage: int, stages: int, microbatches: int) -> list[tuple[str, int]]:
    """The computations of a stage, in order."""
    if schedule == "gpipe":
        return [("F", m) for m in range(microbatches)] + [("B", m) for m in range(microbatches)]
    warm = min(stages - stage - 1, microbatches)
    order = [("F", m) for m in range(warm)]
    for m in range(microbatches - warm):
        order += [("F", warm + m), ("B", m)]
    return order + [("B", m) for m in range(microbatches - warm, microbatches)]


def pipeline(
    schedule: str,
    stages: int,
    microbatches: int,
    forward: Cost,
    *,
    replicas: int = 1,
    steps: int = 3,
    transfer: Callable[[int], int] = lambda link: 1,
    gap: int = 0,
) -> list[Row]:
    """Rows of operations. A backward takes twice a forward; sends start when their data are there, receives
    when the stage before has nothing else to do, and both end `transfer` after the later one.
    """
    rows: list[Row] = []
    for step in range(steps):
        for replica in range(replicas):
            rows += _one(schedule, (stages, microbatches), (step, replica), forward, transfer)
    return [row | {"start_ns": int(row["start_ns"]) + int(row["step"]) * (10**9 + gap)} for row in rows]


def _one(
    schedule: str,
    shape: tuple[int, int],
    where: tuple[int, int],
    forward: Cost,
    transfer: Callable[[int], int],
) -> Iterable[Row]:
    (stages, microbatches), (step, replica) = shape, where
    orders = [order_of(schedule, stage, stages, microbatches) for stage in range(stages)]
    free, at = [0] * stages, [0] * stages
    arrived: dict[tuple[str, int, int], int] = {}
    rows: list[Row] = []

    def row(kind: str, stage: int, m: int, start: int, end: int) -> None:
        rank = replica * stages + stage
        rows.append(
            {
                "rank": rank,
                "step": step,
                "kind": kind,
                "replica": replica,
                "stage": stage,
                "microbatch": m,
                "start_ns": start,
                "duration_ns": end - start,
            }
        )

    while any(at[stage] < len(orders[stage]) for stage in range(stages)):
        moved = False
        for stage in range(stages):
            if at[stage] == len(orders[stage]):
                continue
            letter, m = orders[stage][at[stage]]
            before = stage - 1 if letter == "F" else stage + 1
            first = before in (-1, stages)
            if not first and (letter, before, m) not in arrived:
                continue
            name, moved = ("forward" if letter == "F" else "backward"), True
            if not first:
                sent = arrived[letter, before, m]
                begun = max(sent, free[stage])
                done = begun + transfer(min(stage, before))
                row(f"{name}-send", before, m, sent, done)
                row(f"{name}-recv", stage, m, free[stage], done)
                free[stage] = done
            cost = forward(replica, stage, m) * (1 if letter == "F" else 2)
            row(f"{name}-compute", stage, m, free[stage], free[stage] + cost)
            free[stage] += cost
            arrived[letter, stage, m] = free[stage]
            at[stage] += 1
        assert moved, "the schedule waits for itself"
    return rows


def as_csv(rows: Iterable[Row]) -> str:
    """The rows as a file."""
    names = HEADER.split(",")
    return "\n".join([HEADER, *(",".join(str(row[name]) for name in names) for row in rows)]) + "\n"
