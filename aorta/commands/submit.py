"""`aorta submit`: the scenarios to Slurm."""

from __future__ import annotations

import dataclasses
import getpass
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aorta.artefacts.records import SubmittedJob
from aorta.commands._json import echo_json, json_option, messages_aside
from aorta.commands._options import docs_option, launch_options, slurm_options, slurm_request, what_next
from aorta.commands._overrides import OverrideCommand
from aorta.commands._say import say, say_script
from aorta.launch.plan import LaunchPlan, LaunchRequest, make_plans
from aorta.launch.profilers import refuse_named_tracer

if TYPE_CHECKING:
    from aorta.launch.site import Site


@click.command(
    "submit",
    cls=OverrideCommand,
    context_settings={"allow_interspersed_args": False},
    short_help="Submit the scenarios to Slurm.",
)
@launch_options
@slurm_options
@click.option(
    "--one-after-another/--at-once",
    default=None,
    help="Start each scenario after the previous one has ended. Default if all nodes are this machine.",
)
@docs_option
@json_option
def command(as_json: bool, **options: Any) -> None:
    """Submit one job per scenario and record the job ids.

    The command after -- is your own program, which runs instead of the built-in trainer: a Python script
    with its arguments, as for torchrun.
    """
    with messages_aside(as_json):
        told = _run(options, as_json=as_json)
    if as_json:
        echo_json(told)


def _run(options: dict[str, Any], *, as_json: bool) -> dict[str, object]:
    """Submit, or print what would be submitted; gives what `--json` prints."""
    from aorta.commands._judgeable import warn_unjudgeable
    from aorta.commands._reports import docs_folder
    from aorta.launch.submission import (
        choose_config,
        moved,
        open_submission,
        resolve_configs,
        submit_aggregate,
    )
    from aorta.launch.tools import call

    request = slurm_request(options)
    docs = docs_folder(options["docs"], options["results"]) if options["aggregate"] else None
    config, why = choose_config(options["config"], gpus=bool(request.gpus_per_node))
    configs = resolve_configs(request.scenarios, config, options["overrides"])
    for one in configs.values():
        refuse_named_tracer(request.profiler, one, own_program=bool(request.command))
    plans, one_machine = checked_plans(request)
    warn_unjudgeable(configs.values(), request.own, own_program=bool(request.command))
    if options["dry_run"]:
        scripts = _scripts(plans, request, docs)
        if not as_json:
            for name, text in scripts.items():
                say(f"### {name if name != 'aggregate' else 'aggregate, after the others'}")
                say_script(text)
        return {"submission": None, "jobs": [], "aggregate": None, "scripts": scripts}
    say(f"configuration: {config} ({why})")
    in_turn = one_machine if options["one_after_another"] is None else options["one_after_another"]
    if in_turn and options["one_after_another"] is None and len(plans) > 1:
        say("all nodes are this machine: each scenario starts after the previous one has ended")
    request = dataclasses.replace(request, submission=open_submission(request.submission, configs))
    plans = moved(plans, request.submission)
    jobs = _submit(plans, request, one_after_another=in_turn)
    chained = None
    if docs is not None:
        chained = submit_aggregate(plans, jobs, request.submission, docs.absolute(), call)
        say(f"submitted aggregate: job {chained}, when the others have ended")
    say(what_next(options["results"], aggregated=docs is not None))
    return {"submission": str(request.submission.root), "jobs": jobs, "aggregate": chained}


def checked_plans(request: LaunchRequest) -> tuple[list[LaunchPlan], bool]:
    """The plans, and whether all nodes of the partition are this machine.

    Raises:
        PlanError: it cannot work; nothing may be submitted.
        SchedulerError: Slurm cannot be asked.
    """
    from aorta.launch.site import ask_site
    from aorta.launch.storage import probe
    from aorta.launch.tools import call

    site = ask_site(getpass.getuser(), call)
    storage = probe(request.results)
    plans = make_plans(request, storage, site)
    if request.account is not None and site.accounts is None:
        say(
            f"note: account {request.account} is not checked, because this cluster has no accounting",
            err=True,
        )
    _note_idle_gpus(request, site)
    if storage.shared is None and not request.assume_shared:
        say(
            f"note: {storage.path} is on {storage.fs_type or 'an unknown file system'}, and it is not known "
            "if the nodes see it",
            err=True,
        )
    return plans, site.is_one_machine(request.partition)


def _note_idle_gpus(request: LaunchRequest, site: Site) -> None:
    names = (request.partition or (site.default_partition.name if site.default_partition else "")).split(",")
    most = max((site.partitions[name].gpus for name in names if name in site.partitions), default=0)
    if most and request.gpus_per_node is None:
        say(
            f"note: no GPUs are requested, but the nodes have {most}: use --gpus-per-node {most} to request "
            "them",
            err=True,
        )


def _scripts(plans: list[LaunchPlan], request: LaunchRequest, docs: Path | None) -> dict[str, str]:
    """The script of each job, by scenario; that of the analysis is `aggregate`."""
    from aorta.launch.sbatch import render, render_aggregate

    scripts = {plan.scenario: render(plan) for plan in plans}
    if docs is not None:
        scripts["aggregate"] = render_aggregate(plans, request.submission, docs.absolute())
    return scripts


def _submit(
    plans: list[LaunchPlan],
    request: LaunchRequest,
    *,
    one_after_another: bool,
) -> list[SubmittedJob]:
    from aorta.launch.submission import submit_all
    from aorta.launch.tools import call

    def accepted(job: SubmittedJob) -> None:
        say(f"submitted {job.scenario}: job {job.job_id}")

    submission = request.submission
    jobs = submit_all(plans, submission, call, accepted, one_after_another=one_after_another)
    ids = [job.job_id for job in jobs]
    say(f"ids: {submission.job_ids}")
    results = shlex.quote(str(request.results))
    say(f"watch: squeue -j {','.join(ids)}; tail -f {results}/profile_*_{ids[0]}.out")
    return jobs
