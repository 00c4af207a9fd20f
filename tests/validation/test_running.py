"""Runs one after another: each is kept, none runs twice, and an interruption costs only the one that ran."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from aorta.artefacts.analysis import Analysis, Speedup, Verdict
from aorta.artefacts.layout import RunDir
from aorta.artefacts.study_layout import ValidationDir
from aorta.artefacts.validation import DiagnosedRun, Trial, Truth
from aorta.errors import ArtefactError
from aorta.validation.matrix import MatrixCell
from aorta.validation.running import Ended, analyse_again, in_order, read_trials, run_cells, what_was_said
from tests.support.analyses import data_loading_finding
from tests.support.verdicts import made

CELLS = [
    MatrixCell(nodes=1, truth=Truth(fault="clean", kinds=["healthy"])),
    MatrixCell(
        nodes=1, truth=Truth(fault="slow loader", strength="9 ms", place="all ranks", kinds=["data_loading"])
    ),
    MatrixCell(nodes=1, truth=Truth(fault="clean", kinds=["healthy"]), repeat=2),
]


class Machine:
    """Pretends to run cells; `stops_at` is interrupted, `fails_at` fails."""

    def __init__(self, stops_at: int | None = None, fails_at: int | None = None) -> None:
        self.stops_at, self.fails_at = stops_at, fails_at
        self.ran: list[str] = []

    def __call__(self, cell: MatrixCell, words: str) -> Ended:
        number = CELLS.index(cell)
        if number == self.stops_at:
            raise KeyboardInterrupt
        self.ran.append(words)
        failed = number == self.fails_at
        return Ended(f"job-{number}", Path(f"run_{number}"), not failed, "it failed" if failed else None)


@pytest.fixture
def folder(tmp_path: Path) -> ValidationDir:
    return ValidationDir(tmp_path / "validation")


@pytest.fixture
def healthy(tmp_path: Path) -> Analysis:
    return made(tmp_path, nodes=2)


def run(folder: ValidationDir, machine: Machine, analysis: Analysis) -> list[Trial]:
    told: list[Trial] = []
    run_cells(CELLS, folder, machine, lambda _: analysis, told.append)
    return told


def test_each_result_is_on_record_and_the_rest_runs_after_an_interruption(
    folder: ValidationDir, healthy: Analysis
) -> None:
    first = Machine(stops_at=1)
    with pytest.raises(KeyboardInterrupt):
        run(folder, first, healthy)
    assert list(read_trials(folder)) == ["1 node: clean #1"]
    second = Machine()
    told = run(folder, second, healthy)
    assert (first.ran, second.ran) == (["1 of 3"], ["2 of 3", "3 of 3"])
    assert [trial.cell for trial in told] == ["1 node: slow loader 9 ms all ranks", "1 node: clean #2"]
    assert run(folder, Machine(), healthy) == []


def test_a_run_that_failed_is_a_result_and_runs_again_the_next_time(
    folder: ValidationDir, healthy: Analysis
) -> None:
    told = run(folder, Machine(fails_at=1), healthy)
    assert [(trial.said is None, trial.problem) for trial in told] == [
        (False, None), (True, "it failed"), (False, None),
    ]  # fmt: skip
    again = Machine()
    run(folder, again, healthy)
    assert again.ran == ["2 of 3"]
    assert [trial.completed for trial in in_order(CELLS, read_trials(folder))] == [True, True, True]


def test_an_analysis_that_fails_costs_its_run_only(folder: ValidationDir, healthy: Analysis) -> None:
    def analyse(run: RunDir) -> Analysis:
        if run.root == Path("run_1"):
            raise ZeroDivisionError("by zero")
        return healthy

    told: list[Trial] = []
    run_cells(CELLS, folder, Machine(), analyse, told.append)
    assert [trial.problem for trial in told] == [
        None,
        "the analysis failed: ZeroDivisionError: by zero",
        None,
    ]
    analyse_again(CELLS, folder, lambda _: healthy, told.append)
    assert [trial.said is not None for trial in told[3:]] == [True, True, True]
    assert len(read_trials(folder)) == 3


def test_a_torn_line_costs_its_run(folder: ValidationDir, healthy: Analysis) -> None:
    run(folder, Machine(), healthy)
    lines = folder.trials.read_text().splitlines()
    folder.trials.write_text("\n".join([lines[0], lines[1][:40], lines[2]]))
    assert list(read_trials(folder)) == ["1 node: clean #1", "1 node: clean #2"]


def test_a_folder_that_was_moved_has_its_runs(folder: ValidationDir, healthy: Analysis) -> None:
    run(folder, Machine(), healthy)
    there = "/elsewhere/profiling/1node/run_0"
    folder.trials.write_text(folder.trials.read_text().replace('"run_0"', f'"{there}"'))
    assert read_trials(folder)["1 node: clean #1"].run_dir == there
    here = folder.root / "profiling/1node/run_0"
    here.mkdir(parents=True)
    assert read_trials(folder)["1 node: clean #1"].run_dir == str(here)


def test_a_record_that_cannot_be_read_or_written_is_named(tmp_path: Path, healthy: Analysis) -> None:
    (tmp_path / "runs.jsonl").mkdir()
    with pytest.raises(ArtefactError, match=r"runs\.jsonl: Is a directory"):
        read_trials(ValidationDir(tmp_path))
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtefactError, match="file"):
        run(ValidationDir(tmp_path / "file"), Machine(), healthy)


def test_the_truth_is_the_matrix_s_own_also_for_older_results(
    folder: ValidationDir, healthy: Analysis
) -> None:
    run(folder, Machine(), healthy)
    truth = Truth(fault="clean", kinds=["insufficient_data"])
    [trial] = in_order([MatrixCell(nodes=1, truth=truth)], read_trials(folder))
    assert trial.truth == truth


def test_what_is_scored_comes_from_the_leading_finding(tmp_path: Path, healthy: Analysis) -> None:
    found = made(tmp_path / "slow", nodes=2, extra_data_ms={1: 80.0})
    answer = what_was_said(found)
    assert (answer.kind, answer.ranks) == ("data_loading", [1])
    assert answer.step_ms == pytest.approx(155.0)  # 4 + 80 of loader + 60 + 6 + 5, as every rank waits for it
    nothing = what_was_said(healthy)
    assert (nothing.kind, nothing.speedup, nothing.cause) == ("healthy", None, None)


def test_bounds_are_no_interval_of_what_is_expected(healthy: Analysis) -> None:
    def answer(gained: Speedup) -> DiagnosedRun:
        found = data_loading_finding(estimated_speedup=gained)
        verdict = Verdict(kind=found.kind, statement="", ranks=[])
        return what_was_said(msgspec.structs.replace(healthy, verdict=verdict, findings=[found]))

    gained = Speedup(low=1.1, high=1.9, expected=1.5, basis="replay")
    replayed = answer(gained)
    assert (replayed.speedup, replayed.speedup_low, replayed.speedup_high) == (1.5, 1.1, 1.9)
    bounds = answer(msgspec.structs.replace(gained, basis="bounds"))
    assert (bounds.speedup, bounds.speedup_low, bounds.speedup_high) == (1.5, None, None)
