"""A submission on disk: its folder, the resolved configurations, the record of each job as it is accepted."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from aorta.artefacts.files import is_file, is_there, make_shared_folder
from aorta.artefacts.io import append_line, json_line, write_exact
from aorta.artefacts.layout import RunDir, Scenario
from aorta.artefacts.masking import MASK, here
from aorta.artefacts.own_program import program_name
from aorta.artefacts.records import SubmittedJob
from aorta.artefacts.submissions import SubmissionDir
from aorta.config.load import load_config, save_config
from aorta.config.schema import Config
from aorta.config.shipped import shipped
from aorta.errors import ArtefactError, ConfigError, PlanError, SubmitError
from aorta.launch import slurm
from aorta.launch.plan import CPU_FAMILY, CPU_OVERRIDES, LaunchPlan
from aorta.launch.sbatch import render, render_aggregate
from aorta.launch.tools import Caller

GPU_CONFIG, CPU_CONFIG = "default.yaml", "small.yaml"


def find_aorta() -> tuple[str, ...]:
    """The command by which jobs call the `aorta` of this Python: its script, else the module."""
    python = Path(sys.executable).absolute()
    beside = python.with_name("aorta")
    return (str(beside),) if beside.is_file() else (str(python), "-m", "aorta")


def choose_config(given: Path | None, *, gpus: bool) -> tuple[Path, str]:
    """(configuration file, why this one): the one given, else the full model on GPUs, the small one without.

    Raises:
        ConfigError: the file is not there.
    """
    if given is not None:
        chosen, why = given, "as asked for"
    else:
        chosen, why = (shipped(GPU_CONFIG), "GPUs") if gpus else (shipped(CPU_CONFIG), "no GPUs")
    if not is_file(chosen):
        own = shipped(chosen.name)
        raise ConfigError(
            f"the configuration {chosen} does not exist in {Path.cwd()}",
            f"aorta's own configuration is {own}: use that one"
            if is_file(own)
            else "name a file with --config",
        )
    return chosen, why


def resolve_configs(
    scenarios: Sequence[Scenario], config: Path, overrides: Sequence[str]
) -> dict[Scenario, Config]:
    """The configuration of each scenario; the family `cpu` stays on the CPU unless an override says else.

    Raises:
        ConfigError: the file or an override is wrong.
    """
    return {
        scenario: load_config(config, [*(CPU_OVERRIDES if scenario.family == CPU_FAMILY else ()), *overrides])
        for scenario in scenarios
    }


def new_submission(results: Path) -> SubmissionDir:
    """A name for a new submission below `results`, by UTC time; nothing is created."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    submission, number = SubmissionDir.of(results, stamp), 1
    while is_there(submission.root):
        number += 1
        submission = SubmissionDir.of(results, f"{stamp}-{number}")
    return submission


def open_submission(submission: SubmissionDir, configs: dict[Scenario, Config]) -> SubmissionDir:
    """Create the folder of a submission with its resolved configurations, and give it.

    It is `submission`, or another of the same time where someone was faster. Plans follow with `moved`.

    Raises:
        PlanError: it cannot be written.
    """
    try:
        submission = _make_folder(submission)
        for scenario, config in configs.items():
            save_config(config, submission.config(scenario))
            make_shared_folder(submission.root.parent / scenario.name)
    except OSError as error:
        raise PlanError(
            f"{submission.root}: {error.strerror}", "choose another folder with --results"
        ) from error
    return submission


def _make_folder(submission: SubmissionDir) -> SubmissionDir:
    while True:
        try:
            submission.root.mkdir(parents=True)
        except FileExistsError:
            submission = new_submission(submission.root.parent)
        else:
            return submission


def moved(plans: Sequence[LaunchPlan], submission: SubmissionDir) -> list[LaunchPlan]:
    """`plans` with the configurations of `submission`."""
    return [
        dataclasses.replace(plan, config=str(submission.config(Scenario(plan.scenario)))) for plan in plans
    ]


def record(submission: SubmissionDir, job: SubmittedJob) -> None:
    """Write down a job as accepted, and make its run directory.

    Raises:
        ArtefactError: not all of it could be written; what could be was.
    """
    wrong: list[str] = []
    for path, line in (
        (submission.job_ids, job.job_id),
        (submission.jobs, json_line(job)),
    ):
        try:
            append_line(path, line)
        except OSError as error:
            wrong.append(f"{path}: {error.strerror}")
    try:
        Path(job.run_dir).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        wrong.append(f"{job.run_dir}: {error.strerror}")
    if wrong:
        raise ArtefactError(f"job {job.job_id} was accepted, but is not fully recorded: {'; '.join(wrong)}")


