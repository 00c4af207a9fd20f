"""Step records of a pipeline, with marks as the recorder makes them, to its operations."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from aorta.artefacts.step_columns import StepColumns
from aorta.artefacts.steps import CollectiveId, DecodedStep, StepRange, StepRanges
from aorta.metrics.mesh import mesh_of
from aorta.metrics.recorded_mesh import recorded_operations
from tests.support.pipelines import Row, pipeline
from tests.support.steps import step

MS = 1_000_000


def records(rows: list[Row], stages: int, rank: int) -> StepColumns:
    """The rows of a rank as its records hold them: ms since the step's start."""
    numbers = sorted({int(row["step"]) for row in rows})
    found: list[DecodedStep] = []
    for number in numbers:
        mine = [row for row in rows if row["rank"] == rank and row["step"] == number]
        origin = number * 10**9
        ranges = [_range(row, stages, origin) for row in mine]
        whole = step(number, (number * 1000, number * 1000 + 900), rank=rank, world_size=4)
        found.append(_with(whole, ranges))
    return StepColumns.of(found)


def _with(whole: DecodedStep, ranges: list[StepRange]) -> DecodedStep:
    return msgspec.structs.replace(whole, profile=StepRanges(ranges=ranges))


def _range(row: Row, stages: int, origin: int) -> StepRange:
    start, kind = (int(row["start_ns"]) - origin) / MS, str(row["kind"])
    end, stage, rank = start + int(row["duration_ns"]) / MS, int(row["stage"]), int(row["rank"])
    named: dict[str, Any] = {}
    if kind.endswith("compute"):
        stream, tag = "compute", kind.removesuffix("-compute")
        named = {"op": tag, "stage": stage, "microbatch": row["microbatch"]}
    else:
        ahead = (1 if kind.startswith("forward") else -1) * (1 if kind.endswith("send") else -1)
        stream, tag = "p2p", "program"
        named = {"op": kind.rpartition("-")[2], "group": "0", "peer": rank + ahead}
        named["seq"] = row["microbatch"]
    del stages
    return StepRange(stream=stream, tag=tag, start_ms=start, end_ms=end, metadata=CollectiveId(**named))


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_a_recorded_pipeline_is_the_one_that_ran(schedule: str) -> None:
    stages, slow = 4, 2
    rows = pipeline(schedule, stages, 6, lambda _, stage, __: (9 if stage == slow else 3) * MS, replicas=1)
    by_rank = {rank: records(rows, stages, rank) for rank in range(stages)}
    job = recorded_operations(by_rank, [0, 1, 2], {})
    assert job is not None
    assert len(job) == len(rows)
    facts = mesh_of(job)
    assert (facts.mesh.schedule, facts.mesh.microbatches) == (schedule, 6)
    assert facts.slowdown is not None
    first = facts.slowdown.causes[0]
    assert (first.cause, first.ranks, first.stages) == ("stage_work", [slow], [slow])
    assert first.step_ms == pytest.approx((6 + stages - 1) * 9, rel=1e-3)


def test_replicas_are_ranks_that_send_to_each_other() -> None:
    rows = pipeline("1f1b", 2, 4, lambda *_: 3 * MS, replicas=2)
    by_rank = {rank: records(rows, 2, rank) for rank in range(4)}
    job = recorded_operations(by_rank, [0, 1, 2], {})
    assert job is not None
    assert {(int(r), int(d), int(s)) for r, d, s in zip(job.rank, job.replica, job.stage, strict=True)} == {
        (0, 0, 0),
        (1, 0, 1),
        (2, 1, 0),
        (3, 1, 1),
    }


def test_without_marks_on_every_rank_there_is_no_pipeline() -> None:
    rows = pipeline("gpipe", 2, 2, lambda *_: MS)
    marked = records(rows, 2, 0)
    bare = StepColumns.of([_with(one, []) for one in records(rows, 2, 1)])
    assert recorded_operations({0: marked, 1: bare}, [0, 1, 2], {}) is None
    assert recorded_operations({0: marked}, [0, 1, 2], {}) is None
