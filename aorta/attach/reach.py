"""Reaches the nodes of a Slurm job: whose job it is, and the view of each of its nodes."""

from __future__ import annotations

import sys

from aorta.artefacts.attached import NodeView, decoded
from aorta.errors import PlanError, SchedulerError
from aorta.launch.tools import Caller, ToolAnswer

_FORMAT = "%u|%T|%D"


def check_job(job: str, user: str, call: Caller) -> int:
    """The number of nodes of a running job of this user's.

    Raises:
        PlanError: the job is another user's, or does not run.
        SchedulerError: Slurm does not know the job or does not answer.
    """
    answer = call(["squeue", "--noheader", "--jobs", job, "--format", _FORMAT])
    if not answer.ok:
        raise SchedulerError(f"job {job}: {answer.complaint}", "squeue --me lists your jobs")
    rows = [line.strip().split("|") for line in answer.out.splitlines() if line.count("|") == 2]
    if not rows:
        raise SchedulerError(f"job {job} is not in the queue", "squeue --me lists your jobs")
    owner, state, nodes = rows[0]
    if owner != user:
        raise PlanError(f"job {job} belongs to {owner}", "attach to a job of your own; aorta reads no others")
    if state != "RUNNING":
        raise PlanError(f"job {job} is {state}, not RUNNING", "aorta attach looks at running jobs only")
    return int(nodes)


def node_views(job: str, nodes: int, seconds: float, call: Caller) -> tuple[list[NodeView], list[str]]:
    """The view of each node, and what went wrong on the others.

    `srun --overlap` starts one more step inside the job's own allocation. It ends by itself.
    """
    answer = call(
        [
            *("srun", "--jobid", job, "--overlap", "--nodes", str(nodes), "--ntasks", str(nodes)),
            *("--ntasks-per-node", "1", "--cpu-bind=none", "--quiet"),
            *(sys.executable, "-m", "aorta.cli", "attach-node", "--job", job, "--seconds", f"{seconds:g}"),
        ]
    )
    views = [view for line in answer.out.splitlines() if (view := decoded(line)) is not None]
    problems = [problem for view in views for problem in view.problems]
    if len(views) < nodes:
        problems.append(f"{nodes - len(views)} of {nodes} nodes gave no answer: {_why(answer)}")
    return views, problems


def _why(answer: ToolAnswer) -> str:
    return "no reason given" if answer.ok and not answer.err else answer.complaint
