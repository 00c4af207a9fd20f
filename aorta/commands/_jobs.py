"""The table of jobs, for `wait`, `status` and `profile`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import shorten

from rich.console import Console
from rich.table import Table
from rich.text import Text

from aorta.artefacts.clean import plain
from aorta.artefacts.files import Unread
from aorta.artefacts.layout import runs
from aorta.artefacts.masking import here
from aorta.artefacts.submissions import SubmissionDir
from aorta.commands._progress import clock, step_words
from aorta.commands._say import say
from aorta.errors import ArtefactError
from aorta.launch import slurm
from aorta.launch.arrays import tasks_of
from aorta.launch.durations import show
from aorta.launch.follow import FollowedJob, Follower
from aorta.launch.progress import RunProgress, read_progress
from aorta.launch.slurm import JobView
from aorta.launch.so_far import so_far
from aorta.launch.submitted import newest_submission, read_jobs, read_sweep
from aorta.launch.tools import Caller

_STYLES = {"pending": "yellow", "running": "cyan", "unknown": "magenta"}

_LEAST_WIDTH = {"scenario": 8, "job": 8, "steps": 8, "reason": 6}
"""Characters of a usual id of Slurm, and of the longest usual words."""
_TITLES = ("scenario", "job", "state", "elapsed", "steps", "per step", "time left", "nodes", "reason")
_ALWAYS = ("scenario", "job", "state", "steps")
_NARROW = 78
"""Columns that all titles need."""
_ONE_LINE = 1000


def select_jobs(
    submission: Path | None, job_ids: Sequence[str], results: Path, call: Caller
) -> list[FollowedJob]:
    """The jobs with the given ids, of which that of an array stands for its tasks; without ids those of the
    submission in `submission`, or of the newest one.

    Raises:
        ArtefactError: there is no such submission.
    """
    if job_ids:
        single = [one for job_id in job_ids for one in _tasks(job_id, results, call) or [job_id]]
        return [FollowedJob.by_hand(results, job_id) for job_id in dict.fromkeys(single)]
    unread: Unread = []
    try:
        chosen = SubmissionDir(submission) if submission is not None else newest_submission(results, unread)
    finally:
        for path, reason in unread:
            say(f"note: {path} is left out: {reason}", err=True)
    labels = _labels(chosen)
    records = read_jobs(chosen, lambda message: say(f"note: {message}", err=True))
    return [replace(FollowedJob.of(record), label=labels.get(record.job_id)) for record in records]


def _tasks(job_id: str, results: Path, call: Caller) -> list[str]:
    """The tasks of an array, as Slurm knows them or as they have written; empty for any other job."""
    written = [run.root.name.removeprefix("run_") for _, run in runs(results)]
    return tasks_of(job_id, [*slurm.array_tasks(job_id, call), *written])


def _labels(submission: SubmissionDir) -> dict[str | None, str]:
    """Returns what each job of a sweep is a point of.

    Empty for any other submission, or where nothing can say.
    """
    try:
        points = read_sweep(submission).points
    except ArtefactError:
        return {}
    return {point.job_id: f"{point.scenario} {point.label}" for point in points}


Row = tuple[FollowedJob, JobView, RunProgress | None]


def job_rows(follower: Follower, since_s: float = 0.0) -> list[Row]:
    """Each job with the newest view of it and how far its run is; None where it has no files yet.

    Args:
        follower: what is known of the jobs.
        since_s: seconds since it was asked, by which running jobs are older.
    """
    return [(job, _aged(view, since_s), _progress(job, view)) for job, view in follower.rows()]


def _aged(view: JobView, since_s: float) -> JobView:
    if view.elapsed_s is None or view.state.phase != "running":
        return view
    return replace(view, elapsed_s=view.elapsed_s + int(since_s))


def _progress(job: FollowedJob, view: JobView) -> RunProgress | None:
    return None if job.run is None or view.state.phase not in ("running", "ended") else read_progress(job.run)


def print_jobs(rows: Sequence[Row]) -> None:
    """Print the table of jobs; each job is one line where another program reads it."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=_ONE_LINE)
    console.print(job_table(rows, console.width))


def job_table(rows: Sequence[Row], width: int) -> Table:
    """Scenario, id, state, elapsed, steps and their times, nodes and reason of each job.

    A terminal of few columns shows what tells the jobs apart and how far they are.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    right = ("elapsed", "per step", "time left")
    whole = ("state", "elapsed", "per step", "time left")
    shown = [title for title in _TITLES if width >= _NARROW or title in _ALWAYS]
    for title in shown:
        table.add_column(
            title,
            justify="right" if title in right else "left",
            overflow="fold",
            # A terminal of 80 columns folds what reads as well on two lines, and no number.
            no_wrap=title in whole,
            min_width=_LEAST_WIDTH.get(title),
        )
    for job, view, progress in rows:
        scenario, job_id, _, elapsed, nodes, reason = job_cells(job, view)
        steps = progress_cells(view, progress)
        cells: list[str | Text] = [scenario, job_id, _state(view), elapsed, *steps, nodes, reason]
        table.add_row(*(cell for title, cell in zip(_TITLES, cells, strict=True) if title in shown))
    return table


def so_far_lines(rows: Sequence[Row]) -> list[str]:
    """One line per job that trains: step time, where it goes, and who is waited for."""
    found = []
    for job, view, _ in rows:
        seen = so_far(job.run) if job.run is not None and view.state.phase == "running" else None
        if seen is not None:
            found.append(f"{job.label or job.scenario or job.job_id}: {seen.words}")
    return found


def job_cells(job: FollowedJob, view: JobView) -> list[str]:
    """A job's row as plain text; a dash means unknown."""
    nodes = "-" if view.nodes is None else str(view.nodes)
    cells = [
        job.label or job.scenario or "-",
        job.job_id,
        view.state.name,
        "-" if view.elapsed_s is None else show(view.elapsed_s),
        f"{nodes} {view.node_list}".strip(),
        shorten(view.reason, 160) or "-",
    ]
    masker = here()
    return [plain(masker.text(cell)) for cell in cells]


def progress_cells(view: JobView, progress: RunProgress | None) -> list[str]:
    """Steps, time per step and time left of a job's row; a dash means unknown."""
    if progress is None or (view.state.phase == "ended" and not progress.steps):
        return ["-", "-", "-"]
    going, step_s, left_s = view.state.phase == "running", progress.step_s, progress.left_s
    return [
        progress.words if going else progress.count,
        "-" if step_s is None else step_words(step_s),
        "-" if left_s is None or not going else clock(left_s),
    ]


def job_object(job: FollowedJob, view: JobView, progress: RunProgress | None) -> dict[str, object]:
    """A job's row for `--json`; null means unknown."""
    seen = progress if progress is not None and (view.state.phase == "running" or progress.steps) else None
    return {
        "scenario": job.scenario,
        "label": job.label,
        "job_id": job.job_id,
        "state": view.state.name,
        "phase": view.state.phase,
        "reason": view.reason or None,
        "elapsed_s": view.elapsed_s,
        "nodes": view.nodes,
        "node_list": view.node_list or None,
        "run_dir": None if job.run is None else str(job.run.root),
        "progress": None
        if seen is None
        else {
            "phase": seen.phase if view.state.phase == "running" else None,
            "steps": seen.steps,
            "total_steps": seen.total,
            "step_s": seen.step_s,
            "left_s": seen.left_s if view.state.phase == "running" else None,
        },
    }


def _state(view: JobView) -> Text:
    ended = "green" if view.state.ok else "red"
    return Text(view.state.name, style=_STYLES.get(view.state.phase, ended))
