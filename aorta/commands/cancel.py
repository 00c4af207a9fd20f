"""`aorta cancel`: end the jobs of a submission."""

from __future__ import annotations

from pathlib import Path

import click

from aorta.commands._options import how_to, jobs_options, results_option
from aorta.commands._say import say


@click.command("cancel")
@jobs_options
@results_option
def command(submission: Path | None, job_ids: tuple[str, ...], results: Path) -> None:
    """Cancel the jobs of a submission (the newest one) that have not ended."""
    from aorta.commands._jobs import select_jobs
    from aorta.errors import PlanError, SchedulerError
    from aorta.launch import slurm
    from aorta.launch.follow import LOST, Follower
    from aorta.launch.tools import call

    follower = Follower(select_jobs(submission, job_ids, results, call), call)
    follower.poll()
    going = follower.going
    if any(job.local for job in going):
        raise PlanError(
            "this run is on this machine, not in Slurm", "press Ctrl-C where `aorta profile` runs"
        )
    # Of an id that it does not know, scancel may say nothing.
    unknown = {
        job.job_id for job, view in follower.rows() if view.state.phase == "unknown" or view.state == LOST
    }
    if not going and not unknown:
        say("nothing to cancel: every job has ended")
        return
    if going:
        slurm.cancel([job.job_id for job in going], call)
    if known := ", ".join(job.job_id for job in going if job.job_id not in unknown):
        say(f"cancelled: {known}; their results stay: {how_to('aggregate', results)}")
    if not unknown:
        return
    names = ", ".join(sorted(unknown))
    if not job_ids:  # a task that was cancelled before it started leaves its array without a trace
        say(f"Slurm no longer knows {names}")
        return
    raise SchedulerError(
        f"Slurm does not know {names}",
        "the job ended long ago, or the id is wrong: squeue -u $USER lists your jobs",
    )
