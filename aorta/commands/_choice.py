"""Finds which run stands for each scenario in the aggregate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aorta.artefacts.analysis import Problem
from aorta.artefacts.files import Unread, changed_ns, entries, is_file, is_folder, own_first
from aorta.artefacts.io import read_json
from aorta.artefacts.layout import RunDir, Scenario, runs
from aorta.artefacts.own_program import program_name
from aorta.artefacts.records import Manifest, SubmittedJob
from aorta.artefacts.submissions import SubmissionDir, submissions
from aorta.commands._owned import holds_run
from aorta.errors import ArtefactError
from aorta.launch.submitted import read_jobs

MOST_REPEATS = 9
"""Most repeats of a scenario that are read; older ones say nothing that these do not."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A scenario's run.

    Attributes:
        note: why this one, where that is not obvious.
        older: runs that may stand in if this one is not valid, newest first. A submission's job has none: it
            is compared with its siblings, which had the same configuration.
        asked: False: it is older than the newest submission and none of its jobs.
        program: what the submission says that the job runs. None if not known.
    """

    scenario: Scenario
    run: RunDir
    note: str = ""
    older: tuple[RunDir, ...] = ()
    asked: bool = True
    program: str | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """The runs to analyse, by family and number of nodes, and what gave no run.

    Attributes:
        silent: the jobs of the submission that wrote nothing.
    """

    chosen: tuple[Chosen, ...]
    missing: tuple[Problem, ...]
    silent: tuple[SubmittedJob, ...] = ()


def choose(results: Path, submission: SubmissionDir | None = None) -> Choice:
    """One run per scenario.

    Args:
        results: the base results directory. submission: exactly its jobs. None means those of the newest
        submission, and for each scenario a run by
            hand that is newer than the submission or of which it has no job. Sweeps are passed over.

    A submitted scenario that has written nothing is missing; so is one that was prepared and has no job.

    Raises:
        ArtefactError: `submission` has no readable list of jobs.
    """
    unread: Unread = []
    if submission is not None:
        jobs, missing = _jobs(submission)
        by_hand: dict[Scenario, list[RunDir]] = {}
    else:
        jobs, missing = _newest_jobs(results, unread)
        by_hand = _newest_first(results, unread)
    missing += not_read(unread)
    chosen, silent = {}, []
    submitted_ns = max((job.submitted_wall_ns for job in jobs.values()), default=None)
    for scenario, job in jobs.items():
        run = _run_of(results, scenario, job)
        own = next(iter(by_hand.pop(scenario, [])), None)
        if (
            own is not None
            and own.root.resolve() != run.root.resolve()
            and _started(own) > job.submitted_wall_ns
        ):
            note = (
                f"{own.root.name} was run by hand after the submission, and replaces {run.root.name} of the "
                "submission"
            )
            chosen[scenario] = Chosen(scenario, own, note, program=_program(own)[1])
        elif holds_run(run.root):  # the folder alone is made when a job is accepted
            chosen[scenario] = Chosen(scenario, run, program=job.program or _program(run)[1])
        else:
            silent.append(job)
            missing.append(_never_started(scenario, job, run))
    for scenario, (newest, *older) in by_hand.items():
        note = "not part of the newest submission" if jobs else ""
        asked = submitted_ns is None or _started(newest) > submitted_ns
        alike = tuple(run for run in older if _program(run) == _program(newest))
        chosen[scenario] = Chosen(scenario, newest, note, alike, asked, _program(newest)[1])
    ordered = sorted(chosen.values(), key=lambda item: (item.scenario.family, item.scenario.nodes))
    return Choice(tuple(ordered), tuple(missing), tuple(silent))


def not_read(unread: Unread) -> list[Problem]:
    """Return the folders that could not be looked into, each once."""
    reasons = dict(unread)
    return [Problem(file=str(path), reason=f"{path}: {reason}") for path, reason in reasons.items()]


def repeats(results: Path, chosen: Sequence[Chosen]) -> list[RunDir]:
    """Earlier runs of the chosen scenarios by the same version of this code, the newest of each.

    Whether they ran the same program with the same settings, their analyses tell.
    """
    others, found = _newest_first(results), []
    for item in chosen:
        version, started = _code_version(item.run), _started(item.run)
        same = [
            run
            for run in others.get(item.scenario, [])
            if run.root.resolve() != item.run.root.resolve()
            and _started(run) <= started
            and version == _code_version(run) is not None
        ]
        found += same[:MOST_REPEATS]
    return found


def _code_version(run: RunDir) -> str | None:
    try:
        return read_json(run.manifest, Manifest).code_version
    except ArtefactError:
        return None


def _program(run: RunDir) -> tuple[str | None, str | None]:
    """The trainer's workload and the name of a program of the user's own; both None where nothing says."""
    try:
        plan = read_json(run.manifest, Manifest).plan
    except ArtefactError:
        return None, None
    return (plan.workload, None) if plan.workload is not None else (None, program_name(plan.command))


def _newest_jobs(results: Path, unread: Unread) -> tuple[dict[Scenario, SubmittedJob], list[Problem]]:
    """The jobs of the newest submission that has some, and what is wrong with it and with newer ones.

    None where there is no submission, or the list of jobs is broken.
    """
    refused: list[Problem] = []
    for submission in map(
        SubmissionDir, reversed(own_first([item.root for item in submissions(results, unread)]))
    ):
        if is_file(submission.sweep):
            continue
        if not is_file(submission.jobs):
            refused += _without_jobs(submission)
            continue
        try:
            jobs, missing = _jobs(submission)
        except ArtefactError as error:
            reason = f"runs were found by folder: {error.message}"
            return {}, [*refused, Problem(file=str(submission.jobs), reason=reason)]
        return jobs, [*refused, *missing]
    return {}, refused


def _without_jobs(submission: SubmissionDir) -> list[Problem]:
    """A submission whose first job was refused; nothing for a folder that is no submission."""
    names = ", ".join(scenario.name for scenario in submission.prepared())
    if not names:
        return []
    reason = f"submission {submission.root.name} has no job, because none of {names} was accepted"
    return [Problem(file=str(submission.root), reason=reason)]


def _jobs(submission: SubmissionDir) -> tuple[dict[Scenario, SubmittedJob], list[Problem]]:
    """The last job of each scenario, and the scenarios that have none.

    Raises:
        ArtefactError: the list of jobs is broken, or this is no submission at all.
    """
    if not is_file(submission.jobs) and (none := _without_jobs(submission)):
        return {}, none
    torn: list[str] = []
    jobs = {Scenario(job.scenario): job for job in read_jobs(submission, torn.append)}
    refused = [scenario for scenario in submission.prepared() if scenario not in jobs]
    local = {job.executor for job in jobs.values()} == {"local"}
    why = "it was not started" if local else "it was not accepted"
    why = "it is in none of the readable lines" if torn else why
    missing = [Problem(file=str(submission.jobs), reason=message) for message in torn]
    missing += [
        Problem(file=str(submission.config(scenario)), reason=f"{scenario.name}: has no job; {why}")
        for scenario in refused
    ]
    return jobs, missing


def _run_of(results: Path, scenario: Scenario, job: SubmittedJob) -> RunDir:
    """Returns where the job's run is.

    Below `results`, which may have been moved since, else where it was written.
    """
    here = RunDir.of(results, scenario, job.job_id)
    return here if is_folder(here.root) else RunDir(Path(job.run_dir))


def _runs_of_sweeps(results: Path) -> set[tuple[str, str]]:
    """(scenario, name of the run's folder) of every job of a sweep below `results`.

    A broken list of jobs is that sweep's own problem, said when it is aggregated.
    """
    found: set[tuple[str, str]] = set()
    for submission in submissions(results):
        if not is_file(submission.sweep):
            continue
        try:
            jobs = read_jobs(submission)
        except ArtefactError:
            continue
        found |= {(job.scenario, Path(job.run_dir).name) for job in jobs}
    return found


def _newest_first(results: Path, unread: Unread | None = None) -> dict[Scenario, list[RunDir]]:
    """The runs of each scenario that wrote something, however they were started; a sweep's runs are
    separate.
    """
    by_scenario: dict[Scenario, list[RunDir]] = {}
    swept = _runs_of_sweeps(results)
    every = runs(results, unread)
    own = set(own_first([run.root for _, run in every]))
    for scenario, run in every:
        if run.root in own and (scenario.name, run.root.name) not in swept and holds_run(run.root):
            by_scenario.setdefault(scenario, []).append(run)
    return {
        scenario: sorted(found, key=lambda run: (_started(run), run.root.name), reverse=True)
        for scenario, found in by_scenario.items()
    }


def _started(run: RunDir) -> int:
    """Returns when a run started, in ns since the epoch: analysing an old run does not make it the newest.

    Without a readable manifest the oldest file in it says.
    """
    try:
        return read_json(run.manifest, Manifest).started_wall_ns
    except ArtefactError:
        return min(map(changed_ns, entries(run.root)), default=0)


def _never_started(scenario: Scenario, job: SubmittedJob, run: RunDir) -> Problem:
    reason = (
        f"{scenario.name}: job {job.job_id} has written nothing: it is waiting, or ended before it started"
    )
    return Problem(file=str(run.root), reason=reason)
