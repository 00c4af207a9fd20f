"""`aorta.load`: what tables hold, what stays absent, and that nothing is imported before its use."""

from __future__ import annotations

import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import aorta
from aorta.artefacts.io import write_json
from aorta.artefacts.layout import RunDir
from aorta.commands._analysis import analyze_run
from aorta.errors import ArtefactError
from aorta.exports.frames import RunFrames, load
from tests.support.run_spec import RunSpec
from tests.support.synthetic import write_run

STEPS, RANKS = 20, 2


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    for job in ("7", "8"):
        write_run(folder, RunSpec(nodes=1, steps=STEPS, ranks_per_node=RANKS, job_id=job))
    run = RunDir(folder / "1node/run_7")
    write_json(run.analysis, analyze_run(run).analysis)
    return folder


def test_one_run(results: Path) -> None:
    found = aorta.load(results / "1node/run_7")  # type: ignore[operator]
    assert isinstance(found, RunFrames)
    assert len(found.steps) == STEPS * RANKS
    assert set(found.steps["job_id"]) == {"7"}
    parts = ["compute_ns", "exposed_comm_ns", "data_wait_ns", "host_ns"]
    first = found.steps.iloc[0]
    copy = 0 if first.isna()["exposed_copy_ns"] else first["exposed_copy_ns"]
    assert sum(first[parts]) + copy == first["mono_end_ns"] - first["mono_start_ns"]
    assert first["step_ms"] == (first["mono_end_ns"] - first["mono_start_ns"]) / 1e6
    assert set(found.steps["phase"]) == {"warmup", "steady"}
    assert list(found.breakdown["rank"]) == [0, 1]
    assert list(found.runs["verdict"]) == [found.analyses[0].verdict.kind]


def test_a_folder_of_runs(results: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = load(results)
    assert len(found.steps) == 2 * STEPS * RANKS
    assert list(found.runs["job_id"]) == ["7"], "nobody analysed the other one"
    assert set(found.cpu["job_id"]) == {"7", "8"}


def test_one_analysis(results: Path) -> None:
    found = load(RunDir(results / "1node/run_7").analysis)
    assert len(found.breakdown) == RANKS
    assert not len(found.steps)


@pytest.mark.parametrize("name", ["profiling_analysis.json", "manifest.json"])
def test_a_broken_file_costs_nothing_else(results: Path, tmp_path: Path, name: str) -> None:
    assert not len(load(results).problems)
    results = shutil.copytree(results, tmp_path / "results")
    (results / "1node/run_7" / name).write_text("{")
    found = load(results)
    assert set(found.steps["job_id"]) == {"7", "8"}
    assert found.problems[["job_id", "file"]].to_numpy().tolist() == [["7", name]]
    assert "truncated" in found.problems["reason"][0]


def test_where_nothing_is(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match="is not a run"):
        load(tmp_path)
    with pytest.raises(AttributeError):
        aorta.nothing  # noqa: B018


def test_importing_aorta_imports_no_pandas() -> None:
    text = "import sys, aorta; print('pandas' in sys.modules, 'msgspec' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
