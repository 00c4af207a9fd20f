"""`aorta sweep`: many runs that differ in a few keys, or in their number of nodes."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from aorta.commands._json import echo_json, json_option, messages_aside
from aorta.commands._options import (
    base_request,
    docs_option,
    launch_options,
    slurm_options,
    slurm_request,
    what_next,
)
from aorta.commands._overrides import OverrideCommand, complete_override
from aorta.commands._say import say, say_script

if TYPE_CHECKING:
    from aorta.artefacts.records import SubmittedJob
    from aorta.artefacts.submissions import SubmissionDir
    from aorta.artefacts.sweep import Sweep
    from aorta.config.schema import Config
    from aorta.launch.plan import LaunchPlan, LaunchRequest


@click.command(
    "sweep",
    cls=OverrideCommand,
    context_settings={"allow_interspersed_args": False},
    short_help="Vary keys or nodes: job arrays, or one after another here.",
)
@click.option(
    "--over",
    multiple=True,
    metavar="KEY=V1,V2,...",
    help="Values of a key, such as training.batch_size=8,16,32.",
    shell_complete=complete_override,
)
@click.option(
    "--repeats", type=click.IntRange(min=1), default=1, show_default=True, help="Runs of each setting."
)
@click.option(
    "--strong",
    type=click.IntRange(min=1),
    metavar="GLOBAL_BATCH",
    help="Samples per step, divided among the ranks: training.batch_size is set for each number of nodes.",
)
@click.option(
    "--weak", is_flag=True, help="Keep the batch size per rank, which is the default with several --nodes."
)
@click.option("--executor", type=click.Choice(["slurm", "local"]), default="slurm", show_default=True)
@click.option(
    "--at-most",
    type=click.IntRange(min=1),
    metavar="N",
    help="Points that run at the same time. Default: 1 if all nodes are this machine, otherwise no limit.",
)
@launch_options
@slurm_options
@docs_option
@json_option
def command(as_json: bool, **options: Any) -> int:
    """Run every combination of the --over values, --repeats times, for each number of nodes.

    --nodes is 1 by default, or 1,2,4 with --strong or --weak. --profiler is none by default, because a
    profiler changes the times that are compared. On Slurm, the points with the same number of nodes are one
    job array. `aorta aggregate` then writes SWEEP_ANALYSIS.md.
    """
    if options["scenarios"] is None and options["nodes"] is None:
        options["nodes"] = "1,2,4" if options["strong"] is not None or options["weak"] else "1"
    options["profiler"] = options["profiler"] or "none"
    with messages_aside(as_json):
        told, status = _locally(options) if options["executor"] == "local" else _on_slurm(options)
    if as_json:
        echo_json(told)
    elif options["dry_run"]:
        for scenario, script in told["scripts"].items():
            say(f"### {scenario}")
            say_script(script)
    return status


def _submitted(submission: SubmissionDir, aggregate: str | None = None) -> dict[str, Any]:
    """Returns what `--json` prints of a sweep that was submitted, or has run."""
    from aorta.launch.submitted import read_sweep

    return {
        "submission": str(submission.root),
        "points": read_sweep(submission).points,
        "aggregate": aggregate,
    }


def _sweep(request: LaunchRequest, options: dict[str, Any]) -> tuple[LaunchRequest, Sweep, list[Config]]:
    """The request with its processes fixed where scaling counts on them, and the points."""
    from aorta.launch.profilers import refuse_named_tracer
    from aorta.launch.submission import choose_config
    from aorta.launch.sweep import SweepRequest, make_sweep, parse_over

    config, why = choose_config(options["config"], gpus=bool(request.gpus_per_node))
    ranks = request.processes_per_node or request.gpus_per_node or 1
    if options["strong"] is not None:
        request = dataclasses.replace(request, processes_per_node=ranks)
    sweep, configs = make_sweep(
        SweepRequest(
            scenarios=request.scenarios,
            over=parse_over(options["over"]),
            repeats=options["repeats"],
            strong=options["strong"],
            weak=options["weak"],
            ranks_per_node=ranks,
            config=config,
            overrides=options["overrides"],
            executor=options["executor"],
            own_program=bool(request.command),
        )
    )
    for one in configs:
        refuse_named_tracer(request.profiler, one, own_program=bool(request.command))
    say(f"configuration: {config} ({why}); {len(sweep.points)} points", err=options["dry_run"])
    return request, sweep, configs


def _on_slurm(options: dict[str, Any]) -> tuple[dict[str, Any], int]:
    import msgspec

    from aorta.commands._reports import docs_folder
    from aorta.commands.submit import checked_plans
    from aorta.launch.submission import submit_aggregate
    from aorta.launch.sweep_submission import open_sweep, submit_sweep
    from aorta.launch.tools import call

    request, sweep, configs = _sweep(slurm_request(options), options)
    plans, one_machine = checked_plans(request)
    at_most = options["at_most"] or (1 if one_machine else None)
    if options["dry_run"]:
        scripts = {base.scenario: _script(base, request, sweep, at_most) for base in plans}
        return {"submission": None, "points": sweep.points, "aggregate": None, "scripts": scripts}, 0
    if one_machine and options["at_most"] is None:
        say("all nodes are this machine: each point starts after the previous one has ended")
    tasks: list[SubmittedJob] = []

    def accepted(array: str, jobs: Sequence[SubmittedJob]) -> None:
        tasks.extend(jobs)
        say(f"submitted {jobs[0].scenario}: array {array}, {len(jobs)} tasks")

    submission = open_sweep(request.submission, sweep, configs)
    arrays = submit_sweep(plans, submission, sweep, call, accepted, at_most=at_most)
    say(f"points: {submission.sweep}")
    docs = docs_folder(options["docs"], options["results"]) if options["aggregate"] else None
    chained = None
    if docs is not None:
        whole = [msgspec.structs.replace(tasks[0], job_id=array) for array in arrays]
        chained = submit_aggregate(plans, whole, submission, docs.absolute(), call)
        say(f"submitted aggregate: job {chained}, when the others have ended")
    say(what_next(options["results"], aggregated=docs is not None))
    return _submitted(submission, chained), 0


def _script(base: LaunchPlan, request: LaunchRequest, sweep: Sweep, at_most: int | None) -> str:
    """The script of a scenario's job array, after a line for each of its points."""
    from aorta.launch.sbatch import render
    from aorta.launch.sweep import array_plan

    points = [point for point in sweep.points if point.scenario == base.scenario]
    lines = [f"# {point.task}: {point.label}\n" for point in points]
    return "".join([*lines, render(array_plan(base, request.submission, points, at_most))])


