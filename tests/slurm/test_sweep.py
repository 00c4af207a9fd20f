"""A sweep as a job array on a real Slurm cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from aorta.artefacts.io import read_json
from aorta.artefacts.records import Manifest
from aorta.artefacts.submissions import submissions
from aorta.artefacts.sweep import SweepAnalysis
from aorta.config.load import load_config
from aorta.launch.submitted import read_jobs
from tests.slurm.test_workflow import AORTA, ROOT, Project

pytestmark = pytest.mark.slurm


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def sweep(project: Project, *words: str) -> None:
    project.run(
        AORTA, "sweep", "--results", project.results, "--config", ROOT / "config/small.yaml",
        "--override", "capture.warmup_steps=10", *words,
    )  # fmt: skip


def test_two_values_as_an_array(project: Project) -> None:
    sweep(project, "training.max_steps=40", "--over", "training.batch_size=2,4")
    shown = project.wait()
    assert "batch_size=4 #1" in shown
    [submission] = submissions(project.results)
    jobs = read_jobs(submission)
    array = jobs[0].job_id.partition("_")[0]
    assert [job.job_id for job in jobs] == [f"{array}_0", f"{array}_1"]
    accounting = project.run("sacct", "-X", "-n", "-P", "-o", "JobID,State", "-j", array)
    assert sorted(accounting.split()) == [f"{array}_{task}|COMPLETED" for task in (0, 1)]
    for job, batch in zip(jobs, (2, 4), strict=True):
        run = project.run_dir("1node", job.job_id)
        assert read_json(run.manifest, Manifest).job_id == job.job_id
        assert load_config(run.config).training.batch_size == batch
        assert (project.results / f"profile_1node_{job.job_id}.out").is_file()
    project.run(AORTA, "aggregate", project.results, "--docs", project.docs)
    found = read_json(project.docs / "SWEEP_ANALYSIS.json", SweepAnalysis)
    assert found.failed == []
    assert [setting.per_rank_batch for setting in found.settings] == [2, 4]
    assert all(setting.samples_per_s is not None for setting in found.settings)


def test_cancelled_tasks_end_the_wait(project: Project) -> None:
    sweep(
        project, "training.max_steps=1000000", "training.epochs=1000", "--over", "training.batch_size=2,4,8"
    )
    [submission] = submissions(project.results)
    jobs = [job.job_id for job in read_jobs(submission)]
    # A task that has not started leaves its array without a trace in Slurm.
    project.run("scancel", jobs[2])
    project.run(AORTA, "cancel", "--results", project.results)
    shown = project.wait(expect=1)
    assert f"not completed: {', '.join(jobs)}" in shown
