"""Interleaved pipelines, where the last stage sends on to the first, and slow parts of several replicas."""

from __future__ import annotations

from pathlib import Path

import pytest

from aorta.artefacts.operations import Operations
from aorta.metrics.mesh import mesh_of
from aorta.metrics.operation_graph import Graph, graph_of
from aorta.metrics.slowdown import slowdown
from aorta.readers.operations import read_operations
from tests.support.interleaved import interleaved
from tests.support.pipelines import Row, pipeline

MS = 1_000_000


def job_of(folder: Path, rows: list[Row]) -> Operations:
    names = list(rows[0])
    lines = [",".join(names), *(",".join(str(row[name]) for name in names) for row in rows)]
    path = folder / "operations.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return read_operations(path)


def equal(*_: int) -> int:
    return 10 * MS


@pytest.mark.parametrize("idle_calls", [False, True])
@pytest.mark.parametrize(("stages", "m", "chunks"), [(2, 4, 2), (4, 8, 3)])
def test_an_interleaved_pipeline_has_the_ideal_bubble(
    tmp_path: Path, stages: int, m: int, chunks: int, idle_calls: bool
) -> None:
    """With all equal a step takes chunks * m + p - 1 passes of 30 ms, forward and backward."""
    job = job_of(tmp_path, interleaved(stages, m, chunks, equal, transfer=1, idle_calls=idle_calls))
    graph = graph_of(job)
    assert isinstance(graph, Graph)
    # Each inner boundary of the model is crossed forwards and backwards, by each microbatch and step.
    crossed = 2 * (stages * chunks - 1) * m * 3
    assert sum(len(rows) == 2 for rows in graph.members) == crossed
    assert int(graph.idle.sum()) == (4 * m * 3 if idle_calls else 0)
    assert graph.unmatched == 0
    facts = mesh_of(job)
    assert facts.slowdown is not None
    assert facts.slowdown.value == pytest.approx(1.0, abs=1e-5)
    assert facts.slowdown.step_ms == pytest.approx((chunks * m + stages - 1) * 30, rel=1e-5)
    assert (facts.mesh.schedule, facts.mesh.microbatches) == ("interleaved", m)
    assert facts.mesh.bubble is not None
    assert facts.mesh.bubble.ideal == (stages - 1) / (chunks * m + stages - 1)
    assert facts.mesh.bubble.measured == pytest.approx(facts.mesh.bubble.ideal, abs=1e-4)


@pytest.mark.parametrize("idle_calls", [False, True])
def test_a_stage_of_an_interleaved_pipeline_is_named(tmp_path: Path, idle_calls: bool) -> None:
    def cost(_: int, stage: int, __: int, ___: int) -> int:
        return (30 if stage == 1 else 10) * MS

    rows = interleaved(4, 8, 2, cost, replicas=2, transfer=1, idle_calls=idle_calls)
    facts = mesh_of(job_of(tmp_path, rows))
    assert facts.slowdown is not None
    first = facts.slowdown.causes[0]
    assert (first.cause, first.stages, first.ranks) == ("stage_work", [1], [1, 5])
    assert first.step_ms == pytest.approx((2 * 8 + 3) * 30, rel=1e-5)
    # T_ideal: every forward takes the mean, (3 * 10 + 30) / 4.
    assert facts.slowdown.ideal_ms == pytest.approx((2 * 8 + 3) * 45, rel=1e-5)


def test_a_slow_link_of_one_replica_is_named(tmp_path: Path) -> None:
    """Two stages: there is no other boundary to compare with, but the other replicas' links."""
    rows = [
        row
        for replica in range(3)
        for row in pipeline(
            "gpipe", 2, 4, equal, steps=2, transfer=lambda _, slow=replica == 1: (25 if slow else 1) * MS
        )
        if not row.update(replica=replica, rank=2 * replica + int(row["stage"]))
    ]
    graph = graph_of(job_of(tmp_path, rows))
    assert isinstance(graph, Graph)
    first = slowdown(graph).causes[0]
    assert (first.code, first.ranks, first.stages) == ("slow_link", (2, 3), (0, 1))
    assert first.excess == pytest.approx(24.0)


@pytest.mark.parametrize(
    ("slow", "code", "ranks", "without"),
    [
        ({(1, 0), (1, 1)}, "replica_work", (2, 3), 9 * 30),
        ({(0, 1), (2, 0)}, "slow_worker", (1, 4), 9 * 30),
    ],
)
def test_workers_that_are_slow_together_are_one_cause(
    tmp_path: Path, slow: set[tuple[int, int]], code: str, ranks: tuple[int, ...], without: int
) -> None:
    rows = pipeline(
        "1f1b", 2, 8, lambda replica, stage, _: (25 if (replica, stage) in slow else 10) * MS, replicas=4
    )
    graph = graph_of(job_of(tmp_path, rows))
    assert isinstance(graph, Graph)
    first = slowdown(graph).causes[0]
    assert (first.code, first.ranks) == (code, ranks)
    assert first.excess == pytest.approx(1.5)
    assert first.step_ms == pytest.approx(without, rel=1e-5)


def test_a_send_and_a_receive_in_one_call_are_two_operations(tmp_path: Path) -> None:
    path = tmp_path / "operations.csv"
    path.write_text(
        "rank,step,kind,stage,start_ms,end_ms\n"
        "0,0,forward-send-backward-recv,0,10,14\n"
        "1,0,backward-send-forward-recv,1,10,14\n"
        "0,0,forward-compute,0,0,10\n",
        encoding="utf-8",
    )
    job = read_operations(path)
    named = sorted((int(rank), job.kinds[kind]) for rank, kind in zip(job.rank, job.kind, strict=True))
    assert named == [
        (0, "backward-recv"),
        (0, "forward-compute"),
        (0, "forward-send"),
        (1, "backward-send"),
        (1, "forward-recv"),
    ]
    assert (job.end - job.start).tolist() == [4 * MS] * 4 + [10 * MS]