def _locally(options: dict[str, Any]) -> tuple[dict[str, Any], int]:
    from aorta.commands._reports import docs_folder
    from aorta.commands.profile import exit_status, gpus_per_node, run_all
    from aorta.errors import PlanError
    from aorta.launch.local import visible_gpus
    from aorta.launch.plan import make_plans, parse_scenarios
    from aorta.launch.storage import probe
    from aorta.launch.sweep import point_plan
    from aorta.launch.sweep_submission import open_sweep

    if (options["at_most"] or 1) > 1 or options["aggregate"] or options["dry_run"]:
        raise PlanError(
            "--at-most, --aggregate and --dry-run are for Slurm",
            "on this machine, the points run one after another, and the document is then written",
        )
    gpus = visible_gpus(os.environ)
    scenarios = parse_scenarios(options["scenarios"], options["nodes"])
    per_node = gpus_per_node(options["gpus_per_node"], gpus, max(scenario.nodes for scenario in scenarios))
    request, sweep, configs = _sweep(base_request(options, gpus_per_node=per_node), options)
    bases = {plan.scenario: plan for plan in make_plans(request, probe(request.results), None)}
    request = dataclasses.replace(request, submission=open_sweep(request.submission, sweep, configs))
    plans = [point_plan(bases[point.scenario], request.submission, point) for point in sweep.points]

    completed, told = run_all(
        plans,
        request,
        gpus,
        names=[f"{point.scenario} {point.label}" for point in sweep.points],
        what="point",
        started=_Notebook(request, sweep).note,
    )
    from aorta.commands._sweeps import aggregate_sweep, echo_sweep

    docs = docs_folder(options["docs"], options["results"])
    echo_sweep(aggregate_sweep(docs, request.submission, request.results), docs)
    return _submitted(request.submission), exit_status(completed, told)


class _Notebook:
    """Keeps `sweep.json` up to date while points start one after another."""

    def __init__(self, request: LaunchRequest, sweep: Sweep) -> None:
        self._file = request.submission.sweep
        self._sweep = sweep

    def note(self, place: int, job: SubmittedJob) -> None:
        """The point at `place` runs as `job`."""
        from aorta.artefacts.io import write_json
        from aorta.launch.sweep_submission import with_job

        point = self._sweep.points[place]
        self._sweep = with_job(self._sweep, point.scenario, point.task, job.job_id)
        write_json(self._file, self._sweep)
