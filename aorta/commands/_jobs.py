"""The table of jobs, for `wait`, `status` and `profile`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import shorten

import click
from rich.table import Table
from rich.text import Text

from aorta.artefacts.layout import SubmissionDir, runs
from aorta.errors import ArtefactError
from aorta.launch import slurm
from aorta.launch.arrays import tasks_of
from aorta.launch.durations import show
from aorta.launch.follow import Job
from aorta.launch.slurm import JobView
from aorta.launch.submitted import newest_submission, read_jobs, read_sweep
from aorta.launch.tools import Caller

_STYLES = {"pending": "yellow", "running": "cyan", "unknown": "magenta"}


def select_jobs(submission: Path | None, job_ids: Sequence[str], results: Path, call: Caller) -> list[Job]:
    """The jobs with the given ids, of which that of an array stands for its tasks; without ids those of the
    submission in `submission`, or of the newest one.

    Raises:
        ArtefactError: there is no such submission.
    """
    if job_ids:
        single = [one for job_id in job_ids for one in _tasks(job_id, results, call) or [job_id]]
        return [Job.by_hand(results, job_id) for job_id in dict.fromkeys(single)]
    chosen = SubmissionDir(submission) if submission is not None else newest_submission(results)
    labels = _labels(chosen)
    records = read_jobs(chosen, lambda message: click.echo(f"note: {message}", err=True))
    return [replace(Job.of(record), label=labels.get(record.job_id)) for record in records]


def _tasks(job_id: str, results: Path, call: Caller) -> list[str]:
    """The tasks of an array, as Slurm knows them or as they have written; empty for any other job."""
    written = [run.root.name.removeprefix("run_") for _, run in runs(results)]
    return tasks_of(job_id, [*slurm.array_tasks(job_id, call), *written])


def _labels(submission: SubmissionDir) -> dict[str | None, str]:
    """What each job of a sweep is a point of; empty for any other submission, or where nothing can say."""
    try:
        points = read_sweep(submission).points
    except ArtefactError:
        return {}
    return {point.job_id: f"{point.scenario} {point.label}" for point in points}


def job_table(rows: Sequence[tuple[Job, JobView]]) -> Table:
    """Scenario, id, state, elapsed, nodes and reason of each job."""
    table = Table(box=None, pad_edge=False)
    for title in ("scenario", "job", "state", "elapsed", "nodes", "reason"):
        table.add_column(title, justify="right" if title == "elapsed" else "left", overflow="fold")
    for job, view in rows:
        table.add_row(*job_cells(job, view)[:2], _state(view), *job_cells(job, view)[3:])
    return table


def job_cells(job: Job, view: JobView) -> list[str]:
    """A job's row as plain text; a dash is what nobody knows."""
    nodes = "-" if view.nodes is None else str(view.nodes)
    return [
        job.label or job.scenario or "-",
        job.job_id,
        view.state.name,
        "-" if view.elapsed_s is None else show(view.elapsed_s),
        f"{nodes} {view.node_list}".strip(),
        shorten(view.reason, 160) or "-",
    ]


def _state(view: JobView) -> Text:
    ended = "green" if view.state.ok else "red"
    return Text(view.state.name, style=_STYLES.get(view.state.phase, ended))
