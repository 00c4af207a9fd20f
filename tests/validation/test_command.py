"""`aorta validate` as a person calls it: refusals, and a small matrix through the real pipeline."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest
from click.testing import Result

from aorta.artefacts.layout import RunDir
from aorta.artefacts.study_layout import ValidationDir
from aorta.artefacts.validation import Trial
from aorta.commands import profile
from tests.support.commands import refused, run, without_site
from tests.validation.trials import clean, faulty, said

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "config").mkdir()
    shutil.copy(ROOT / "config" / "validation.yaml", tmp_path / "config")
    without_site(monkeypatch)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def validate(*words: str) -> Result:
    return run("validate", *words)


def test_a_small_matrix_through_the_real_pipeline(project: Path) -> None:
    result = validate("--small", "--into", "runs")
    assert result.exception is None, result.output
    text = Path("results/validation-small.md").read_text()
    assert "Made by `aorta validate --small`" in text
    assert "Incomplete" not in text
    trials = [
        msgspec.json.decode(line, type=Trial)
        for line in ValidationDir(Path("runs")).trials.read_text().splitlines()
    ]
    assert [trial.completed for trial in trials] == [True, True, True]
    plain, loader, device = (trial.said for trial in trials)
    assert plain is not None
    assert loader is not None
    assert device is not None
    # A fault of 90 ms, and the sleep of 60 ms that every step has: neither can take less.
    assert plain.step_ms is not None
    assert plain.step_ms >= 60.0
    assert (loader.kind, loader.ranks) == ("data_loading", [1])
    assert (device.kind, device.ranks) == ("straggler", [0])
    assert loader.step_ms is not None
    assert loader.step_ms >= 150.0
    assert RunDir(Path(trials[1].run_dir)).injected.exists()
    assert not RunDir(Path(trials[0].run_dir)).injected.exists()
    assert result.return_value == (0 if "not met" not in text else 1)


def test_the_exit_status_says_whether_every_target_is_met(project: Path) -> None:
    answer = said("data_loading", 200.0, ranks=[1], speedup=2.0)
    right = [
        clean(0, cell="2 nodes: clean #1"),
        faulty(1, "data_loading", [1], answer, cell="2 nodes: slow loader 90 ms rank 1"),
        faulty(
            2, "straggler", [0], said("straggler", 200.0, ranks=[0], speedup=1.9),
            cell="2 nodes: slow device 90 ms rank 0",
        ),
    ]  # fmt: skip
    write(right)
    good = validate("--small", "--into", "runs")
    assert (good.exception, good.return_value) == (None, 0)
    assert "met" in good.output
    write([clean(0, kind="communication", cell="2 nodes: clean #1"), *right[1:]])
    bad = validate("--small", "--into", "runs")
    assert (bad.exception, bad.return_value) == (None, 1)


def write(trials: list[Trial]) -> None:
    Path("runs").mkdir(exist_ok=True)
    lines = [msgspec.json.encode(trial).decode() + "\n" for trial in trials]
    Path("runs/runs.jsonl").write_text("".join(lines))


def test_a_signal_ends_it_with_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    write([clean(0, cell="2 nodes: clean #1")])
    monkeypatch.setattr(profile, "run_all", lambda *_, **__: (False, 15))
    ended = validate("--small", "--into", "runs")
    assert (ended.exception, ended.return_value) == (None, 128 + 15)
    assert "**Incomplete: 2 of 3 runs are missing.**" in Path("results/validation-small.md").read_text()


def test_what_cannot_work_is_refused() -> None:
    assert "its own matrix" in str(refused("validate", "--gpus", "2", "--small"))
    assert "name it with --into" in str(refused("validate", "--analyse-only"))
    assert "between ranks" in str(refused("validate", "--gpus", "1"))


def test_more_gpus_than_there_are_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from aorta.launch import local

    monkeypatch.setattr(local, "visible_gpus", lambda _: ["GPU-1"])
    assert "this machine has 1" in str(refused("validate", "--gpus", "2"))


def test_a_folder_without_runs_leaves_the_document_as_it_is(tmp_path: Path) -> None:
    document = tmp_path / "validation.md"
    document.write_text("of an earlier validation")
    said = refused("validate", "--analyse-only", "--into", str(tmp_path / "empty"), "--docs", str(tmp_path))
    assert "contains no run" in str(said)
    assert document.read_text() == "of an earlier validation"
