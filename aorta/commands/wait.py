"""`aorta wait`: until every job has ended."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
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
    help="Between polls. Default: 2 s, growing to 30 s.",
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
    if as_json and follower is not None:
        from aorta.commands._jobs import job_object, job_rows

        echo_json({"jobs": [job_object(*row) for row in job_rows(follower)]})
    return status


def _wait(
    submission: Path | None, job_ids: tuple[str, ...], interval: float | None, results: Path
) -> tuple[Follower | None, int]:
    """The jobs as they ended, and the exit status; no jobs where the wait was interrupted."""
    from rich.console import Console

    from aorta.commands._jobs import select_jobs
    from aorta.launch.follow import Follower
    from aorta.launch.tools import call

    follower = Follower(select_jobs(submission, job_ids, results, call), call)
    console = Console()
    try:
        watch(follower, console, pauses(interval))
    except KeyboardInterrupt:
        named = [shlex.quote(str(submission))] if submission else []
        named += [f"--job {job_id}" for job_id in job_ids]
        again = " ".join(["aorta wait", *named]) if named else how_to("wait", results)
        say(f"the jobs keep running; to wait for them again: {again}", err=True)
        return None, 130
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


def watch(follower: Follower, console: Console, waits: Iterator[float]) -> None:
    """Poll until nothing is going: one live table on a terminal, elsewhere a line for each change."""
    if console.is_terminal:
        _watch_live(follower, console, waits)
        return
    from aorta.commands._jobs import job_cells

    shown: dict[str, list[str]] = {}
    while True:
        follower.poll()
        for job, view in follower.rows():
            cells = job_cells(job, view)
            # The elapsed time alone is no change.
            seen = [*cells[:3], *cells[4:]]
            if shown.get(job.job_id) != seen:
                shown[job.job_id] = seen
                say("  ".join(cells))
        if not follower.going:
            return
        time.sleep(next(waits))


def _watch_live(follower: Follower, console: Console, waits: Iterator[float]) -> None:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    from aorta.commands._jobs import job_rows, job_table, so_far_lines

    def shown(since_s: float = 0.0) -> Group:
        rows = job_rows(follower, since_s)
        return Group(job_table(rows), *(Text(line) for line in so_far_lines(rows)))

    follower.poll()
    with Live(shown(), console=console, auto_refresh=False) as live:
        while follower.going:
            # The runs' own files are looked at between the questions to Slurm.
            asked, pause = time.monotonic(), next(waits)
            while (since := time.monotonic() - asked) < pause:
                time.sleep(min(LOOK_S, pause - since))
                live.update(shown(time.monotonic() - asked), refresh=True)
            follower.poll()
            live.update(shown(), refresh=True)
