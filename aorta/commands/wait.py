"""`aorta wait`: until every job has ended."""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from aorta.commands._json import echo_json, json_option, messages_aside
from aorta.commands._options import how_to, jobs_options, results_option
from aorta.commands._say import say

if TYPE_CHECKING:
    from rich.console import Console

    from aorta.launch.follow import Follower

FIRST_S, LAST_S, GROWTH = 2.0, 30.0, 1.5
LOOK_S = 2.0
"""Between looks at the files of the runs, which cost Slurm nothing."""


@click.command("wait")
@jobs_options
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    metavar="S",
    help="Time between polls. Default: 2 s, growing to 30 s.",
)
@results_option
@json_option
def command(
    submission: Path | None,
    job_ids: tuple[str, ...],
    interval: float | None,
    results: Path,
    as_json: bool,
) -> int:
    """Wait until every job of a submission (the newest one) has ended. Exit status 0: all completed."""
    with messages_aside(as_json):
        follower, status = _wait(submission, job_ids, interval, results)
    if as_json:
        from aorta.commands._jobs import job_object, job_rows

        echo_json({"jobs": [job_object(*row) for row in job_rows(follower)]})
    return status


def _wait(
    submission: Path | None, job_ids: tuple[str, ...], interval: float | None, results: Path
) -> tuple[Follower, int]:
    """The jobs as they ended, or as they were when the wait was interrupted, and the exit status."""
    from rich.console import Console

    from aorta.commands._jobs import select_jobs
    from aorta.launch.follow import Follower
    from aorta.launch.tools import call

    follower = Follower(select_jobs(submission, job_ids, results, call), call)
    console = Console()
    try:
        watch(follower, console, interval)
    except KeyboardInterrupt:
        named = [shlex.quote(str(submission))] if submission else []
        named += [f"--job {job_id}" for job_id in job_ids]
        again = " ".join(["aorta wait", *named]) if named else how_to("wait", results)
        say(f"the jobs keep running; to wait for them again: {again}", err=True)
        return follower, 130
    wrong = [view.job_id for _, view in follower.rows() if not view.state.ok]
    told = f"not completed: {', '.join(wrong)}" if wrong else "all completed"
    say(f"{told}; next: {how_to('aggregate', results)}")
    return follower, 1 if wrong else 0


def pauses(interval: float | None) -> Iterator[float]:
    """Seconds between polls: always `interval`, or from 2 s growing to 30 s."""
    pause = interval or FIRST_S
    while True:
        yield pause
        pause = interval or min(LAST_S, pause * GROWTH)


def watch(follower: Follower, console: Console, interval: float | None) -> None:
    """Poll until nothing is going: one live table on a terminal that renews lines, else a line per change.

    Slurm is asked at once, and more often again, when the files of a job say that it has ended.
    """
    ended: set[str] = set()
    waits = pauses(interval)
    from aorta.commands._progress import renews

    with _live(follower, console) if renews(console) else _lines(follower) as show:
        follower.poll()
        show(0.0)
        while follower.going:
            if _slept(follower, next(waits), ended, show):
                waits = pauses(interval)
            follower.poll()
            show(0.0)


def _slept(follower: Follower, pause: float, ended: set[str], show: Callable[[float], None]) -> bool:
    """True if the files of another job than those in `ended` said that it ended, before `pause` was over.

    The files of the runs are looked at meanwhile, and shown.
    """
    asked = time.monotonic()
    while (since := time.monotonic() - asked) < pause:
        time.sleep(min(LOOK_S, pause - since))
        if new := follower.ended_by_files() - ended:
            ended |= new
            return True
        show(time.monotonic() - asked)
    return False


@contextlib.contextmanager
def _lines(follower: Follower) -> Iterator[Callable[[float], None]]:
    """Give what prints a line for each change."""
    from aorta.commands._jobs import job_cells

    shown: dict[str, list[str]] = {}

    def show(_: float) -> None:
        for job, view in follower.rows():
            cells = job_cells(job, view)
            # The elapsed time alone is no change.
            seen = [*cells[:3], *cells[4:]]
            if shown.get(job.job_id) != seen:
                shown[job.job_id] = seen
                say("  ".join(cells))

    yield show


@contextlib.contextmanager
def _live(follower: Follower, console: Console) -> Iterator[Callable[[float], None]]:
    """Give what renews one table, for a time in seconds since Slurm was asked."""
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    from aorta.commands._jobs import job_rows, job_table, so_far_lines

    with Live(console=console, auto_refresh=False) as live:

        def show(since_s: float) -> None:
            rows = job_rows(follower, since_s)
            lines = (Text(line) for line in so_far_lines(rows))
            live.update(Group(job_table(rows, console.width), *lines), refresh=True)

        yield show
