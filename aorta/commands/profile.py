"""`aorta profile`: the scenarios one after another on this machine, and the report."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aorta.commands._options import base_request, docs_option, launch_options
from aorta.commands._overrides import OverrideCommand
from aorta.commands._say import say
from aorta.commands._signals import EndingSignals
from aorta.errors import PlanError
from aorta.launch.plan import LaunchPlan, LaunchRequest, make_plans, parse_scenarios
from aorta.launch.profilers import refuse_named_tracer

if TYPE_CHECKING:
    from aorta.artefacts.records import SubmittedJob
    from aorta.launch.local import LocalRun
    from aorta.launch.slurm import JobView

POLL_S = 0.5


@click.command(
    "profile",
    cls=OverrideCommand,
    context_settings={"allow_interspersed_args": False},
    short_help="Run the scenarios on this machine, wait, aggregate.",
)
@launch_options
@docs_option
def command(**options: Any) -> int:
    """Run the scenarios one after another on this machine, and write BOTTLENECK_ANALYSIS.md.

    Each node of a scenario is a task with its own node agent. The command after -- is your own program,
    which runs instead of the built-in trainer. Exit status 0: every scenario completed; 128 + n: signal n
    ended them.
    """
    from aorta.commands._judgeable import warn_unjudgeable
    from aorta.commands._reports import docs_folder
    from aorta.launch.local import visible_gpus
    from aorta.launch.storage import probe
    from aorta.launch.submission import choose_config, moved, open_submission, resolve_configs

    gpus = visible_gpus(os.environ)
    scenarios = parse_scenarios(options["scenarios"], options["nodes"])
    per_node = gpus_per_node(options["gpus_per_node"], gpus, max(scenario.nodes for scenario in scenarios))
    request = base_request(options, gpus_per_node=per_node)
    config, why = choose_config(options["config"], gpus=per_node > 0)
    configs = resolve_configs(scenarios, config, options["overrides"])
    results = request.results
    for one in configs.values():
        refuse_named_tracer(request.profiler, one, own_program=bool(request.command))
    plans = make_plans(request, probe(results), None)
    request = dataclasses.replace(request, submission=open_submission(request.submission, configs))
    plans = moved(plans, request.submission)
    if gpus and not per_node and options["gpus_per_node"] is None:
        say(f"note: {len(gpus)} GPUs are too few for so many nodes, so this runs on the CPU; see --nodes")
    say(f"configuration: {config} ({why})")
    warn_unjudgeable(configs.values(), request.own, own_program=bool(request.command))
    completed, told = run_all(plans, request, gpus)
    _aggregate(results, docs_folder(options["docs"], options["results"]), request)
    return exit_status(completed, told)


def exit_status(completed: bool, told: int | None) -> int:
    """128 + n where signal n ended the runs (`told`), else 0 where every run completed, else 1."""
    if told is not None:
        return 128 + told
    return 0 if completed else 1


def gpus_per_node(asked: int | None, gpus: Sequence[str], nodes: int) -> int:
    """GPUs of each node on this machine: as asked, else an equal share for the scenario with the most nodes.

    Raises:
        PlanError: more are asked for than there are. One GPU cannot serve two nodes: NCCL refuses that.
    """
    if asked is None:
        return len(gpus) // nodes
    if asked * nodes > len(gpus):
        raise PlanError(
            f"{nodes} nodes with {asked} GPUs each are {asked * nodes} GPUs; this machine has {len(gpus)}",
            "use --gpus-per-node 0 for a CPU run, or fewer nodes with --nodes 1",
        )
    return asked


def run_all(
    plans: Sequence[LaunchPlan],
    request: LaunchRequest,
    gpus: Sequence[str],
    *,
    names: Sequence[str] | None = None,
    what: str = "scenario",
    started: Callable[[int, SubmittedJob], None] | None = None,
) -> tuple[bool, int | None]:
    """(every run completed, the signal that ended them or None).

    Ctrl-C, SIGTERM and SIGHUP end the run that goes on, and no other starts.

    Args:
        plans: to run one after another.
        request: what they were made of.
        gpus: of this machine.
        names: what each run is called; None: by its scenario.
        what: the word for one of several runs.
        started: told the place of a plan and its job once that is on record.
    """
    from aorta.artefacts.layout import job_output
    from aorta.commands._progress import place_words
    from aorta.launch.local import start
    from aorta.launch.submission import record

    most = max(plan.nodes for plan in plans)
    completed = True
    names = names if names is not None else [plan.scenario for plan in plans]
    with EndingSignals() as signals:
        for place, (plan, name) in enumerate(zip(plans, names, strict=True)):
            signals.hold()
            run = start(plan, request.submission, place + 1, gpus, most)
            try:
                record(request.submission, run.job)
                signals.release()
                if started is not None:
                    started(place, run.job)
                view = _follow(run, place_words(what, place, len(plans), name))
            except KeyboardInterrupt:
                say(f"interrupted: ending {name}; the report follows", err=True)
                _end(run)
                return False, signals.number or signal.SIGINT
            except BaseException:
                _end(run)
                raise
            completed = completed and view.state.ok
            _say_end(view, name, job_output(request.results, plan.scenario, run.job.job_id))
    return completed, None


def _say_end(view: JobView, name: str, output: Path) -> None:
    reason = f": {view.reason}" if view.reason else ""
    say(f"{name}: {view.state.name} after {view.elapsed_s} s{reason}")
    if not view.state.ok:
        say(f"  see its output in {output}")


def _end(run: LocalRun) -> None:
    try:
        run.cancel()
    except KeyboardInterrupt:
        run.kill()
    run.poll()


def _follow(run: LocalRun, name: str) -> JobView:
    """Poll until the run has ended, with a live line on a terminal."""
    from rich.console import Console

    from aorta.artefacts.layout import RunDir
    from aorta.commands._progress import ProgressLine, progress_words
    from aorta.launch.progress import read_progress

    folder = RunDir(Path(run.job.run_dir))
    console = Console()
    with ProgressLine(console, name) as line:
        while (view := run.poll()).state.phase != "ended":
            if console.is_terminal:
                now = read_progress(folder)
                # Only training has a known end; in any other phase the bar runs to and fro.
                done, total = (now.steps, now.total) if now.phase == "training" else (0, None)
                line.show(progress_words(now, view.elapsed_s or 0), done=done, total=total)
            time.sleep(POLL_S)
    return view


def _aggregate(results: Path, docs: Path, request: LaunchRequest) -> None:
    from rich.console import Console

    from aorta.commands._progress import ProgressLine

    # What draws the report takes a second to import.
    with ProgressLine(Console(), "analysing"):
        from aorta.commands._scenarios import run_aggregate

    run_aggregate(results, docs, submission=request.submission, show=say)
