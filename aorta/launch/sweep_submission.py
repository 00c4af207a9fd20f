"""A sweep on disk and in the queue: its points written, then submitted as one array a number of nodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from aorta.artefacts.files import make_shared_folder
from aorta.artefacts.io import write_json
from aorta.artefacts.layout import RunDir, Scenario
from aorta.artefacts.records import SubmittedJob
from aorta.artefacts.submissions import SubmissionDir
from aorta.artefacts.sweep import Sweep, SweepPoint
from aorta.config.load import save_config
from aorta.config.schema import Config
from aorta.errors import ArtefactError, PlanError, SubmitError
from aorta.launch import slurm
from aorta.launch.plan import LaunchPlan
from aorta.launch.sbatch import render
from aorta.launch.submission import (
    open_submission,
    record,
    refuse_unrecorded,
    written_scripts,
)
from aorta.launch.sweep import array_plan, point_config
from aorta.launch.tools import Caller


def open_sweep(submission: SubmissionDir, sweep: Sweep, configs: Sequence[Config]) -> SubmissionDir:
    """Create the folder of a sweep, and give it: `sweep.json` and the resolved configuration of every point.

    It is `submission`, or another of the same time where someone was faster.

    Raises:
        PlanError: it cannot be written.
    """
    submission = open_submission(submission, {})
    try:
        for point, config in zip(sweep.points, configs, strict=True):
            save_config(config, point_config(submission, point))
        for scenario in sorted({point.scenario for point in sweep.points}):
            make_shared_folder(submission.root.parent / scenario)
        write_json(submission.sweep, sweep)
    except OSError as error:
        raise PlanError(
            f"{submission.root}: {error.strerror}", "choose another folder with --results"
        ) from error
    return submission


def with_job(sweep: Sweep, scenario: str, task: int, job_id: str) -> Sweep:
    """`sweep` with the id of the job that runs one of its points."""
    points = [
        msgspec.structs.replace(point, job_id=job_id)
        if (point.scenario, point.task) == (scenario, task)
        else point
        for point in sweep.points
    ]
    return msgspec.structs.replace(sweep, points=points)


def submit_sweep(
    plans: Sequence[LaunchPlan],
    submission: SubmissionDir,
    sweep: Sweep,
    call: Caller,
    accepted: Callable[[str, Sequence[SubmittedJob]], None],
    *,
    at_most: int | None,
) -> list[str]:
    """Submit one array for each of `plans`, and give the arrays' ids.

    Args:
        plans: one a number of nodes, from `make_plans`.
        submission: opened by `open_sweep`.
        sweep: the points.
        call: runs Slurm's programs.
        accepted: told the array's id and its tasks before the next array is tried, with them on record.
        at_most: points that may run at the same time; the arrays then follow each other. None means no limit.

    Raises:
        PlanError: a script cannot be written; nothing was submitted.
        SubmitError: an array was refused; those before it run and are on record, and the message names them.
            Or all were accepted, and some could not be put on record.
    """
    by_scenario = {
        base.scenario: [point for point in sweep.points if point.scenario == base.scenario] for base in plans
    }
    scripts = {
        submission.script(Scenario(base.scenario)): render(
            array_plan(base, submission, by_scenario[base.scenario], at_most)
        )
        for base in plans
    }
    with written_scripts(scripts):
        return _submit_each(plans, submission, sweep, call, accepted, at_most=at_most)


def _submit_each(
    plans: Sequence[LaunchPlan],
    submission: SubmissionDir,
    sweep: Sweep,
    call: Caller,
    accepted: Callable[[str, Sequence[SubmittedJob]], None],
    *,
    at_most: int | None,
) -> list[str]:
    """Submit the scripts of the arrays, which are written."""
    arrays: list[str] = []
    unrecorded: list[str] = []
    for base in plans:
        points = [point for point in sweep.points if point.scenario == base.scenario]
        script = submission.script(Scenario(base.scenario))
        after = arrays[-1:] if at_most is not None else []
        try:
            array, cluster = slurm.submit(script, call, after)
        except SubmitError as error:
            before = f"\n  accepted before, and recorded in {submission.job_ids}: {', '.join(arrays)}"
            said = "\n  ".join([f"{error.message}{before if arrays else ''}", *unrecorded])
            raise SubmitError(said, error.hint) from error
        jobs = [_task(base, point, array, cluster) for point in points]
        for point, job in zip(points, jobs, strict=True):
            sweep = with_job(sweep, point.scenario, point.task, job.job_id)
        unrecorded += _put_on_record(submission, sweep, array, jobs)
        arrays.append(array)
        accepted(array, jobs)
    refuse_unrecorded(unrecorded)
    return arrays


def _put_on_record(
    submission: SubmissionDir, sweep: Sweep, array: str, jobs: Sequence[SubmittedJob]
) -> list[str]:
    """Write down the jobs of an array that was accepted; returns what could not be written."""
    failed: list[str] = []
    for job in jobs:
        try:
            record(submission, job)
        except ArtefactError as error:
            failed.append(error.message)
    try:
        for scenario in sorted({point.scenario for point in sweep.points}):
            make_shared_folder(submission.root.parent / scenario)
        write_json(submission.sweep, sweep)
    except OSError as error:
        failed.append(f"{submission.sweep}: {error.strerror}; array {array} runs")
    return failed


def _task(base: LaunchPlan, point: SweepPoint, array: str, cluster: str | None) -> SubmittedJob:
    job_id = f"{array}_{point.task}"
    return SubmittedJob(
        job_id=job_id,
        scenario=base.scenario,
        nodes=base.nodes,
        run_dir=str(RunDir.of(Path(base.results), Scenario(base.scenario), job_id).root),
        submitted_wall_ns=base.submitted_wall_ns or time.time_ns(),
        executor="slurm",
        cluster=cluster,
    )
