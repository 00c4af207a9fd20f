"""The main job end to end, on a real Slurm cluster: what users type, and what they must find afterwards."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from aorta.artefacts.aggregate import Aggregate
from aorta.artefacts.analysis import Analysis
from aorta.artefacts.io import read_json
from aorta.artefacts.layout import RunDir, Scenario, runs
from aorta.artefacts.records import Manifest, RunStatus
from aorta.commands._scenarios import run_aggregate

pytestmark = pytest.mark.slurm

ROOT = Path(__file__).resolve().parents[2]
AORTA = Path(sys.executable).with_name("aorta")
SHORT = ["training.max_steps=50", "capture.warmup_steps=15"]
LONG = ["training.max_steps=1000000", "training.epochs=1000"]


class Project:
    """A folder from which a user works: results and documents of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.results = folder / "results/profiling"
        self.results.mkdir(parents=True)
        self.docs = folder / "docs"

    def run(self, *argv: str | Path, expect: int = 0, env: dict[str, str] | None = None) -> str:
        done = subprocess.run(
            [str(word) for word in argv],
            cwd=self.folder, env={**os.environ, **(env or {})}, capture_output=True, text=True,
            check=False, timeout=240, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == expect, f"{argv}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def submit(self, scenarios: str, overrides: list[str], *more: str) -> list[str]:
        before = self.job_ids()
        self.run(
            AORTA, "submit", "--results", self.results, "--scenarios", scenarios, "--config",
            ROOT / "config/small.yaml", *(["--override", *overrides] if overrides else []), *more,
        )  # fmt: skip
        return [job for job in self.job_ids() if job not in before]

    def job_ids(self) -> list[str]:
        files = sorted(self.results.glob("run_*/job_ids.txt"))
        return [line for path in files for line in path.read_text().split()]

    def wait(self, expect: int = 0) -> str:
        return self.run(AORTA, "wait", "--results", self.results, "--interval", "0.5", expect=expect)

    def aggregate(self) -> Aggregate:
        """In this process, which has imported everything; `test_the_main_job` calls the command."""
        run_aggregate(self.results, self.docs)
        return read_json(self.docs / "BOTTLENECK_ANALYSIS.json", Aggregate)

    def run_dir(self, scenario: str, job: str) -> RunDir:
        return RunDir.of(self.results, Scenario(scenario), job)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def until(what: str, condition: Callable[[], object], limit_s: float = 90) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {limit_s} s"
        time.sleep(0.2)


def steps(run: RunDir, rank: int) -> int:
    path = run.records(rank)
    return path.read_text().count("\n") if path.is_file() else 0


def steady_steps(run: RunDir, ranks: int) -> set[int]:
    """The steps past the warm-up that every rank has in its file."""
    found = []
    for rank in range(ranks):
        path = run.records(rank)
        lines = path.read_bytes().split(b"\n")[:-1] if path.is_file() else []
        records = [json.loads(line) for line in lines]
        found.append({item["global_step"] for item in records if item["phase"] == "steady"})
    return set.intersection(*found)


def rank_process(job: str, rank: int) -> int:
    """The pid of the Python process that is `rank` of `job` (loader workers are its children)."""
    wanted = {f"AORTA_JOB_ID={job}".encode(), f"RANK={rank}".encode()}
    pids = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            environment = set((entry / "environ").read_bytes().split(b"\0"))
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if wanted <= environment and b"aorta.workloads.trainer" in command:
            pids.append(int(entry.name))
    return min(pids)


def test_the_main_job(project: Project) -> None:
    jobs = project.submit("1node,2node,4node", SHORT)
    assert len(jobs) == 3
    assert "4node" in project.wait()
    aggregate = (AORTA, "aggregate", project.results, "--docs", project.docs)
    project.run(*aggregate)
    report = read_json(project.docs / "BOTTLENECK_ANALYSIS.json", Aggregate)

    accounting = project.run("sacct", "-X", "-n", "-P", "-o", "JobID,State", "-j", ",".join(jobs))
    assert accounting.split() == [f"{job}|COMPLETED" for job in jobs]
    for job, nodes in zip(jobs, (1, 2, 4), strict=True):
        run = project.run_dir(f"{nodes}node", job)
        manifest = read_json(run.manifest, Manifest)
        hosts = [node.host for node in manifest.nodes]
        assert len(set(hosts)) == nodes
        assert manifest.world_size == nodes
        assert read_json(run.status, RunStatus).state == "completed"
        sampled = {line.split(",")[5] for line in run.cpu_csv.read_text().splitlines()[1:]}
        assert sampled == set(hosts)
        assert "COMPLETED" in run.sacct_summary.read_text()
        for path in (run.report, run.plot_png, run.plot_svg, run.job_metadata, run.metrics_csv, run.script):
            assert path.stat().st_size > 0
        assert [steps(run, rank) for rank in range(nodes)] == [50] * nodes
        assert not run.gpu_csv.exists()
    (scaling,) = report.scaling
    assert [point.nodes for point in scaling.points] == [1, 2, 4]
    assert scaling.reference == "1node"
    assert scaling.label == "weak"
    assert report.missing == []
    assert report.verdict.kind not in ("data_loading", "insufficient_data")
    document = (project.docs / "BOTTLENECK_ANALYSIS.md").read_text()
    project.run(*aggregate)
    assert (project.docs / "BOTTLENECK_ANALYSIS.md").read_text() == document


def test_a_slow_loader_is_the_verdict(project: Project) -> None:
    (job,) = project.submit("2node", [*SHORT, "dataset.delay_ms=15"])
    project.wait()
    report = project.aggregate()
    assert report.verdict.kind == "data_loading"
    analysis = read_json(project.run_dir("2node", job).analysis, Analysis)
    assert analysis.verdict.kind == "data_loading"
    for rank in analysis.breakdown.per_rank:
        assert rank.data_wait_ms > 0.3 * rank.step_ms


DCRNN = ["dcrnn.num_steps=600", "dcrnn.num_nodes=8", "dcrnn.hidden_dim=8", "training.batch_size=8"]


def test_dcrnn_on_one_two_and_four_nodes(project: Project) -> None:
    project.run(
        AORTA, "submit", "--results", project.results, "--config", ROOT / "config/dcrnn.yaml",
        "--override", *DCRNN, "training.epochs=3", "training.max_steps=0", "capture.warmup_steps=5",
    )  # fmt: skip
    project.wait()
    report = project.aggregate()
    (scaling,) = report.scaling
    assert [point.nodes for point in scaling.points] == [1, 2, 4]
    assert report.verdict.kind != "insufficient_data"
    for job, nodes in zip(project.job_ids(), (1, 2, 4), strict=True):
        run = project.run_dir(f"{nodes}node", job)
        assert read_json(run.manifest, Manifest).plan.workload == "dcrnn"
        rows = list(csv.DictReader(run.metrics_csv.read_text().splitlines()))
        assert [row["epoch"] for row in rows] == ["0", "1", "2"]
        assert all(float(row["val_mae"]) > 0 and float(row["val_loss"]) > 0 for row in rows)


def test_scancel_in_the_middle_loses_nothing_that_was_measured(project: Project) -> None:
    (short,) = project.submit("1node", SHORT)
    (long,) = project.submit("4node", LONG)
    run = project.run_dir("4node", long)
    until("10 steady steps", lambda: len(steady_steps(run, 4)) >= 10)
    kept = len(steady_steps(run, 4))
    project.run("scancel", long)
    project.wait(expect=1)
    report = project.aggregate()

    assert read_json(run.status, RunStatus).state == "cancelled"
    by_name = {analysis.scenario: analysis for analysis in report.scenarios}
    assert by_name["4node"].data_quality.state is not None
    assert "cancelled" in by_name["4node"].data_quality.state.lower()
    assert by_name["4node"].breakdown.steps >= kept
    assert by_name["4node"].data_quality.nodes_seen == 4
    assert by_name["1node"].job_id == short
    assert "cancelled" in (project.docs / "BOTTLENECK_ANALYSIS.md").read_text().lower()


def test_a_killed_rank_is_named(project: Project) -> None:
    (job,) = project.submit("2node", LONG)
    run = project.run_dir("2node", job)
    until("20 steps", lambda: steps(run, 1) > 20)
    os.kill(rank_process(job, 1), signal.SIGKILL)
    project.wait(expect=1)
    report = project.aggregate()

    status = read_json(run.status, RunStatus)
    assert status.state == "failed"
    (exits,) = [node.ranks for node in status.nodes if node.node_index == 1]
    assert [(item.rank, item.signal) for item in exits] == [(1, "SIGKILL")]
    (analysis,) = report.scenarios
    assert any("rank 1" in problem.reason and "SIGKILL" in problem.reason
               for problem in analysis.data_quality.problems)  # fmt: skip
    assert "SIGKILL" in (project.docs / "BOTTLENECK_ANALYSIS.md").read_text()
    left = subprocess.run(["pgrep", "-f", f"run_{job}/config.yaml"], capture_output=True, check=False)
    assert left.stdout == b""


@pytest.fixture
def by_hand(project: Project) -> Project:
    """A project folder as a user has it: the committed scripts, the configurations, the environment."""
    for name in ("slurm", "scripts"):
        (project.folder / name).symlink_to(ROOT / name)
    (project.folder / "config").mkdir()
    for name, source in (("default.yaml", "small.yaml"), ("dcrnn.yaml", "dcrnn.yaml")):
        text = (ROOT / "config" / source).read_text()
        assert "max_steps: " in text
        (project.folder / "config" / name).write_text(text.replace("max_steps: ", "max_steps: 40 # "))
    binaries = project.folder / ".venv/bin"
    binaries.mkdir(parents=True)
    (binaries / "aorta").symlink_to(AORTA)
    (binaries / "python").symlink_to(sys.executable)
    return project


def test_committed_scripts_submitted_by_hand(by_hand: Project) -> None:
    jobs = {}
    for name in ("2node", "cpu_2node"):
        output = by_hand.run("sbatch", "--parsable", f"slurm/profile_{name}.sbatch")
        jobs[name] = output.strip()
        by_hand.run(AORTA, "wait", "--results", by_hand.results, "--job", jobs[name], "--interval", "0.5")
    found = {scenario.name: run.root.name for scenario, run in runs(by_hand.results)}
    assert found == {name: f"run_{job}" for name, job in jobs.items()}
    for name, job in jobs.items():
        assert (by_hand.results / f"profile_{name}_{job}.out").read_text()
        run = by_hand.run_dir(name, job)
        assert "run-node" in run.script.read_text()
        assert len(read_json(run.manifest, Manifest).nodes) == 2
    alias = f"results/profiling/cpu_2node_{jobs['cpu_2node']}"
    by_hand.run(sys.executable, "scripts/analyze_profiling.py", "--results", alias)
    assert by_hand.run_dir("cpu_2node", jobs["cpu_2node"]).report.is_file()
    report = by_hand.aggregate()
    assert {scaling.family for scaling in report.scaling} == {"", "cpu"}


PROGRAM = """
import sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
value = torch.ones(1)
dist.all_reduce(value)
print("argument", sys.argv[1], "sum", int(value), flush=True)
dist.destroy_process_group()
"""


def test_a_program_of_the_users_own(project: Project) -> None:
    script = project.folder / "mine.py"
    script.write_text(PROGRAM)
    (job,) = project.submit("2node", [], "--", str(script), "a b; touch pwned")
    project.wait()
    output = (project.results / f"profile_2node_{job}.out").read_text()
    assert output.count("argument a b; touch pwned sum 2") == 2
    assert not (project.folder / "pwned").exists()
    run = project.run_dir("2node", job)
    assert read_json(run.manifest, Manifest).plan.command[-2:] == [str(script), "a b; touch pwned"]
    report = project.aggregate()
    assert report.verdict.kind == "insufficient_data"
