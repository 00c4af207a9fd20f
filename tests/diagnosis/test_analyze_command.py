"""`aorta analyze` and `scripts/analyze_profiling.py`: files written, verdict printed, exit codes."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from aorta.cli import group
from aorta.commands.analyze import NO_VERDICT
from aorta.errors import ArtefactError, ConfigError
from tests.support.synthetic import RunSpec, write_run

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "analyze_profiling.py"


def invoke(*words: str) -> Result:
    return CliRunner().invoke(group, ["analyze", "--no-accounting", *words])


def test_everything_is_written_and_the_verdict_printed(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunSpec(scenario="cpu_2node", nodes=2, job_id="7", data_wait_ms=90.0))
    alias = tmp_path / "cpu_2node_7"
    alias.symlink_to("cpu_2node/run_7")
    result = invoke(str(alias))
    assert result.exit_code == 0, result.output
    assert result.output.startswith("data_loading: Data loading takes up to ")
    assert json.loads(run.analysis.read_text())["verdict"]["kind"] == "data_loading"
    for path in (run.report, run.plot_png, run.plot_svg, run.cpu_csv):
        assert path.stat().st_size > 0


def test_several_runs_are_refused_with_the_command_that_compares_them(tmp_path: Path) -> None:
    first, second = (str(write_run(tmp_path, RunSpec(job_id=job)).root) for job in ("7", "8"))
    error = invoke(first, second).exception
    assert isinstance(error, ConfigError)
    assert error.message == "2 run directories are named, but an analysis reads only one run"
    assert error.hint == f"compare them: aorta compare {first} {second}"


def test_a_run_without_data_still_gets_its_report(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunSpec(steps=2))
    for rank in (0, 1):
        run.records(rank).write_text("{half a li")
    result = invoke(str(run.root))
    assert result.exit_code == NO_VERDICT, result.output
    assert result.output.startswith("insufficient_data: ")
    assert run.report.is_file()


@pytest.mark.usefixtures("no_charts")
def test_json_goes_where_it_is_sent(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunSpec())
    result = invoke(str(run.root), "--json", "-")
    assert json.loads(result.stdout)["verdict"]["kind"] == "healthy"
    target = tmp_path / "out" / "analysis.json"
    assert invoke(str(run.root), "--json", str(target)).exit_code == 0
    assert json.loads(target.read_text()) == json.loads(run.analysis.read_text())


def test_analysing_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunSpec(nodes=2, jitter_ms=10.0, device="cuda"))
    invoke(str(run.root))
    first = {path.name: path.read_bytes() for path in run.root.iterdir() if path.is_file()}
    invoke(str(run.root))
    assert {path.name: path.read_bytes() for path in run.root.iterdir() if path.is_file()} == first


def test_what_is_no_run_is_refused_with_what_was_expected(tmp_path: Path) -> None:
    result = invoke(str(tmp_path))
    assert isinstance(result.exception, ArtefactError)
    assert "is not a run directory" in result.exception.message
    assert "run_<JOB_ID>" in result.exception.hint


@pytest.mark.skipif(
    shutil.which("python3", path="/usr/bin:/usr/local/bin") is None, reason="no python3 of the system"
)
@pytest.mark.parametrize("own", [True, False], ids=["this python", "a python without aorta"])
def test_the_documented_script_does_the_same(tmp_path: Path, own: bool) -> None:
    python = sys.executable if own else shutil.which("python3", path="/usr/bin:/usr/local/bin")
    if not own and not (SCRIPT.parent.parent / ".venv" / "bin" / "python").exists():
        pytest.skip("no .venv beside the script")
    assert python is not None
    run = write_run(tmp_path, RunSpec(executor="local"))
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run(
        [python, str(SCRIPT), "--results", str(run.root)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stdout.split(":")[0]) == (0, "healthy"), done.stderr
    assert run.report.is_file()


def test_what_nobody_foresaw_names_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path, RunSpec(steps=2))

    def broken(run: object, **options: object) -> object:
        raise KeyError("odd")

    monkeypatch.setattr("aorta.commands._analysis.read_run", broken)
    result = invoke(str(run.root))
    assert f"{run.root} could not be analysed: KeyError: 'odd'" in (result.output + str(result.exception))


@pytest.mark.parametrize("kept", [True, False])
def test_a_run_of_somebody_else_is_shown_though_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    run = write_run(tmp_path, RunSpec(scenario="2node", nodes=2, job_id="7", data_wait_ms=90.0))

    def refuse(path: Path, value: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    if not kept:
        monkeypatch.setattr("aorta.artefacts.io.write_json", refuse)
    result = invoke(str(run.root), "--html", str(tmp_path / "page.html"))
    assert result.output.startswith("data_loading: ")
    assert (tmp_path / "page.html").stat().st_size > 0
    assert run.report.is_file() == kept
    if kept:
        assert result.exit_code == 0, result.output
    else:
        assert isinstance(result.exception, ArtefactError)
        assert result.exception.message == f"no report is kept in {run.root}: Permission denied"
