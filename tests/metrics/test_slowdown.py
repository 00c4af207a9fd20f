"""S of pipelines whose step follows from a few numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aorta.artefacts.operations import MeshSizes, Operations, role_of
from aorta.metrics.mesh import mesh_of
from aorta.metrics.operation_graph import Graph, graph_of
from aorta.metrics.schedules import schedule_of
from aorta.metrics.slowdown import Slowdown, slowdown
from aorta.readers.operations import read_operations
from tests.support.pipelines import Cost, as_csv, pipeline

MS = 1_000_000


def job_of(folder: Path, schedule: str, stages: int, m: int, cost: Cost, **more: object) -> Operations:
    path = folder / "operations.csv"
    path.write_text(as_csv(pipeline(schedule, stages, m, cost, **more)), encoding="utf-8")  # type: ignore[arg-type]
    return read_operations(path)


def found(job: Operations) -> Slowdown:
    graph = graph_of(job)
    assert isinstance(graph, Graph)
    assert graph.unmatched == 0
    return slowdown(graph)


def equal(replica: int, stage: int, m: int) -> int:
    del replica, stage, m
    return 10 * MS


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("stages", "m"), [(2, 4), (4, 8), (3, 5)])
def test_with_all_equal_nothing_is_slow_and_the_bubble_is_the_ideal(
    tmp_path: Path, schedule: str, stages: int, m: int
) -> None:
    job = job_of(tmp_path, schedule, stages, m, equal, replicas=2)
    made, shape = found(job), schedule_of(job)
    assert made.value == pytest.approx(1.0, abs=1e-6)
    assert shape is not None
    assert (shape.name, shape.microbatches) == (schedule, m)
    assert shape.bubble == pytest.approx((stages - 1) / (m + stages - 1), abs=1e-4)
    assert shape.ideal == (stages - 1) / (m + stages - 1)


@pytest.mark.parametrize(("stages", "m", "slow"), [(4, 8, 2), (4, 4, 0), (3, 6, 2)])
def test_a_stage_with_more_work_is_named(tmp_path: Path, stages: int, m: int, slow: int) -> None:
    job = job_of(tmp_path, "1f1b", stages, m, lambda _, stage, __: (30 if stage == slow else 10) * MS)
    made = found(job)
    first = made.causes[0]
    assert (first.code, first.stages, first.ranks) == ("stage_work", (slow,), (slow,))
    assert first.excess == pytest.approx(2.0)
    # Without it, all stages are equal: (m + p - 1) microbatches of 30 ms.
    assert first.step_ms == pytest.approx((m + stages - 1) * 30, rel=1e-3)
    assert max(made.by_stage, key=lambda stage: made.by_stage[stage]) == slow


def test_one_slow_worker_is_named_and_not_its_stage(tmp_path: Path) -> None:
    job = job_of(
        tmp_path, "1f1b", 2, 8, lambda replica, stage, _: (25 if (replica, stage) == (1, 1) else 10) * MS,
        replicas=4,
    )  # fmt: skip
    first = found(job).causes[0]
    assert (first.code, first.ranks) == ("slow_worker", (1 * 2 + 1,))
    assert first.excess == pytest.approx(1.5)


def test_uneven_microbatches_are_told_from_noise(tmp_path: Path) -> None:
    lengths = [5, 20, 8, 14, 3, 18, 9, 11]
    job = job_of(tmp_path, "1f1b", 3, 8, lambda _, __, m: lengths[m] * MS, replicas=2)
    assert found(job).causes[0].code == "uneven_microbatches"
    # Noise: a forward and its backward have nothing in common.
    rows = pipeline("1f1b", 3, 8, equal, replicas=2)
    for number, row in enumerate(rows):
        if str(row["kind"]).endswith("compute"):
            row["duration_ns"] = 10 * MS + (number * 7919 % 13) * 1_000
    path = tmp_path / "noise.csv"
    path.write_text(as_csv(rows), encoding="utf-8")
    assert all(
        cause.code != "uneven_microbatches" or cause.excess < 0.01
        for cause in found(read_operations(path)).causes
    )


def test_a_slow_link_is_named(tmp_path: Path) -> None:
    job = job_of(tmp_path, "gpipe", 4, 4, equal, transfer=lambda link: (20 if link == 1 else 1) * MS)
    first = found(job).causes[0]
    assert (first.code, first.stages, first.ranks) == ("slow_link", (1, 2), (1, 2))


def test_the_mesh_names_stages_and_groups(tmp_path: Path) -> None:
    facts = mesh_of(job_of(tmp_path, "1f1b", 2, 4, equal, replicas=2))
    assert [(stage.stage, stage.of, stage.ranks) for stage in facts.mesh.stages] == [
        (0, 2, [0, 2]),
        (1, 2, [1, 3]),
    ]
    assert [(group.dimension, group.ranks) for group in facts.mesh.groups] == [
        ("data", [0, 2]),
        ("data", [1, 3]),
        ("pipeline", [0, 1]),
        ("pipeline", [2, 3]),
    ]
    assert [stage.work_ms for stage in facts.mesh.stages] == [4 * 30, 4 * 30]
    assert facts.slowdown is not None


def test_another_order_is_called_unknown(tmp_path: Path) -> None:
    rows = pipeline("gpipe", 2, 4, equal)
    for row in rows:
        if row["kind"] == "backward-compute" and row["microbatch"] == 0:
            row["kind"] = "forward-compute"
    path = tmp_path / "operations.csv"
    path.write_text(as_csv(rows), encoding="utf-8")
    shape = schedule_of(read_operations(path))
    assert shape is not None
    assert (shape.name, shape.ideal) == ("unknown", None)


def test_a_tensor_group_across_a_slow_link_is_named(tmp_path: Path) -> None:
    """Three groups of two ranks exchange after 10 ms of work each; one group takes 12 ms for it, others 2."""
    rows = ["rank,step,kind,replica,stage,start_us,duration_us"]
    for step in range(3):
        for rank in range(6):
            group, begin = rank // 2, step * 100_000
            for turn in range(3):
                length = 12_000 if group == 1 else 2_000
                start = begin + turn * (10_000 + length)
                rows.append(f"{rank},{step},forward-compute,{group},0,{start},10000")
                rows.append(f"{rank},{step},tp-all-reduce,{group},0,{start + 10_000},{length}")
    path = tmp_path / "operations.csv"
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    job = read_operations(path)
    first = found(job).causes[0]
    assert (first.code, first.ranks, first.stages) == ("slow_link", (2, 3), ())
    assert first.excess == pytest.approx(5.0)
    assert first.step_ms == pytest.approx(3 * (10 + 2))
    tensor = [group for group in mesh_of(job).mesh.groups if group.dimension == "tensor"]
    assert [(group.ranks, group.ms_per_step) for group in tensor] == [([0, 1], 6), ([2, 3], 36), ([4, 5], 6)]


@pytest.mark.parametrize(("waited_until", "transfer"), [(50, 0), (58, 8)])
def test_a_receive_that_is_waited_for_late_says_only_the_rest_of_the_wait(
    tmp_path: Path, waited_until: int, transfer: int
) -> None:
    """Sent at 10 and received from 0 on, while the receiver computes until 50: it waits from there."""
    rows = [
        "rank,step,kind,stage,start_ms,end_ms",
        "0,0,forward-compute,0,0,10",
        "0,0,forward-send,0,10,90",
        "1,0,backward-compute,1,0,50",
        f"1,0,forward-recv,1,0,{waited_until}",
        f"1,0,forward-compute,1,{waited_until},{waited_until + 5}",
    ]
    path = tmp_path / "operations.csv"
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    graph = graph_of(read_operations(path))
    assert isinstance(graph, Graph)
    moves = [rows for rows in graph.members if len(rows) > 1]
    assert [graph.own[row] / MS for row in moves[0]] == [transfer, transfer]


def recorded(batch: bool) -> Operations:
    """Worker 1 starts a send and a receive at 20 ms and computes at 60, when both were waited for.

    Its send arrives at 70 on worker 2, which waits from 0 on. What it receives was sent from 30 to 31.
    """
    rows = [
        (0, 0, "forward-compute", 0, 0, 10),
        (1, 1, "forward-compute", 0, 0, 20),
        (1, 1, "forward-send", 0, 20, 60),
        (1, 1, "backward-recv", 0, 20, 61),
        (1, 1, "backward-compute", 0, 61, 81),
        (2, 2, "forward-recv", 0, 0, 70),
        (2, 2, "forward-compute", 0, 70, 75),
        (2, 2, "backward-compute", 0, 0, 30),
        (2, 2, "backward-send", 0, 30, 31),
    ]
    names = tuple(sorted({row[2] for row in rows}))
    column = lambda at: np.array([row[at] for row in rows], dtype=np.int64)  # noqa: E731
    kind = np.array([names.index(row[2]) for row in rows], dtype=np.int64)
    pair = {"forward-send": 0, "forward-recv": 0, "backward-send": 1, "backward-recv": 1}
    return Operations(
        sizes=MeshSizes(),
        kinds=names,
        roles=tuple(role_of(name) for name in names),
        kind=kind,
        rank=column(0),
        replica=column(3),
        stage=column(1),
        step=column(3),
        chunk=np.full(len(rows), -1),
        microbatch=np.full(len(rows), -1),
        start=column(4) * MS,
        end=column(5) * MS,
        group=np.array([pair.get(row[2], -1) for row in rows]),
        batch=np.array([1 if row[0] == 1 and row[2] in pair else -1 for row in rows]) if batch else None,
    )


@pytest.mark.parametrize(("batch", "took"), [(True, 1), (False, 61 - 30)])
def test_computation_waits_for_the_whole_batch_of_sends_and_receives(batch: bool, took: int) -> None:
    """Waited for behind the slow send, the receive took 1 ms; on its own, it took until 61."""
    job = recorded(batch)
    graph = graph_of(job)
    assert isinstance(graph, Graph)
    sent, received, computed = 2, 3, 4
    assert graph.own[received] / MS == took
    assert (sent in graph.before[computed]) is batch
    assert received in graph.before[computed]
