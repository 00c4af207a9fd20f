"""Reaches the nodes of a Slurm job: whose job it is, and the view of each of its nodes."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from aorta.artefacts.attached import NodeView, decoded
from aorta.errors import PlanError, SchedulerError
from aorta.launch.tools import Caller, ToolAnswer

_FORMAT = "%i|%A|%u|%T|%D"
_ID = re.compile(r"(\d+(?:_\d+|\+\d+)?)(?:\.(\d+))?")
_HINTS = {
    "PENDING": "it has not started: squeue --start shows when Slurm expects it to start",
    "CONFIGURING": "its nodes are being prepared: try again in a minute",
    "SUSPENDED": "its processes are stopped: scontrol resume JOBID continues them",
    "REQUEUED": "it is being restarted: try again once it runs",
    "COMPLETING": "it is ending",
}
"""The advice for a job that does not run."""


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A running job of this user's."""

    raw_id: str
    """Slurm's own number: an element of an array has one of its own."""
    part: str | None
    """Number of this part of a heterogeneous job. None if it is not such a job."""
    nodes: int
    step: str | None
    """Step that was asked for. None means all."""


def running_jobs(job: str, user: str, call: Caller) -> list[RunningJob]:
    """The running parts of the job that `job` names: `7`, `7_2` of an array, `7+1` of a heterogeneous job.

    `7.1` is the first step of job 7.

    Parts of a heterogeneous job are one training. The elements of an array are jobs of their own.

    Raises:
        PlanError: the name is none, the job is another user's or does not run, or several elements of an
            array run.
        SchedulerError: Slurm does not know the job or does not answer.
    """
    name = _ID.fullmatch(job)
    if name is None:
        raise PlanError(
            f"{job!r} is not a Slurm job", "type a number: 7, 7_2 of an array, 7+1, or 7.1 for a step"
        )
    answer = call(["squeue", "--noheader", "--states", "all", "--jobs", name[1], "--format", _FORMAT])
    rows = [line.strip().split("|") for line in answer.out.splitlines() if line.count("|") == 4]
    if not answer.ok and "Invalid job id" not in answer.complaint:
        raise SchedulerError(f"job {job}: {answer.complaint}", "squeue --me lists your jobs")
    if not rows:
        raise SchedulerError(
            f"Slurm's queue does not contain job {job}: it ended some time ago, or never existed",
            f"sacct -j {name[1]} shows ended jobs; squeue --me lists yours",
        )
    rows = [row for row in rows if row[0] == name[1]] or rows
    owner, state = rows[0][2], rows[0][3]
    if owner != user:
        raise PlanError(
            f"job {job} belongs to {owner}", "attach to your own jobs; aorta cannot read those of other users"
        )
    running = [row for row in rows if row[3] == "RUNNING"]
    if not running:
        hint = _HINTS.get(state, f"it has ended: sacct -j {name[1]}, and aorta analyze shows its results")
        raise PlanError(f"job {job} is {state}, not RUNNING", hint)
    if len(running) > 1 and any("+" not in row[0] for row in running):
        names = ", ".join(row[0] for row in running[:8])
        raise PlanError(f"job {job} has {len(running)} running elements: {names}", "name one of them")
    return [_part(row, name[2]) for row in running]


def _part(row: Sequence[str], step: str | None) -> RunningJob:
    # Slurm knows the parts of a heterogeneous job by the number of the first one, and so do its processes.
    first, _, part = row[0].partition("+")
    return RunningJob(raw_id=first if part else row[1], part=part or None, nodes=int(row[4]), step=step)


def node_views(jobs: Sequence[RunningJob], seconds: float, call: Caller) -> tuple[list[NodeView], list[str]]:
    """The view of each node, and what went wrong on the others.

    `srun --overlap` starts one more step inside the job's own allocation. It ends by itself.
    """
    with ThreadPoolExecutor(len(jobs)) as pool:
        answers = list(pool.map(lambda job: call(_command(job, seconds)), jobs))
    views, problems = [], []
    for job, answer in zip(jobs, answers, strict=True):
        seen = [view for line in answer.out.splitlines() if (view := decoded(line)) is not None]
        views += seen
        problems += [problem for view in seen for problem in view.problems]
        if len(seen) < job.nodes:
            problems.append(f"{job.nodes - len(seen)} of {job.nodes} nodes gave no answer: {_why(answer)}")
    return views, problems


def _command(job: RunningJob, seconds: float) -> list[str]:
    step = () if job.step is None else ("--step", job.step)
    part = () if job.part is None else (f"--het-group={job.part}",)
    return [
        *(
            "srun",
            "--jobid",
            job.raw_id,
            *part,
            "--overlap",
            "--nodes",
            str(job.nodes),
            "--ntasks",
            str(job.nodes),
        ),
        *("--ntasks-per-node", "1", "--cpu-bind=none", "--quiet"),
        *(sys.executable, "-m", "aorta.cli", "attach-node", "--job", job.raw_id, *step),
        *("--recorders", "--seconds", f"{seconds:g}"),
    ]


def _why(answer: ToolAnswer) -> str:
    return "no reason given" if answer.ok and not answer.err else answer.complaint
