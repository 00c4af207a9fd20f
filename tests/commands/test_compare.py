from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from aorta.artefacts.before_after import BeforeAfter
from aorta.artefacts.comparison import OverlapSummary
from aorta.artefacts.io import read_json
from aorta.commands.analyze import command as analyze
from aorta.commands.compare import command
from aorta.errors import AortaError, ArtefactError, ConfigError
from tests.support.synthetic import RunSpec, write_run

ROOT = Path(__file__).parents[2]


def run(folder: Path, name: str, **changes: object) -> Path:
    settings: dict[str, object] = {"ranks_per_node": 1, "steps": 24, "executor": "local", **changes}
    return write_run(folder / name, RunSpec(nodes=2, job_id="1", **settings)).root  # type: ignore[arg-type]


def arguments(*pairs: tuple[str, Path], output: Path) -> list[str]:
    words = [word for label, path in pairs for word in ("--log-dir", str(path), "--label", label)]
    return [*words, "--output", str(output)]


def test_two_runs_as_documented(tmp_path: Path) -> None:
    usual, slow = run(tmp_path, "a"), run(tmp_path, "b", extra_data_ms={1: 60.0})
    records = slow / "rank_1_metrics.jsonl"
    records.write_text(records.read_text() + "not a record\n")
    out = tmp_path / "out"
    words = arguments(("cuda", usual), ("rocm", slow), output=out)
    done = subprocess.run(
        [sys.executable, str(ROOT / "analysis" / "overlap_report.py"), *words,
         "--reference", "cuda", "--candidate", "rocm"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "rocm against cuda" in done.stdout
    assert {path.name for path in out.iterdir()} >= {
        "summary.json",
        "cuda_timeline.png",
        "rocm_timeline.png",
    }
    summary = read_json(out / "summary.json", OverlapSummary)
    assert summary.datasets["cuda"].ranks == [0, 1]
    assert summary.datasets["cuda"].problems == []
    assert [problem.file for problem in summary.datasets["rocm"].problems] == ["rank_1_metrics.jsonl"]
    (comparison,) = summary.comparisons
    assert comparison.metrics["data_wait_ms"].finding == "higher"
    assert comparison.metrics["step_ms"].finding == "higher"


def test_every_run_is_compared_with_the_first(tmp_path: Path) -> None:
    paths = [run(tmp_path, name) for name in "abc"]
    outcome = CliRunner().invoke(command, arguments(*zip("xyz", paths, strict=True), output=tmp_path / "out"))
    assert outcome.exit_code == 0, outcome.output
    summary = read_json(tmp_path / "out" / "summary.json", OverlapSummary)
    assert [(item.reference, item.candidate) for item in summary.comparisons] == [("x", "y"), ("x", "z")]


def test_parts_are_of_detailed_steps_and_step_times_of_all(tmp_path: Path) -> None:
    every = run(tmp_path, "a", warmup=4)
    some = run(tmp_path, "b", warmup=4, detail=(3, 10), detail_ms=10.0)
    none = run(tmp_path, "c", warmup=4, detail=(0, 10))
    words = arguments(("a", every), ("b", some), ("c", none), output=tmp_path / "out")
    outcome = CliRunner().invoke(command, words)
    assert outcome.exit_code == 0, outcome.output
    assert "b: 20 steady steps (6 timed part by part) of 2 ranks" in outcome.output
    summary = read_json(tmp_path / "out" / "summary.json", OverlapSummary)
    a, b, c = (summary.datasets[name] for name in "abc")
    assert [data.detailed_steps for data in (a, b, c)] == [None, 6, 0]
    assert [data.metrics["step_ms"].count for data in (a, b, c)] == [20, 20, 20]
    assert [data.metrics["host_ms"].count for data in (a, b, c)] == [20, 6, 0]
    # 5 ms of host time, and 10 more where parts are timed; 4 + 60 + 6 + 5 of the whole step.
    assert b.metrics["host_ms"].mean == pytest.approx(15)
    assert b.metrics["step_ms"].mean == pytest.approx(75 + 10 * 6 / 20)
    assert (b.metrics["compute_ms"].mean, c.overlap_ratio) == (pytest.approx(60), None)
    assert a.overlap_ratio == pytest.approx(b.overlap_ratio)
    assert any("every step in detail, which takes extra time" in note for note in summary.notes)
    assert [item.metrics["host_ms"].finding for item in summary.comparisons] == ["higher", "not measurable"]


def test_records_without_a_steady_step_say_what_they_are(tmp_path: Path) -> None:
    short = run(tmp_path, "short", steps=4, warmup=4)
    outcome = CliRunner().invoke(command, arguments(("x", short), output=tmp_path / "out"))
    assert outcome.exit_code == 0, outcome.output
    assert "no step is steady on every rank; records by phase: 8 warmup" in outcome.output
    assert "None" not in outcome.output


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        (["--log-dir", "a", "--label", "x", "--label", "y"], ConfigError, "1 --log-dir and 2 --label"),
        (["--log-dir", "a", "--label", "../x"], ConfigError, "cannot be used as a file name"),
        (["--log-dir", "a", "--label", "x", "--reference", "z"], ConfigError, "--reference z is not"),
        (["--log-dir", "nowhere", "--label", "x"], ArtefactError, "nowhere: no such folder"),
        (["--log-dir", ".", "--label", "x"], ArtefactError, "no step records"),
    ],
)
def test_bad_input_is_one_message(
    words: list[str],
    error: type[AortaError],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = CliRunner().invoke(command, [*words, "--output", "out"])
    assert isinstance(outcome.exception, error)
    assert message in str(outcome.exception)


def compared(*words: str | Path) -> str:
    outcome = CliRunner().invoke(command, [str(word) for word in words])
    assert outcome.exit_code == 0, outcome.output
    return outcome.output


def test_before_and_after_of_two_runs(tmp_path: Path) -> None:
    usual, slow = run(tmp_path, "a"), run(tmp_path, "b", extra_data_ms={1: 60.0})
    out = tmp_path / "out"
    text = compared(usual, slow, "--output", out, "--json", tmp_path / "found.json")
    # Rank 0 takes 75 ms; rank 1's loader takes 60 ms more, for which rank 0 waits.
    assert "Slower: the step takes 135 ms instead of 75.0 ms (1.800×" in text
    found = read_json(tmp_path / "found.json", BeforeAfter)
    (pair,) = found.pairs
    assert (pair.answer, pair.before_verdict, pair.after_verdict) == ("slower", "healthy", "data loading")
    waits = {part.name: (part.after_ms or 0.0) - (part.before_ms or 0.0) for part in pair.parts}
    assert waits["data wait"] == pytest.approx(30.0)  # the mean over two ranks
    assert waits["exposed communication"] == pytest.approx(30.0)
    assert {path.name for path in out.iterdir()} == {"comparison.md", "comparison.png", "comparison.svg"}
    assert "Faster: the step takes 75.0 ms instead of 135 ms" in compared(slow, usual)
    assert "Cannot be told apart" in compared(usual, usual)


def test_sides_that_are_not_alike_are_named(tmp_path: Path) -> None:
    usual, wide = run(tmp_path, "a"), run(tmp_path, "b", ranks_per_node=2)
    text = " ".join(compared(usual, wide).split())
    assert "Note: the number of ranks differs: 2 before, 4 after. The change may not be the cause." in text
    assert "Careful" not in compared(usual, usual)


def test_before_and_after_of_reports_and_submissions(tmp_path: Path) -> None:
    from aorta.commands._scenarios import run_aggregate

    runs = [
        run(tmp_path, name, **changes) for name, changes in (("a", {}), ("b", {"extra_data_ms": {1: 9.0}}))
    ]
    for folder in runs:
        CliRunner().invoke(analyze, [str(folder), "--no-accounting"])
    reports = [folder / "profiling_analysis.json" for folder in runs]
    assert "Slower" in compared(*reports)
    run_aggregate(tmp_path / "a", tmp_path / "docs")
    assert "Slower" in compared(tmp_path / "docs" / "BOTTLENECK_ANALYSIS.json", runs[1])


@pytest.mark.parametrize(
    ("words", "error"),
    [(["one"], ConfigError), (["a", "b", "c"], ConfigError), (["no such", "nothing"], ArtefactError)],
)
def test_wrong_sides_are_refused(words: list[str], error: type[AortaError]) -> None:
    outcome = CliRunner().invoke(command, words)
    assert isinstance(outcome.exception, error)


def test_the_two_forms_are_not_mixed(tmp_path: Path) -> None:
    outcome = CliRunner().invoke(command, ["a", "b", *arguments(("x", tmp_path), output=tmp_path)])
    assert isinstance(outcome.exception, ConfigError)
