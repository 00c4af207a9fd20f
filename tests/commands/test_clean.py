"""`aorta runs` lists runs and reports; `aorta clean` removes old ones, and only what aorta wrote."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from aorta.artefacts.io import json_line
from aorta.artefacts.layout import RunDir
from aorta.artefacts.records import SubmittedJob
from aorta.cli import group
from aorta.commands import clean
from aorta.commands._reports import docs_folder, keep_earlier, kept_reports, writing
from aorta.errors import ArtefactError
from tests.support.commands import run
from tests.support.run_spec import RunSpec
from tests.support.synthetic import write_run

DAY_S = 86_400
NS = 1_000_000_000


def report(docs: Path, at_s: int, verdict: str = "all is well") -> None:
    """A report whose newest input is of `at_s`."""
    (docs / "bottleneck_analysis").mkdir(parents=True, exist_ok=True)
    value = {"generated_wall_ns": at_s * NS, "verdict": {"kind": "healthy", "statement": verdict}}
    (docs / "BOTTLENECK_ANALYSIS.json").write_text(json.dumps(value))
    (docs / "BOTTLENECK_ANALYSIS.md").write_text(
        "![map](bottleneck_analysis/1node.png) [run](../results/profiling/1node/run_7/)"
    )
    (docs / "bottleneck_analysis" / "1node.png").write_text(str(at_s))


def made(tmp_path: Path, job: str, *, days: float) -> RunDir:
    """A run in which nothing changed for some days."""
    found = write_run(tmp_path / "results" / "profiling", RunSpec(steps=3, nodes=1, job_id=job))
    age(found.root, days)
    return found


def age(folder: Path, days: float) -> None:
    at = time.time() - days * DAY_S
    for path in [*folder.rglob("*"), folder]:
        os.utime(path, (at, at), follow_symlinks=False)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_report_goes_to_docs_in_the_checkout_alone(project: Path) -> None:
    assert docs_folder(Path("there"), Path("results/profiling")) == Path("there")
    assert docs_folder(None, Path("results/profiling")) == Path("results")
    assert docs_folder(None, Path("mine")) == Path("mine")
    (project / "pyproject.toml").write_text('[project]\nname = "mine"\n')
    assert docs_folder(None, Path("results/profiling")) == Path("results")
    (project / "pyproject.toml").write_text('[project]\nname = "aorta"\n')
    assert docs_folder(None, Path("results/profiling")) == Path("docs")


def test_a_report_of_another_user_is_not_touched(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report(project / "results", 1000)
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000)
    assert docs_folder(None, Path("results/profiling")) == Path("results/user_4000000")
    assert docs_folder(Path("there"), Path("results/profiling")) == Path("there")


def test_the_report_that_is_replaced_is_kept_with_its_links(project: Path) -> None:
    docs, results = project / "docs", project / "results" / "profiling"
    (results / "1node" / "run_7").mkdir(parents=True)
    report(docs, 1000)
    assert keep_earlier(docs, results, "BOTTLENECK_ANALYSIS", 1000 * NS) is None
    folder = keep_earlier(docs, results, "BOTTLENECK_ANALYSIS", 2000 * NS)
    assert folder == results / "reports" / "19700101T001640Z"
    text = (folder / "BOTTLENECK_ANALYSIS.md").read_text()
    picture, target = (piece.partition(")")[0] for piece in text.split("](")[1:])
    assert (folder / picture).read_text() == "1000"
    assert (folder / target).resolve() == results / "1node" / "run_7"
    assert [kept.generated_wall_ns for kept in kept_reports(results)] == [1000 * NS]
    # The same once more makes no second copy.
    assert keep_earlier(docs, results, "BOTTLENECK_ANALYSIS", 3000 * NS) is None


def test_a_copy_that_cannot_be_written_is_named_and_not_its_source(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match=r"^docs/1node.png: No space left"), writing(Path("docs")):
        raise OSError(28, "No space left on device", "run_7/plot.png", None, "docs/1node.png")
    with pytest.raises(ArtefactError, match=r"^docs/a.md: No space left"), writing(Path("docs")):
        raise OSError(28, "No space left on device", "docs/a.md")


def test_runs_lists_runs_and_reports(project: Path) -> None:
    made(project, "7", days=0)
    report(project / "results", int(time.time()), "waits for rank 1")
    keep_earlier(project / "results", project / "results" / "profiling", "BOTTLENECK_ANALYSIS", 0)
    entries = json.loads(run("runs", "--json").stdout)["entries"]
    assert {entry["what"] for entry in entries} == {"run", "report", "earlier report"}
    (found,) = (entry for entry in entries if entry["what"] == "run")
    assert (found["name"], found["job_id"], found["state"]) == ("1node", "7", "completed")
    table = run("runs").stdout
    assert "waits for" in table
    assert "1node" in table
    assert len(run("runs", "--limit", "1").stdout.splitlines()) < len(table.splitlines())


def test_runs_never_cuts_a_path(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    paths = [entry["path"] for entry in json.loads(run("runs", "--json").stdout)["entries"]]
    lines = run("runs").stdout.splitlines()
    assert len(lines) == 1 + len(paths)
    assert all(f" {path} " in f"{line} " for path, line in zip(paths, lines[1:], strict=True))


def test_runs_without_any_says_how_to_start(project: Path) -> None:
    assert "aorta profile" in run("runs").stdout
    assert json.loads(run("runs", "--json").stdout) == {"entries": []}


def test_old_runs_go_and_young_ones_stay(project: Path) -> None:
    old, young = made(project, "7", days=40), made(project, "8", days=20)
    output = project / "results" / "profiling" / "profile_1node_7.out"
    output.write_text("")
    told = run("clean", "--older-than", "30d", "--dry-run").stdout
    assert str(old.root.relative_to(project)) in told
    assert old.root.exists()
    result = run("clean", "--older-than", "30d", "--yes")
    assert result.exception is None
    assert not old.root.exists()
    assert not output.exists()
    assert young.manifest.is_file()
    assert "nothing below" in run("clean", "--older-than", "30d", "--yes").stdout


def test_files_that_cannot_be_removed_are_an_error_and_few_are_named(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = made(project, "7", days=40)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("aorta.commands._removal.os.unlink", refuse)
    result = run("clean", "--older-than", "30d", "--yes")
    assert result.return_value == 4
    stays = [line for line in result.stdout.splitlines() if line.startswith("stays:")]
    # Three files and the number of the others.
    assert len(stays) == 4
    assert stays[0].endswith("Permission denied")
    assert stays[3].endswith("which could not be removed")
    assert old.manifest.is_file()


def test_a_file_of_the_users_stays_with_the_folder_and_its_mark(project: Path) -> None:
    old = made(project, "7", days=40)
    (old.root / "notes.txt").write_text("mine")
    age(old.root, 40)
    told = run("clean", "--older-than", "30d", "--yes").stdout
    assert "notes.txt" in told
    assert (old.root / "notes.txt").read_text() == "mine"
    assert old.manifest.is_file()
    assert not old.records(0).exists()


MADE = (
    "nodes/node0/.reserve", "nodes/node0/.status.json.k3_x9abc", "nodes/node0/standstill.json",
    "nodes/node0/traces/rank_0.json", "nodes/node0/logs/reduce.log", "nodes/node0/logs/rank3/error.json",
    "nodes/node0/logs/6f2e_abc/attempt_0/1/stderr.log", "nsys/toy_1node_profile_rank0_node1_7.sqlite",
    "nsys/private/toy_1node_profile_rank0_node1_7.nsys-rep", "nsys/summary_stats.csv",
    "rocprof/x_1node_profile_rank0_host_1_kernel_trace.csv", "torch_profiler/rank0/rank0.1.pt.trace.json.gz",
    "torch_profiler/rank0.pt.trace.json", "checkpoints/epoch_3.pt", "attempt_1/manifest.json",
    "attempt_1/nodes/node0/logs/rank0/stdout.log", "earlier_20260101T000000Z/rank_0_metrics.jsonl",
)  # fmt: skip
MINE = (
    "nodes/notes.txt", "nodes/node0/logs/rank3/core.12", "nsys/mine.sqlite", "torch_profiler/rank0/plot.png",
    "checkpoints/best.pt", "checkpoints/old/epoch_3.pt", "attempt_1/notes.txt", "mine/deep/down", ".hidden",
)  # fmt: skip


def put(folder: Path, names: tuple[str, ...]) -> list[Path]:
    found = [folder / name for name in names]
    for path in found:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    age(folder, 40)
    return found


def test_every_file_that_aorta_writes_goes_with_its_folder(project: Path) -> None:
    old = made(project, "7", days=40)
    put(old.root, MADE)
    assert "stays" not in run("clean", "--older-than", "30d", "--yes").stdout
    assert not old.root.exists()


def test_files_of_the_users_stay_in_every_folder(project: Path) -> None:
    old = made(project, "7", days=40)
    ours, mine = put(old.root, MADE), put(old.root, MINE)
    told = run("clean", "--older-than", "30d", "--yes").stdout
    assert [path for path in mine if f"stays: {path.relative_to(project)}" not in told] == []
    assert [path for path in mine if path.read_text() != "x"] == []
    assert [path for path in ours if path.exists()] == []
    assert old.manifest.is_file()


def test_links_in_a_run_are_neither_followed_nor_removed(project: Path) -> None:
    old = made(project, "7", days=40)
    elsewhere = put(project / "elsewhere", ("epoch_0.pt", "stdout.log"))
    (old.root / "checkpoints").symlink_to(project / "elsewhere")
    (old.root / "nodes/node0/status.json").unlink()
    (old.root / "nodes/node0/status.json").symlink_to(elsewhere[1])
    age(old.root, 40)
    told = run("clean", "--older-than", "30d", "--yes").stdout
    assert told.count("aorta did not write it") == 2
    assert [path for path in elsewhere if path.read_text() != "x"] == []


@pytest.mark.parametrize("below", [True, False])
def test_an_empty_folder_that_a_record_names_goes_if_it_is_below_the_results(
    project: Path, below: bool
) -> None:
    results = project / "results" / "profiling"
    named = results / "1node" / "run_9" if below else project / "mine" / "empty" / "run_9"
    named.mkdir(parents=True)
    submission = results / "run_20260101T000000Z"
    submission.mkdir(parents=True)
    job = SubmittedJob(
        job_id="9", scenario="1node", nodes=1, run_dir=str(named), submitted_wall_ns=1, executor="slurm"
    )
    (submission / "jobs.jsonl").write_text(json_line(job) + "\n")
    age(submission, 40)
    run("clean", "--older-than", "30d", "--yes")
    assert not submission.exists()
    assert named.exists() != below


@pytest.mark.parametrize("mark", ["none", "of another job", "broken"])
def test_a_folder_without_our_own_mark_stays(project: Path, mark: str) -> None:
    old = made(project, "7", days=40)
    if mark == "none":
        old.manifest.unlink()
    elif mark == "broken":
        old.manifest.write_text("{")
    else:
        old.manifest.write_text(old.manifest.read_text().replace('"7"', '"8"'))
    age(old.root, 40)
    before = sorted(old.root.rglob("*"))
    assert "nothing below" in run("clean", "--older-than", "30d", "--yes").stdout
    assert sorted(old.root.rglob("*")) == before


def test_a_link_to_a_run_is_not_followed(project: Path) -> None:
    elsewhere = write_run(project / "elsewhere", RunSpec(steps=3, nodes=1, job_id="7"))
    age(elsewhere.root, 40)
    folder = project / "results" / "profiling" / "1node"
    folder.mkdir(parents=True)
    (folder / "run_7").symlink_to(elsewhere.root)
    assert "nothing below" in run("clean", "--older-than", "30d", "--yes").stdout
    assert elsewhere.manifest.is_file()


def test_an_earlier_report_goes_and_the_newest_stays(project: Path) -> None:
    docs, results = project / "results", project / "results" / "profiling"
    report(docs, 1000)
    kept = keep_earlier(docs, results, "BOTTLENECK_ANALYSIS", 2000 * NS)
    assert kept is not None
    age(project / "results", 40)
    run("clean", "--older-than", "30d", "--yes")
    assert not kept.exists()
    assert (docs / "BOTTLENECK_ANALYSIS.md").is_file()


def test_without_a_terminal_it_wants_yes(project: Path) -> None:
    old = made(project, "7", days=40)
    result = run("clean", "--older-than", "30d")
    assert "--yes" in str(result.exception)
    assert old.root.exists()


@pytest.mark.parametrize(("answer", "stays"), [("n", True), ("", True), ("y", False)])
def test_a_person_is_asked_and_may_say_no(
    answer: str, stays: bool, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = made(project, "7", days=40)

    terminal = SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(clean, "sys", terminal)
    result = CliRunner().invoke(
        group, ["clean", "--older-than", "30d"], input=f"{answer}\n", standalone_mode=False
    )
    assert result.return_value == 0
    assert ("nothing was removed" in result.output) is stays
    assert old.root.exists() is stays


@pytest.mark.parametrize("age_words", ["30", "d", "-1d", "1y", "1.5d"])
def test_an_age_needs_a_unit(project: Path, age_words: str) -> None:
    result = run("clean", f"--older-than={age_words}", "--yes")
    assert "write 12h, 30d or 8w" in str(result.exception)
