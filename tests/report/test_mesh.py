"""What a report shows of a mesh."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from aorta.artefacts.analysis import Analysis
from aorta.artefacts.mesh import Mesh, MeshGroup, SlowdownRecord, WorkerSteps
from aorta.diagnosis.analyse_operations import analyse_operations
from aorta.readers.operations import read_operations
from aorta.report.html import worker_table
from aorta.report.mesh import MAX_WORKERS, worker_heat
from aorta.report.run import run_text
from tests.support.pipelines import as_csv, pipeline

MS = 1_000_000


def slow_in_one_step(folder: Path) -> Analysis:
    """Two replicas of two stages; rank 3 takes three times as long in step 2."""
    plain = pipeline("gpipe", 2, 4, lambda *_: 10 * MS, replicas=2, steps=4)
    slow = pipeline(
        "gpipe", 2, 4, lambda replica, stage, _: (30 if (replica, stage) == (1, 1) else 10) * MS,
        replicas=2, steps=4,
    )  # fmt: skip
    chosen = [row for row in plain if row["step"] != 2] + [row for row in slow if row["step"] == 2]
    path = folder / "operations.csv"
    path.write_text(as_csv(chosen), encoding="utf-8")
    return analyse_operations(read_operations(path), "operations.csv")


def test_the_slow_worker_is_dark_in_its_step_alone(tmp_path: Path) -> None:
    """60 forwards take 10 ms and 4 of one step take 30, so that the mean is 11.25 ms. Backwards are alike."""
    found = slow_in_one_step(tmp_path)
    assert found.slowdown is not None
    workers = found.slowdown.by_worker_and_step
    assert workers is not None
    assert (workers.ranks, workers.steps) == ([0, 1, 2, 3], [0, 1, 2, 3])
    mean = (60 * 10 + 4 * 30) / 64
    # The slow one is the last stage: its 4 microbatches lie on the path, and one of the first stage.
    assert workers.values[3][2] == pytest.approx((4 * 30 + mean) / (5 * mean), abs=1e-3)
    # Faster than the mean, it gains nothing: the other replica takes the mean.
    assert [workers.values[3][step] for step in (0, 1, 3)] == pytest.approx([1.0] * 3, abs=1e-3)
    assert max(max(row) for row in workers.values[:3]) < 1.01


def test_a_report_shows_stages_groups_and_workers_by_steps(tmp_path: Path) -> None:
    found = slow_in_one_step(tmp_path)
    text = run_text(found)
    section = text[text.index("MESH") :]
    assert "gpipe, 4 microbatches per step, 2 stages" in section
    assert "20.0 % with equal stages and microbatches" in section
    assert "0 of 2  ranks 0, 2" in section
    assert "1 of 2  ranks 1, 3" in section
    assert "ms per step and rank" in section
    assert "S of each worker in each step" in section
    heat = worker_heat(found.slowdown)
    assert heat is not None
    assert heat.rows == ["rank 0", "rank 1", "rank 2", "rank 3"]
    html = worker_table(heat)
    assert html.count("<td") == 16
    assert html.count(",0.85)") == 1


def record(ranks: int, steps: int, slow: tuple[int, int]) -> SlowdownRecord:
    values = [[2.0 if (rank, step) == slow else 1.0 for step in range(steps)] for rank in range(ranks)]
    return SlowdownRecord(
        value=1.0,
        by_rank={},
        by_stage={},
        by_kind={},
        by_step={},
        by_worker_and_step=WorkerSteps(ranks=list(range(ranks)), steps=list(range(steps)), values=values),
        step_ms=1.0,
        ideal_ms=1.0,
        worker_share=None,
        stage_share=None,
        causes=[],
    )


def test_of_many_workers_and_steps_a_cell_is_the_slowest() -> None:
    heat = worker_heat(record(100, 25, (41, 7)), columns=10)
    assert heat is not None
    # 100 workers by 4 in a row, 25 steps by 3 in a column.
    assert len(heat.rows) == 25 <= MAX_WORKERS
    assert (heat.rows[10], heat.columns[2], heat.columns[-1]) == ("ranks 40–43", "6–8", "24")
    dark = [(row, at) for row, cells in enumerate(heat.values) for at, value in enumerate(cells) if value > 1]
    assert dark == [(10, 2)]
    assert "slowest of 4 workers and 3 steps" in heat.note


@pytest.mark.parametrize("found", [None, record(1, 3, (0, 0))])
def test_without_several_workers_there_is_no_heat_map(found: SlowdownRecord | None) -> None:
    assert worker_heat(found) is None


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ([[1e6, 3e6], [1e6, 3e6]], "mesh_ep:3 rank 5 6.00 75.0 % 50.0 %"),
        ([[2e6, 1e6], [1e6, 2e6]], "mesh_ep:3 all alike 3.00 50.0 % 50.0 %"),
        ([[0.0, 0.0], [0.0, 0.0]], "mesh_ep:3 all alike 0 — 50.0 %"),
        (None, None),
    ],
)
def test_who_gets_most_of_an_all_to_all(
    tmp_path: Path, sent: list[list[float]] | None, said: str | None
) -> None:
    """Rank 5 gets 3 + 3 of 8 MB."""
    group = MeshGroup(name="mesh_ep:3", dimension="expert", ranks=[4, 5], bytes_to=sent)
    text = run_text(structs.replace(slow_in_one_step(tmp_path), mesh=Mesh(groups=[group])))
    lines = text.partition("group of all-to-all")[2].splitlines()
    assert (" ".join(lines[2].split()) if lines else None) == said