def submit_all(
    plans: Sequence[LaunchPlan],
    submission: SubmissionDir,
    call: Caller,
    accepted: Callable[[SubmittedJob], None],
    *,
    one_after_another: bool = False,
) -> list[SubmittedJob]:
    """Submit every plan to Slurm in turn.

    Each job is on record, and told to `accepted`, before the next is tried. With `one_after_another` a job
    starts when the one before has ended, however it ended.

    Raises:
        PlanError: a script cannot be written; nothing was submitted.
        SubmitError: one was refused; those before it run and are on record, and the message names them. Or
            all were accepted, and some could not be put on record.
    """
    scripts = {submission.script(Scenario(plan.scenario)): render(plan) for plan in plans}
    with written_scripts(scripts):
        return _submit_each(plans, submission, call, accepted, one_after_another=one_after_another)


def _submit_each(
    plans: Sequence[LaunchPlan],
    submission: SubmissionDir,
    call: Caller,
    accepted: Callable[[SubmittedJob], None],
    *,
    one_after_another: bool,
) -> list[SubmittedJob]:
    """Submit the scripts of the plans, which are written."""
    jobs: list[SubmittedJob] = []
    unrecorded: list[str] = []
    for plan in plans:
        scenario = Scenario(plan.scenario)
        script = submission.script(scenario)
        try:
            after = [jobs[-1].job_id] if one_after_another and jobs else []
            job_id, cluster = slurm.submit(script, call, after)
        except SubmitError as error:
            if jobs:
                kept = ", ".join(f"{job.scenario} ({job.job_id})" for job in jobs)
                before = f"accepted before, and recorded in {submission.job_ids}: {kept}"
                said = "\n  ".join([error.message, before, *unrecorded])
                raise SubmitError(said, error.hint) from error
            raise
        job = SubmittedJob(
            job_id=job_id,
            scenario=plan.scenario,
            nodes=plan.nodes,
            run_dir=str(RunDir.of(Path(plan.results), scenario, job_id).root),
            submitted_wall_ns=plan.submitted_wall_ns or time.time_ns(),
            executor="slurm",
            cluster=cluster,
            program=program_name(plan.command),
        )
        jobs.append(job)
        try:
            record(submission, job)
        except ArtefactError as error:
            unrecorded.append(error.message)
        accepted(job)
    refuse_unrecorded(unrecorded)
    return jobs


@contextlib.contextmanager
def written_scripts(scripts: Mapping[Path, str]) -> Iterator[None]:
    """Write every script before the first one is submitted; once all are, secrets in the files are masked.

    Slurm keeps a copy of each script that it accepts. Commands may hold secrets, so only the owner may read
    the files.

    Raises:
        PlanError: one cannot be written.
    """
    try:
        for path, text in scripts.items():
            try:
                write_exact(path, text, private=True)
            except OSError as error:
                raise PlanError(f"{path}: {error.strerror}", "nothing was submitted") from error
        yield
    finally:
        masker = here()
        for path, text in scripts.items():
            if (masked := masker.text(text)) != text and is_file(path):
                heading, _, rest = masked.partition("\n")
                write_exact(
                    path,
                    f"{heading}\n# {MASK} replaces a secret, which Slurm received.\n{rest}",
                    private=True,
                )


def refuse_unrecorded(messages: Sequence[str]) -> None:
    """Say once everything is submitted what could not be put on record.

    Raises:
        SubmitError: there is something to say.
    """
    if messages:
        raise SubmitError(
            "\n  ".join(messages), "follow such jobs with `aorta wait --job ID`; scancel ID ends one"
        )


def submit_aggregate(
    plans: Sequence[LaunchPlan],
    jobs: Sequence[SubmittedJob],
    submission: SubmissionDir,
    docs: Path,
    call: Caller,
) -> str:
    """Chain the analysis behind the jobs, however they end; gives its id.

    Raises:
        SubmitError: refused; the jobs themselves are not affected.
    """
    script = submission.aggregate_script
    with written_scripts({script: render_aggregate(plans, submission, docs)}):
        job_id, _ = slurm.submit(script, call, after=[job.job_id for job in jobs])
    return job_id
