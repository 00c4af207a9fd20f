"""What the reports say of a run's origin, and the HTML page of `aorta analyze`."""

from __future__ import annotations

import shlex
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from aorta.artefacts.analysis import Analysis, Submitted
from aorta.artefacts.io import append_line, read_json, write_json
from aorta.artefacts.layout import RunDir
from aorta.artefacts.records import Manifest, SubmittedJob
from aorta.artefacts.submissions import SubmissionDir
from aorta.commands.analyze import command
from aorta.errors import ArtefactError, ConfigError
from tests.support.synthetic import RunSpec, write_run
from tests.support.traced import Job, Rank, write_job


def analyze(*words: str | Path) -> Result:
    return CliRunner().invoke(command, [str(word) for word in (*words, "--no-accounting")])


def run_of(results: Path) -> RunDir:
    return write_run(results, RunSpec(nodes=2, job_id="102", ranks_per_node=1, steps=24))


@pytest.mark.usefixtures("no_charts")
@pytest.mark.parametrize("job_id", ["102", "103"], ids=["of a submission", "by hand"])
def test_each_report_names_command_commit_and_submission(tmp_path: Path, job_id: str) -> None:
    run = run_of(tmp_path)
    submission = SubmissionDir(tmp_path / "run_20250101T000000Z")
    submission.root.mkdir()
    job = SubmittedJob(
        job_id=job_id,
        scenario="2node",
        nodes=2,
        run_dir=str(run.root),
        submitted_wall_ns=1,
        executor="slurm",
    )
    append_line(submission.jobs, msgspec.json.encode(job).decode())
    assert analyze(run.root).exit_code == 0
    expected = "run_20250101T000000Z" if job_id == "102" else None
    assert read_json(run.analysis, Analysis).submitted == Submitted(
        command=shlex.join(read_json(run.manifest, Manifest).plan.command),
        commit="0.1.0",
        submission=expected,
    )
    text = run.report.read_text(encoding="utf-8")
    assert "Command" in text
    assert ("Submission" in text) == (expected is not None)


@pytest.mark.usefixtures("no_charts")
@pytest.mark.parametrize("commit", ["0123456789ab-dirty", None])
def test_the_commit_of_an_own_program_is_its_own(tmp_path: Path, commit: str | None) -> None:
    run = run_of(tmp_path)
    manifest = read_json(run.manifest, Manifest)
    plan = msgspec.structs.replace(manifest.plan, command=["python", "my train.py"], workload=None)
    write_json(run.manifest, msgspec.structs.replace(manifest, plan=plan, program_commit=commit))
    assert analyze(run.root).exit_code == 0
    said = read_json(run.analysis, Analysis).submitted
    assert said == Submitted(command="python 'my train.py'", commit=commit, submission=None)


@pytest.mark.usefixtures("no_charts")
def test_a_run_without_a_manifest_has_no_origin(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    run.manifest.unlink()
    assert analyze(run.root).exit_code == 0
    assert read_json(run.analysis, Analysis).submitted is None


@pytest.mark.usefixtures("no_charts")
def test_a_page_of_a_run_and_of_traces(tmp_path: Path) -> None:
    run = run_of(tmp_path / "results")
    write_job(tmp_path / "traces", Job({rank: Rank() for rank in range(4)}))
    for source in (run.root, tmp_path / "traces"):
        page = tmp_path / "page.html"
        outcome = analyze(source, "--html", page)
        assert outcome.exit_code == 0, outcome.output
        text = page.read_text(encoding="utf-8")
        assert "Bottleneck analysis" in text
        assert '<canvas class="lanes"' in text
        if source == run.root:
            assert "node2" in text
            assert analyze(source, "--html", page, "--redact").exit_code == 0
            assert "node2" not in page.read_text(encoding="utf-8").replace("2node", "")
            assert str(tmp_path) not in page.read_text(encoding="utf-8")


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    write_job(tmp_path / "traces", Job({rank: Rank() for rank in range(4)}))
    (tmp_path / "file").write_text("")
    outcome = analyze(tmp_path / "traces", "--html", tmp_path / "file" / "page.html")
    assert isinstance(outcome.exception, ArtefactError)
    assert isinstance(analyze(tmp_path / "traces", "--redact").exception, ConfigError)
