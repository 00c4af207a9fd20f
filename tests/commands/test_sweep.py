"""`aorta sweep` and what `wait` and `aggregate` make of it, against stand-ins for Slurm and for the runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from aorta.artefacts.aggregate import Aggregate
from aorta.artefacts.io import read_json
from aorta.artefacts.layout import RunDir, Scenario
from aorta.artefacts.records import SubmittedJob
from aorta.artefacts.study_layout import SweepDocs
from aorta.artefacts.submissions import SubmissionDir, submissions
from aorta.artefacts.sweep import Sweep, SweepAnalysis, SweepPoint
from aorta.commands import profile
from aorta.commands._choice import choose
from aorta.config.load import load_config
from aorta.errors import ArtefactError
from aorta.launch import local
from aorta.launch.plan import LaunchPlan
from aorta.launch.slurm import JobView
from aorta.launch.states import STATES
from aorta.launch.submitted import read_sweep
from aorta.launch.tools import ToolAnswer
from tests.support.commands import refused, run, without_site
from tests.support.slurm import FakeSlurm
from tests.support.synthetic import RunSpec, write_run


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project folder with a configuration; no site settings in the environment."""
    without_site(monkeypatch)
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "small.yaml").write_text("training: {max_steps: 3, batch_size: 8}\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def newest(project: Path) -> SubmissionDir:
    return submissions(project / "results/profiling")[-1]


def spec(point: SweepPoint, **changes: Any) -> RunSpec:
    """A run of one rank a node whose compute grows with its batch, and a little with the repeat."""
    assert point.job_id is not None
    batch = int(point.values.get("training.batch_size", "8"))
    return RunSpec(
        nodes=point.nodes, ranks_per_node=1, steps=14, warmup=4, job_id=point.job_id, batch_size=batch,
        compute_ms=20.0 + batch + point.repeat, executor="local", **changes,
    )  # fmt: skip


def write(results: Path, point: SweepPoint, **changes: Any) -> None:
    """The point's run, in the folder that the submission made for it."""
    made = spec(point, **changes)
    RunDir.of(results, Scenario(made.name), made.job_id).root.rmdir()
    write_run(results, made)


SMALL = ("sweep", "--over", "training.batch_size=8,16", "--repeats", "2")


def test_a_sweep_is_one_array_a_number_of_nodes(slurm: FakeSlurm, project: Path) -> None:
    result = run(*SMALL, "--nodes", "1,2", "--override", "training.seed=5")
    assert result.exception is None
    for line in ("8 points", "submitted 1node: array 101, 4 tasks", "each point starts after the previous"):
        assert line in result.output
    submission = newest(project)
    assert submission.job_ids.read_text().split() == [
        f"{101 + n}_{task}" for n in (0, 1) for task in range(4)
    ]
    assert "#SBATCH --array=0-3%1" in (submission.root / "1node.sbatch").read_text()
    assert "--dependency=afterany:101" in slurm.asked[-1]
    config = load_config(submission.root / "points/2node/3.yaml")
    assert (config.training.batch_size, config.training.seed, config.training.max_steps) == (16, 5, 3)
    assert "--profiler none" in (submission.root / "1node.sbatch").read_text()


def test_as_many_points_at_a_time_as_asked_for(slurm: FakeSlurm, project: Path) -> None:
    run(*SMALL, "--at-most", "3")
    assert "#SBATCH --array=0-3%3" in (newest(project).root / "1node.sbatch").read_text()


def test_where_nodes_are_machines_of_their_own_there_is_no_limit(slurm: FakeSlurm, project: Path) -> None:
    result = run(*SMALL, "--partition", "gpu", "--assume-shared", "--nodes", "1,2")
    assert result.exception is None
    assert "#SBATCH --array=0-3\n" in (newest(project).root / "2node.sbatch").read_text()
    assert not any(word.startswith("--dependency") for word in slurm.asked[-1])


def test_strong_scaling_fixes_the_processes_that_it_counts_on(slurm: FakeSlurm, project: Path) -> None:
    assert run("sweep", "--strong", "16").exception is None
    submission = newest(project)
    assert [point.per_rank_batch for point in read_sweep(submission).points] == [16, 8, 4]
    assert "--procs-per-node 1" in (submission.root / "4node.sbatch").read_text()


def test_a_dry_run_prints_the_arrays_and_touches_nothing(slurm: FakeSlurm, project: Path) -> None:
    before = sorted(project.rglob("*"))
    result = run(*SMALL, "--dry-run")
    assert "# 3: batch_size=16 #2" in result.output
    assert "#SBATCH --array=0-3%1" in result.output
    assert "sbatch" not in slurm.programs()
    assert sorted(project.rglob("*")) == before


def test_the_analysis_waits_for_whole_arrays(slurm: FakeSlurm) -> None:
    result = run(*SMALL, "--nodes", "1,2", "--aggregate")
    assert "submitted aggregate: job 103" in result.output
    assert "--dependency=afterany:101:102" in slurm.asked[-1]


def test_refusals_come_before_anything_is_written(slurm: FakeSlurm, project: Path) -> None:
    assert "nothing varies" in str(refused("sweep"))
    assert "4 ranks" in str(refused("sweep", "--strong", "6", "--nodes", "1,4"))
    assert "partition 'debug' has 4" in str(refused(*SMALL, "--nodes", "9"))
    assert "for Slurm" in str(refused(*SMALL, "--executor", "local", "--at-most", "2"))
    assert not (project / "results").exists()
    assert "sbatch" not in slurm.programs()


def test_waiting_names_the_points(slurm: FakeSlurm, project: Path) -> None:
    run("sweep", "--over", "training.batch_size=8,16")
    slurm.replies["squeue"] = ToolAnswer(0, "101_0|COMPLETED|0:03|1|n1|None\n101_1|FAILED|0:03|1|n1|None\n")
    result = run("wait")
    assert "1node batch_size=8 #1  101_0  COMPLETED" in result.output
    assert "1node batch_size=16 #1  101_1  FAILED" in result.output
    assert "not completed: 101_1" in result.output
    assert result.return_value == 1


def test_the_id_of_an_array_stands_for_its_tasks(slurm: FakeSlurm, project: Path) -> None:
    # Task 0 has left the queue, and there is no accounting: its run says that it was there.
    made = write_run(project / "results/profiling", RunSpec(nodes=1, ranks_per_node=1, job_id="77_0"))
    assert made.root.name == "run_77_0"

    def squeue(argv: Sequence[str]) -> ToolAnswer:
        if argv[-1] == "%i":
            return ToolAnswer(0, "77_1\n77_2\n")
        return ToolAnswer(0, "77_1|COMPLETED|0:03|1|n1|None\n77_2|FAILED|0:03|1|n1|None\n")

    slurm.replies |= {"squeue": squeue, "sacct": ToolAnswer(1, err="accounting storage is disabled")}
    result = run("wait", "--job", "77", "--interval", "0.1")
    assert "77_0  COMPLETED" in result.output
    assert "77_1  COMPLETED" in result.output
    assert "not completed: 77_2" in result.output
    assert result.return_value == 1


def submitted(slurm: FakeSlurm, project: Path, *words: str) -> SubmissionDir:
    assert run(*words).exception is None
    return newest(project)


def test_from_points_to_the_document(slurm: FakeSlurm, project: Path) -> None:
    submission = submitted(slurm, project, *SMALL, "--nodes", "1,2")
    points = read_sweep(submission).points
    for place, point in enumerate(points[:-1]):
        write(submission.root.parent, point, state="failed" if place == 4 else "completed")
    result = run("aggregate")
    assert result.exception is None
    docs = SweepDocs(project / "results")
    found = read_json(docs.json, SweepAnalysis)
    assert [setting.repeats_valid for setting in found.settings] == [2, 2, 1, 1]
    assert [curve.label for curve in found.curves] == ["weak", "weak"]
    assert [item.key for item in found.sensitivities] == ["training.batch_size"]
    assert [problem.reason for problem in found.failed] == [
        f"2node batch_size=8 #1: job {points[4].job_id}: failed",
        f"2node batch_size=16 #2: job {points[7].job_id} has written nothing",
    ]
    # One step: data 4, compute, the exposed bucket and the host.
    rate = [1000 * 8 / (4 + 20 + 8 + repeat + 5) for repeat in (1, 2)]
    first = found.settings[0].samples_per_s
    assert first is not None
    assert first.mean == pytest.approx(sum(rate) / 2, rel=0.01)
    assert first.low is not None
    assert found.curves[0].points[1].speedup.low is None
    text = docs.markdown.read_text(encoding="utf-8")
    assert "job 101_3" not in text
    assert "**Not counted**: 2node batch_size=8 #1: job 102_0: failed" in text
    assert "![Speed-up and efficiency](sweep_analysis/scaling.png)" in text
    for name in ("scaling", "training.batch_size"):
        assert all(path.stat().st_size > 1000 for path in docs.plot(name))
    assert "missing: 2node batch_size=8 #1" in result.output
    # The sweep's runs are nobody's scenarios.
    assert choose(submission.root.parent).chosen == ()
    assert not (project / "results/BOTTLENECK_ANALYSIS.md").exists()


@pytest.mark.usefixtures("no_charts")
def test_scenarios_beside_a_sweep_are_reported_as_ever(slurm: FakeSlurm, project: Path) -> None:
    results = project / "results/profiling"
    write_run(results, RunSpec(job_id="7", ranks_per_node=1, steps=24, executor="local"))
    submission = submitted(slurm, project, "sweep", "--over", "training.batch_size=8,16")
    for point in read_sweep(submission).points:
        write(results, point)
    assert run("aggregate").exception is None
    report = read_json(project / "results/BOTTLENECK_ANALYSIS.json", Aggregate)
    assert [item.job_id for item in report.scenarios] == ["7"]
    assert (project / "results/SWEEP_ANALYSIS.md").is_file()
    only = project / "only"
    assert run("aggregate", "--submission", str(submission.root), "--docs", str(only)).exception is None
    assert sorted(path.name for path in only.iterdir()) == [
        "SWEEP_ANALYSIS.json",
        "SWEEP_ANALYSIS.md",
        "sweep_analysis",
    ]
    text = (only / "SWEEP_ANALYSIS.md").read_text(encoding="utf-8")
    assert "there are no confidence bands" in text
    assert " ± " not in text


def test_a_sweep_of_which_nothing_ran_says_so(slurm: FakeSlurm, project: Path) -> None:
    submitted(slurm, project, *SMALL)
    result = run("aggregate")
    assert "No point of this sweep could be measured" in result.output
    assert result.output.count("missing: ") == 4


def test_a_broken_record_is_named(slurm: FakeSlurm, project: Path) -> None:
    submission = submitted(slurm, project, *SMALL)
    submission.sweep.write_text("{")
    error = run("aggregate").exception
    assert isinstance(error, ArtefactError)
    assert "sweep.json" in error.message
    # The jobs are followed all the same.
    slurm.replies["squeue"] = ToolAnswer(
        0, "".join(f"101_{task}|COMPLETED|0:03|1|n1|None\n" for task in range(4))
    )
    assert run("wait").return_value == 0


class Finished:
    """A local run that is over at once."""

    def __init__(self, job: SubmittedJob) -> None:
        self.job = job

    def poll(self) -> JobView:
        return JobView(self.job.job_id, STATES["COMPLETED"], "", 3)


@pytest.mark.usefixtures("no_charts")
def test_on_this_machine_the_points_run_in_turn(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[int] = []

    def start(
        plan: LaunchPlan, submission: SubmissionDir, number: int, gpus: list[str], most: int
    ) -> Finished:
        batch = load_config(Path(plan.config)).training.batch_size
        used.append(batch)
        made = write_run(
            Path(plan.results),
            RunSpec(job_id=f"local-{number}", ranks_per_node=1, steps=14, warmup=4, batch_size=batch,
                    executor="local"),
        )  # fmt: skip
        return Finished(
            SubmittedJob(
                job_id=f"local-{number}", scenario=plan.scenario, nodes=1, run_dir=str(made.root),
                submitted_wall_ns=1, executor="local",
            )
        )  # fmt: skip

    monkeypatch.setattr(profile, "POLL_S", 0.0)
    monkeypatch.setattr(local, "visible_gpus", lambda environment: [])
    monkeypatch.setattr(local, "start", start)
    result = run(*SMALL, "--executor", "local")
    assert result.exception is None
    assert result.return_value == 0
    assert "1node batch_size=16 #2: COMPLETED" in result.output
    assert used == [8, 16, 8, 16]
    kept = read_json(newest(project).sweep, Sweep)
    assert [point.job_id for point in kept.points] == [f"local-{number}" for number in range(1, 5)]
    found = read_json(project / "results/SWEEP_ANALYSIS.json", SweepAnalysis)
    assert [setting.repeats_valid for setting in found.settings] == [2, 2]
    assert found.failed == []
