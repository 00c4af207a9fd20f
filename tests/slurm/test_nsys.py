"""The main job under a real Nsight Systems, on a real Slurm cluster: NVTX ranges and calls, without a GPU."""

from __future__ import annotations

import csv
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from aorta.artefacts.analysis import Analysis
from aorta.artefacts.io import read_json
from aorta.artefacts.layout import RunDir, Scenario
from aorta.artefacts.records import Manifest, RunStatus
from aorta.launch import nsys
from tests.support.chrome import checked

pytestmark = pytest.mark.slurm

ROOT = Path(__file__).resolve().parents[2]
AORTA = Path(sys.executable).with_name("aorta")
STEPS = 4
SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "planted-in-the-key",
    "HF_TOKEN": "planted-in-the-token",
    "SOME_SETTING": "planted-in-a-variable-of-no-list",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, cluster: object) -> RunDir:
    """One job of two nodes under nsys, with secrets in its environment."""
    pytest.importorskip("nvtx", reason="without the package nvtx a CPU run has no ranges")
    program = nsys.find(os.environ, shutil.which)
    if program is None:
        pytest.skip("no Nsight Systems here; unpack one with scripts/install_nsys.sh, and set AORTA_NSYS")
    folder = tmp_path_factory.mktemp("nsys")
    results = folder / "results/profiling"
    environ = {**os.environ, **SECRETS, "AORTA_NSYS": program}

    def call(*words: str | Path) -> None:
        done = subprocess.run(
            [str(word) for word in words],
            cwd=folder, env=environ, capture_output=True, text=True, check=False, timeout=280,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, f"{words}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"

    call(
        AORTA, "submit", "--results", results, "--scenarios", "2node", "--profiler", "nsys",
        "--config", ROOT / "config/small.yaml", "--override", "training.max_steps=50",
        "capture.warmup_steps=15", "capture.start_step=30", f"capture.steps={STEPS}",
    )  # fmt: skip
    call(AORTA, "wait", "--results", results, "--interval", "0.5")
    call(AORTA, "aggregate", results, "--docs", folder / "docs")
    (job,) = next(iter(results.glob("run_*/job_ids.txt"))).read_text().split()
    return RunDir.of(results, Scenario("2node"), job)


def test_every_rank_leaves_a_report_and_nothing_is_lost(run: RunDir) -> None:
    status = read_json(run.status, RunStatus)
    assert (status.state, [node.lost for node in status.nodes]) == ("completed", [[], []])
    choices = [node.profiler for node in read_json(run.manifest, Manifest).nodes]
    assert {choice.resolved for choice in choices} == {"nsys"}
    assert all("Nsight Systems" in str(choice.version) for choice in choices)
    reports = sorted(
        path.name.split("_rank")[1].split("_")[0] for path in run.nsys_reports.glob("*.nsys-rep")
    )
    assert reports == ["0", "1"]
    assert stat.S_IMODE(run.nsys_reports.stat().st_mode) == 0o700


def test_exports_hold_the_captured_steps_and_their_parts(run: RunDir) -> None:
    for rank in range(2):
        (export,) = run.nsys.glob(f"*_rank{rank}_*.sqlite")
        with sqlite3.connect(export) as database:
            names = [name for (name,) in database.execute(
                "SELECT COALESCE(text, value) FROM NVTX_EVENTS LEFT JOIN StringIds ON id = textId"
                " WHERE eventType = 59 AND end IS NOT NULL"
            )]  # fmt: skip
        for name in ("aorta.step", "aorta.data", "aorta.forward", "aorta.backward", "aorta.optimizer"):
            assert names.count(name) == STEPS, name


def test_the_summary_is_that_of_the_exports(run: RunDir) -> None:
    with run.summary_stats("nsys").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    steps = {row["rank"]: row for row in rows if (row["kind"], row["name"]) == ("nvtx", "aorta.step")}
    assert sorted(steps) == ["0", "1"]
    for rank, row in steps.items():
        (export,) = run.nsys.glob(f"*_rank{rank}_*.sqlite")
        with sqlite3.connect(export) as database:
            ((total,),) = database.execute(
                "SELECT SUM(end - start) FROM NVTX_EVENTS LEFT JOIN StringIds ON id = textId"
                " WHERE eventType = 59 AND COALESCE(text, value) = 'aorta.step'"
            )
        assert (int(row["count"]), int(row["total_ns"])) == (STEPS, total)


def test_planted_secrets_are_nowhere_but_where_only_their_owner_may_look(run: RunDir) -> None:
    found = []
    private = run.nsys_reports.resolve()
    for path in run.root.parents[2].rglob("*"):
        if path.is_file() and private not in path.resolve().parents:
            data = path.read_bytes()
            found += [(path, name) for name, value in SECRETS.items() if value.encode() in data]
    assert found == []


def test_the_analysis_knows_the_run(run: RunDir) -> None:
    analysis = read_json(run.analysis, Analysis)
    assert analysis.data_quality.ranks_seen == 2
    # Without a GPU there is nothing to break down; nothing else may be wrong.
    problems = [problem.reason for problem in analysis.data_quality.problems]
    assert problems == ["it has no steps with GPU events to break down"] * 2


def test_its_timeline_holds_the_ranges_of_both_ranks(run: RunDir, tmp_path: Path) -> None:
    output = tmp_path / "t.json.gz"
    argv = [str(AORTA), "timeline", str(run.root), "-o", str(output)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    events = checked(output)
    process = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    steps = [process[e["pid"]] for e in events if e["ph"] == "X" and e["name"] == "aorta.step"]
    assert sorted(steps) == ["rank 0"] * STEPS + ["rank 1"] * STEPS
