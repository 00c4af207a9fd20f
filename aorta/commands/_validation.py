"""Runs of a validation: through the local executor or Slurm, as `aorta profile` and `aorta submit` do it."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aorta.artefacts.files import is_file
from aorta.artefacts.layout import RunDir, Scenario
from aorta.artefacts.study_layout import ValidationDir
from aorta.commands._say import say
from aorta.errors import PlanError
from aorta.launch.plan import CPU_FAMILY, LaunchPlan, LaunchRequest, make_plans
from aorta.validation.matrix import MatrixCell
from aorta.validation.running import Ended

if TYPE_CHECKING:
    from aorta.artefacts.analysis import Analysis
    from aorta.artefacts.records import SubmittedJob

TIME_LIMIT = "00:10:00"
POLL_S = 0.5


class Stopped(KeyboardInterrupt):
    """A signal ended the run that went on; `number` is the signal's."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def analyse(run: RunDir) -> Analysis:
    """The analysis of a run as `aorta aggregate` makes it, with the runs of its size before it; and its
    JSON in the run's folder.
    """
    from aorta.artefacts.io import write_json
    from aorta.commands._analysis import analyses_of, analyze_run
    from aorta.commands._choice import Chosen, repeats

    chosen = Chosen(Scenario(run.root.parent.name), run)
    others = analyses_of(repeats(run.root.parent.parent, [chosen]))
    analysis = analyze_run(run, query_accounting=False, others=others).analysis
    write_json(run.analysis, analysis)
    return analysis


@dataclass(slots=True)
class Local:
    """Runs cells on this machine."""

    folder: ValidationDir
    config: Path
    gpus: Sequence[str]
    """UUIDs; empty: on the CPU."""
    program: Path | None = None
    """A trainer of its own that takes the overrides as arguments. None means the built-in one."""

    def __call__(self, cell: MatrixCell, words: str) -> Ended:
        """Run `cell` and wait for its end.

        Raises:
            Stopped: a signal ended it.
        """
        from aorta.commands.profile import run_all
        from aorta.launch.storage import probe

        request = _request(self.folder, cell, self.program, gpu=bool(self.gpus))
        plans = make_plans(request, probe(request.results), None)
        request, plans = _opened(request, plans, self.config, cell)
        jobs: list[SubmittedJob] = []
        completed, told = run_all(
            plans,
            request,
            self.gpus,
            names=[f"{words}: {cell.name}"],
            started=lambda _, job: jobs.append(job),
        )
        if told is not None:
            raise Stopped(told)
        return _ended(jobs[0], completed)


@dataclass(slots=True)
class Slurm:
    """Runs cells as jobs, one after another."""

    folder: ValidationDir
    config: Path
    partition: str | None
    account: str | None
    program: Path | None = None
    """The same as in `Local`."""

    def __call__(self, cell: MatrixCell, words: str) -> Ended:
        """Submit `cell` and wait for its end.

        Raises:
            Stopped: a signal ended it.
            SubmitError: it was refused.
        """

        from aorta.commands._signals import EndingSignals
        from aorta.commands.submit import checked_plans
        from aorta.launch import slurm
        from aorta.launch.submission import submit_all
        from aorta.launch.tools import call

        request = dataclasses.replace(
            _request(self.folder, cell, self.program, gpu=False),
            partition=self.partition,
            account=self.account,
        )
        plans, _ = checked_plans(request)
        request, plans = _opened(request, plans, self.config, cell)
        with EndingSignals() as signals, _limited(cell):
            job = submit_all(plans, request.submission, call, lambda _: None)[0]
            say(f"{words}: {cell.name}: job {job.job_id}")
            try:
                completed = _wait(job)
            except KeyboardInterrupt as error:
                slurm.cancel([job.job_id], call)
                raise Stopped(signals.number or 2) from error
        return _ended(job, completed)


def links_can_be_limited() -> bool:
    """True if SLURM_CONF names a cluster whose nodes are network namespaces here with free links, and we are
    root.
    """
    from aorta.artefacts.io import read_json
    from aorta.cluster import network
    from aorta.cluster.config import ClusterDir
    from aorta.cluster.folders import ClusterRecord

    conf = os.environ.get("SLURM_CONF")
    if conf is None or os.geteuid() != 0:
        return False
    folder = ClusterDir(Path(conf).absolute().parent)
    if not is_file(folder.record) or network.owner() != folder.root:
        return False
    settings = read_json(folder.record, ClusterRecord).settings
    return settings.netns and settings.rate_bit_s is None


@contextmanager
def _limited(cell: MatrixCell) -> Iterator[None]:
    """The link of the cluster's last node limited as `cell` says, and free again afterwards."""
    from aorta.cluster import network

    if cell.rate_bit_s is None:
        yield
        return
    network.relimit(cell.nodes, cell.rate_bit_s)
    try:
        yield
    finally:
        network.relimit(cell.nodes, None)


def _request(folder: ValidationDir, cell: MatrixCell, program: Path | None, *, gpu: bool) -> LaunchRequest:
    from aorta.launch.submission import find_aorta, new_submission

    results = folder.results.absolute()
    family = "" if gpu else f"{CPU_FAMILY}_"
    return LaunchRequest(
        scenarios=(Scenario(f"{family}{cell.nodes}node"),),
        aorta=find_aorta(),
        project=Path.cwd(),
        results=results,
        submission=new_submission(results),
        gpus_per_node=cell.ranks_per_node if gpu else None,
        processes_per_node=cell.ranks_per_node,
        time_limit=TIME_LIMIT,
        command=(str(program), *cell.overrides) if program is not None else (),
        submitted_wall_ns=time.time_ns(),
    )


def _opened(
    request: LaunchRequest, plans: Sequence[LaunchPlan], config: Path, cell: MatrixCell
) -> tuple[LaunchRequest, list[LaunchPlan]]:
    """Request and plans with the submission on disk."""
    from aorta.launch.submission import moved, open_submission, resolve_configs

    if not is_file(config):
        raise PlanError(
            f"the configuration {config} does not exist in {Path.cwd()}", "run this from the project folder"
        )
    configs = resolve_configs(request.scenarios, config, () if request.command else cell.overrides)
    submission = open_submission(request.submission, configs)
    return dataclasses.replace(request, submission=submission), moved(plans, submission)


def _wait(job: SubmittedJob) -> bool:
    """True if the job completed, once it has ended."""
    from aorta.launch.follow import FollowedJob, Follower
    from aorta.launch.tools import call

    follower = Follower([FollowedJob.of(job)], call)
    follower.poll()
    while follower.going:
        time.sleep(POLL_S)
        follower.poll()
    return follower.all_completed


def _ended(job: SubmittedJob, completed: bool) -> Ended:
    problem = None if completed else f"the run did not complete: see {job.run_dir}"
    return Ended(job.job_id, Path(job.run_dir), completed, problem)
