"""The document: targets with met or not met, every run, and nothing hidden."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from aorta.artefacts.io import read_json, write_json
from aorta.artefacts.records import GpuInfo, Manifest
from aorta.validation.document import document, told
from aorta.validation.matrix import Matrix, small_matrix
from aorta.validation.scoring import score
from tests.support.synthetic import RunSpec, write_run
from tests.validation.trials import clean, faulty, said

MATRIX = Matrix("validation", "by hand", small_matrix("local").cells, (("a | b", "no <GPU>"),))


def test_met_and_missed_targets_and_every_wrong_run_are_shown() -> None:
    right = faulty(
        1, "straggler", [1],
        said("straggler", 200.0, ranks=[1], speedup=1.9, speedup_low=1.8, speedup_high=2.1, cause="compute"),
    )  # fmt: skip
    wrong = faulty(2, "straggler", [1], said("communication", 150.0))
    text = document(MATRIX, score([clean(0), right, wrong]), made_by="aorta validate")
    for line in (
        "| verdict kind right in at least 95% | 1 of 2 (50.0%) | not met |",
        "| no false alarm in clean runs | 0 in 1 | met |",
        "| slow at 1 | 200.0 | 100.0 | 50% | straggler on rank 1 (compute) | yes | 2.00 "
        "| 1.90 (1.80 to 2.10) | 5.0% |",
        "| slow at 2 | 150.0 | 100.0 | 33% | communication | no | 1.50 | — | — |",
        "- slow at 2: It is communication.",
        "| clean #0 | 100.0 | healthy |  |",
        "| a \\| b | no &lt;GPU&gt; |",
    ):
        assert line in text
    assert "Incomplete" not in text
    assert "| measured speed-up inside the predicted 95% interval | 1 of 1 (100.0%) | no target |" in text
    assert "each half of the steps" not in text


def test_how_good_the_replay_is_is_said() -> None:
    runs = [
        faulty(at, "straggler", [], said("straggler", replay_error_pct=off))
        for at, off in ((1, 0.5), (2, 2.25))
    ]
    text = document(MATRIX, score(runs), made_by="aorta validate")
    assert "The median error is 1.38% and the largest 2.25%, in 2 runs." in text
    assert "predicted 95% interval" not in text


def test_runs_that_are_missing_and_runs_without_an_answer_are_said() -> None:
    dead = faulty(1, "straggler", [1], None, completed=False, problem="the run did not complete")
    text = document(MATRIX, score([dead]), made_by="aorta validate")
    assert "**Incomplete: 2 of 3 runs are missing.**" in text
    assert "| slow at 1 | — | — | — | no answer | no | — | — | — |" in text
    assert "- slow at 1: the run did not complete" in text
    assert "nothing ran" in document(MATRIX, score([]), made_by="aorta validate")


def test_the_machine_is_that_of_the_runs_wherever_they_are_analysed(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunSpec(nodes=1, ranks_per_node=2, steps=4))
    node = read_json(run.manifest, Manifest).nodes[0]
    cards = [GpuInfo(index=at, uuid=f"GPU-{at}", name="H100") for at in range(2)]
    described = replace(node, cpus_usable=64, gpus=cards, packages={"torch": "2.9", "python": "3.12"})
    write_json(run.manifest, replace(read_json(run.manifest, Manifest), nodes=[described]))
    text = document(MATRIX, score([replace(clean(0), run_dir=str(run.root))]), made_by="aorta validate")
    assert "; 64 cores, 2 x H100, Python 3.12, torch 2.9." in text
    text = document(MATRIX, score([clean(0)]), made_by="aorta validate")
    assert "a machine that no run describes" in text


def test_a_false_alarm_is_quoted() -> None:
    text = document(MATRIX, score([clean(0, kind="communication")]), made_by="aorta validate")
    assert "| clean #0 | 100.0 | communication | false alarm: It is communication. |" in text


def test_why_a_prediction_is_missing_is_said() -> None:
    run = faulty(1, "straggler", [], said("straggler", 200.0, withheld="the replay is 9 % off"))
    text = document(MATRIX, score([clean(0), run]), made_by="aorta validate")
    assert "- slow at 1: no prediction: the replay is 9 % off" in text


def test_one_line_a_run_as_it_ends() -> None:
    assert told(clean(0, 64.06)) == "  64.1 ms; healthy: right"
    assert told(clean(0, kind="straggler")) == "  100.0 ms; straggler: wrong"
    right_kind = faulty(1, "straggler", [1], said("straggler", None, ranks=[0]))
    assert told(right_kind) == "  no step time; straggler on rank 0: wrong"
    assert told(faulty(1, "straggler", [1], None, problem="it failed")) == "  it failed"
