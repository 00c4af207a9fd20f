"""An interrupted matrix goes on where it stopped."""

from __future__ import annotations

import os
from pathlib import Path

from aorta.artefacts.analysis import Analysis
from aorta.artefacts.layout import RunDir
from aorta.errors import AortaError
from aorta.validation.hangs import HangCell, HangTrial, hang_matrix
from aorta.validation.resumable import analysed_run, run_matrix
from tests.support.synthetic import RunSpec, write_run


def trial(cell: HangCell) -> HangTrial:
    return HangTrial(
        cell=cell.name,
        case=cell.case,
        nodes=cell.nodes,
        rank=cell.rank,
        verdict=None,
        kind=None,
        ranks=[],
        after_s=None,
    )


def test_what_is_on_record_is_not_run_again_and_all_come_in_the_matrix_s_order(tmp_path):
    cells, ran, told = hang_matrix(1)[:3], [], []

    def run(cell):
        ran.append(cell.name)
        return trial(cell)

    run_matrix(cells[1:2], tmp_path / "runs.jsonl", HangTrial, run, told.append)
    found = run_matrix(cells, tmp_path / "runs.jsonl", HangTrial, run, told.append)
    assert found == [trial(cell) for cell in cells]
    assert ran == [cells[1].name, cells[0].name, cells[2].name]
    assert [item.cell for item in told] == ran


def test_a_cell_that_ran_again_is_judged_by_its_newest_run(tmp_path: Path) -> None:
    for at, job in enumerate(("8", "7")):
        run = write_run(tmp_path / "results", RunSpec(job_id=job, steps=2, warmup=1))
        os.utime(run.root, (at, at))
    asked: list[str] = []

    def analyse(run: RunDir) -> Analysis:
        asked.append(run.root.name)
        raise AortaError("not needed")

    assert analysed_run(tmp_path, analyse) == "not needed"
    assert asked == ["run_7"]
