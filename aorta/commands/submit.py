"""`aorta submit`: the scenarios to Slurm."""

from __future__ import annotations

import getpass
import time
from pathlib import Path
from typing import Any

import click

from aorta.commands._options import OverrideCommand, docs_option, launch_options
from aorta.launch.plan import LaunchPlan, LaunchRequest, make_plans, parse_scenarios


@click.command(
    "submit",
    cls=OverrideCommand,
    context_settings={"allow_interspersed_args": False},
    short_help="Submit the scenarios to Slurm.",
)
@launch_options
@click.option("--account", envvar="SLURM_ACCOUNT", help="Default: SLURM_ACCOUNT.")
@click.option("--partition", envvar="SLURM_PARTITION", help="Default: SLURM_PARTITION.")
@click.option("--qos")
@click.option("--constraint")
@click.option("--cpus-per-task", type=click.IntRange(min=1), help="CPUs of each node's task.")
@click.option("--exclusive", is_flag=True, help="Whole nodes.")
@click.option("--sbatch-line", "sbatch_lines", multiple=True, metavar="LINE", help="Such as --mem=64G.")
@click.option("--assume-shared", is_flag=True, help="The results folder is shared, whatever it looks like.")
@click.option("--aggregate", is_flag=True, help="Chain a job that analyses the others when they have ended.")
@click.option("--dry-run", is_flag=True, help="Print the scripts exactly; submit nothing.")
@docs_option
def command(**options: Any) -> None:
    """Submit one job a scenario, and remember their ids.

    What follows -- is your own program, run in place of the built-in trainer: a Python script with its
    arguments, as torchrun would take it.
    """
    from aorta.launch.submission import choose_config, find_aorta, new_submission, resolve_configs
    from aorta.launch.tools import call

    results = options["results"].absolute()
    scenarios = parse_scenarios(options["scenarios"], options["nodes"])
    config, why = choose_config(options["config"], gpus=bool(options["gpus_per_node"]))
    configs = resolve_configs(scenarios, config, options["overrides"])
    request = LaunchRequest(
        scenarios=scenarios,
        aorta=(find_aorta(),),
        project=Path.cwd(),
        results=results,
        submission=new_submission(results),
        gpus_per_node=options["gpus_per_node"],
        processes_per_node=options["procs_per_node"],
        tasks_per_node=options["tasks_per_node"],
        cpus_per_task=options["cpus_per_task"],
        exclusive=options["exclusive"],
        time_limit=options["time_limit"],
        account=options["account"],
        partition=options["partition"],
        qos=options["qos"],
        constraint=options["constraint"],
        sbatch_lines=options["sbatch_lines"],
        profiler=options["profiler"],
        monitor_interval_s=options["monitor_interval"],
        command=options["command"],
        assume_shared=options["assume_shared"],
        submitted_wall_ns=time.time_ns(),
    )
    plans = _checked(request)
    if options["dry_run"]:
        _print_scripts(plans, request, options["docs"] if options["aggregate"] else None)
        return
    click.echo(f"configuration: {config} ({why})")
    _submit(plans, request, configs, options["docs"] if options["aggregate"] else None, call)


def _checked(request: LaunchRequest) -> list[LaunchPlan]:
    from aorta.launch.site import ask_site
    from aorta.launch.storage import probe
    from aorta.launch.tools import call

    site = ask_site(getpass.getuser(), call)
    storage = probe(request.results)
    plans = make_plans(request, storage, site)
    if request.account is not None and site.accounts is None:
        click.echo(f"note: account {request.account} is not checked: there is no accounting to ask", err=True)
    if storage.shared is None and not request.assume_shared:
        click.echo(
            f"note: {storage.path} is on {storage.fs_type or 'an unknown file system'}; whether the nodes "
            "see it is not known",
            err=True,
        )
    return plans


def _print_scripts(plans: list[LaunchPlan], request: LaunchRequest, docs: Path | None) -> None:
    from aorta.launch.sbatch import render, render_aggregate

    for plan in plans:
        click.echo(f"### {plan.scenario}")
        click.echo(render(plan), nl=False)
    if docs is not None:
        click.echo("### aggregate, after the others")
        click.echo(render_aggregate(plans, request.submission, docs.absolute()), nl=False)


def _submit(
    plans: list[LaunchPlan], request: LaunchRequest, configs: Any, docs: Path | None, call: Any
) -> None:
    from aorta.launch.submission import open_submission, submit_aggregate, submit_all

    submission = request.submission
    open_submission(submission, configs)
    jobs = submit_all(
        plans, submission, call, lambda job: click.echo(f"submitted {job.scenario}: job {job.job_id}")
    )
    click.echo(f"ids: {submission.job_ids}")
    ids = [job.job_id for job in jobs]
    click.echo(f"watch: squeue -j {','.join(ids)}, tail -f {request.results}/profile_*_{ids[0]}.out")
    if docs is None:
        click.echo("next: make wait && make aggregate")
        return
    chained = submit_aggregate(plans, jobs, submission, docs.absolute(), call)
    click.echo(f"submitted aggregate: job {chained}, when the others have ended")
    click.echo("next: make wait")
