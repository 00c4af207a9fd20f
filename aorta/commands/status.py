"""`aorta status`: the jobs of a submission, once."""

from __future__ import annotations

from pathlib import Path

import click

from aorta.commands._json import echo_json, json_option
from aorta.commands._options import jobs_options, results_option
from aorta.commands._say import say


@click.command("status")
@jobs_options
@results_option
@json_option
def command(submission: Path | None, job_ids: tuple[str, ...], results: Path, as_json: bool) -> None:
    """Show the jobs of a submission (the newest one) as they are now."""
    from aorta.commands._jobs import job_object, job_rows, print_jobs, select_jobs, so_far_lines
    from aorta.launch.follow import Follower
    from aorta.launch.tools import call

    follower = Follower(select_jobs(submission, job_ids, results, call), call)
    follower.poll()
    rows = job_rows(follower)
    if as_json:
        echo_json({"jobs": [job_object(*row) for row in rows]})
        return
    print_jobs(rows)
    for line in so_far_lines(rows):
        say(line)
