"""Options that several commands share."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from aorta.artefacts import names
from aorta.artefacts.names import RESULTS
from aorta.commands._overrides import complete_override
from aorta.errors import PlanError
from aorta.launch.durations import DEFAULT_TIME
from aorta.typeable import is_checkout

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from aorta.artefacts.own_program import OwnProgram
    from aorta.config.schema import ContainerConfig
    from aorta.launch.plan import LaunchRequest

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def _word(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from aorta.commands._completion import complete_word

    return complete_word(context, parameter, incomplete)


def results_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--results`."""
    return click.option(
        "--results",
        type=click.Path(path_type=Path, file_okay=False),
        default=RESULTS,
        show_default=True,
        help="Folder of the runs.",
    )(function)


def jobs_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The jobs that a command is about: a submission, or `--job`."""
    jobs = click.option(
        "--job",
        "job_ids",
        multiple=True,
        metavar="ID",
        help="Use this job instead of a submission; the id of an array stands for all its tasks.",
    )
    folder = click.Path(path_type=Path, file_okay=False)
    return click.argument("submission", required=False, type=folder)(jobs(function))


def how_to(name: Literal["wait", "aggregate"], results: Path) -> str:
    """Returns what to type to wait for, or aggregate, the runs below `results`.

    Make knows the usual place alone, and only in the checkout.
    """
    if results == RESULTS:
        return f"make {name}" if is_checkout(Path.cwd()) else f"aorta {name}"
    where = shlex.quote(str(results))
    return f"aorta wait --results {where}" if name == "wait" else f"aorta aggregate {where}"


def what_next(results: Path, *, aggregated: bool) -> str:
    """Returns what to type after a submission; if it is `aggregated`, a job of its own writes the report."""
    steps = how_to("wait", results), how_to("aggregate", results)
    return f"next: {steps[0] if aggregated else ' && '.join(steps)}"


def docs_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--docs`."""
    return click.option(
        "--docs",
        type=click.Path(path_type=Path, file_okay=False),
        help="Folder for the report. Default: docs/ in aorta's own checkout, otherwise next to the results.",
    )(function)


class GpuCount(click.IntRange):
    """A number of GPUs. Slurm's form with a type, such as `a100:4`, is refused with the form that works."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number, or fail with what to write."""
        kind, colon, count = str(value).rpartition(":")
        if colon and count.isascii() and count.isdigit():
            self.fail(
                f"{value!r} names a type of GPU. Use --gpus-per-node {count}, and choose nodes with "
                f"{kind!r} by --constraint or --partition.",
                param,
                ctx,
            )
        return super().convert(value, param, ctx)


_RUNS: tuple[Decorator, ...] = (
    click.option("--scenarios", metavar="LIST", help="Scenarios, such as 1node,2node,cpu_2node."),
    click.option(
        "--nodes",
        metavar="LIST",
        help="Numbers of nodes, such as 1,2,4 (the default); short for --scenarios.",
    ),
    click.option(
        "--config",
        type=click.Path(path_type=Path, dir_okay=False),
        envvar=names.CONFIG,
        help="Configuration. Default: config/default.yaml with GPUs, config/small.yaml without.",
    ),
    click.option(
        "--override",
        "overrides",
        multiple=True,
        metavar="KEY=VALUE ...",
        help="Change keys of the configuration, such as training.max_steps=50.",
        shell_complete=complete_override,
    ),
    click.option(
        "--profiler",
        type=click.Choice(["auto", "none", "nsys", "rocprofv3"]),
        help="Profiler to run around each rank. Default: from the configuration.",
    ),
)
"""Options that say which runs there are, and how they are configured."""

_PROGRAM: tuple[Decorator, ...] = (
    click.option(
        "--instrument",
        type=click.Choice(["auto", "none"]),
        default="auto",
        show_default=True,
        help="auto: aorta's hooks record the steps of your own program; none: no hooks.",
    ),
    click.option(
        "--python",
        metavar="PATH",
        help="Python interpreter for your own program. Default: from the active environment.",
    ),
    click.option(
        "--launcher",
        type=click.Choice(["aorta", "own"]),
        default="aorta",
        show_default=True,
        help="What starts the ranks of your own program. own: aorta starts the program once per node, and it "
        "starts its ranks.",
    ),
    click.option(
        "--steps",
        type=click.IntRange(min=1),
        metavar="N",
        help="End your own program after N optimizer steps.",
    ),
    click.option(
        "--container",
        metavar="IMAGE",
        help="Run the ranks in this container image, with pyxis, Apptainer or Charliecloud "
        "(container.runtime).",
    ),
)
"""Options for a program of the user's own."""

_SIZES: tuple[Decorator, ...] = (
    click.option(
        "--keep-environment",
        is_flag=True,
        help="Keep environment variables and command lines in traces, including secrets.",
    ),
    click.option(
        "--monitor-interval",
        type=click.FloatRange(0.1, 60),
        metavar="S",
        help="Seconds between samples. Default: from the configuration.",
    ),
    click.option("--gpus-per-node", type=GpuCount(min=0), envvar=names.GPUS_PER_NODE),
    click.option(
        "--procs-per-node",
        type=click.IntRange(min=1),
        help="Ranks per node. Default: one per GPU, or one without GPUs.",
    ),
    click.option("--tasks-per-node", type=int, default=1, hidden=True),
    click.option(
        "--time", "time_limit", default=DEFAULT_TIME, show_default=True, help="Time limit of each job."
    ),
    results_option,
    click.argument(
        "command",
        nargs=-1,
        type=click.UNPROCESSED,
        metavar="[-- SCRIPT [ARGUMENTS]...]",
        shell_complete=_word,
    ),
)
"""Options of what to keep and sample, and of the size and program of a run."""


def launch_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns what a run is made of, the same for Slurm and for this machine."""
    return _applied((*_RUNS, *_PROGRAM, *_SIZES), function)


def _applied(decorators: Sequence[Decorator], function: Callable[..., Any]) -> Callable[..., Any]:
    for decorator in reversed(decorators):
        function = decorator(function)
    return function


_SLURM: tuple[Decorator, ...] = (
    click.option("--account", envvar="SLURM_ACCOUNT", help="Default: SLURM_ACCOUNT."),
    click.option("--partition", envvar="SLURM_PARTITION", help="Default: SLURM_PARTITION."),
    click.option("--qos"),
    click.option("--constraint"),
    click.option("--cpus-per-task", type=click.IntRange(min=1), help="CPUs for the task on each node."),
    click.option("--exclusive", is_flag=True, help="Whole nodes."),
    click.option("--sbatch-line", "sbatch_lines", multiple=True, metavar="LINE", help="Such as --mem=64G."),
    click.option("--assume-shared", is_flag=True, help="Assume that all nodes see the results folder."),
    click.option(
        "--aggregate", is_flag=True, help="Add a job that analyses the other jobs when they have ended."
    ),
    click.option("--dry-run", is_flag=True, help="Print the exact scripts, and submit nothing."),
)
"""Options for Slurm besides nodes, GPUs and time."""


def slurm_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns what Slurm is asked for beside nodes, GPUs and time."""
    return _applied(_SLURM, function)


def slurm_request(options: dict[str, Any]) -> LaunchRequest:
    """The request that `launch_options` and `slurm_options` describe together.

    Raises:
        PlanError: as `base_request`.
    """
    asked = ("account", "partition", "qos", "constraint", "cpus_per_task", "exclusive", "sbatch_lines")
    return base_request(
        options,
        gpus_per_node=options["gpus_per_node"],
        assume_shared=options["assume_shared"],
        submitted_wall_ns=time.time_ns(),
        **{name: options[name] for name in asked},
    )


def _own_program(options: dict[str, Any], container: ContainerConfig) -> OwnProgram:
    """Returns how the user's program is run; what the run will show is said.

    Raises:
        PlanError: its interpreter is not there, or options contradict each other.
        ConfigError: an override has no effect on it.
    """
    from aorta.artefacts.own_program import OwnProgram

    command = options["command"]
    given = {name: options[name] for name in ("instrument", "python", "launcher", "steps")}
    own = OwnProgram(**given)
    if not command:
        idle = next((name for name in ("python", "steps") if given[name] is not None), None)
        if idle is not None:
            raise PlanError(f"--{idle} is for a program of your own", "name the program after --")
        return own
    from dataclasses import replace

    from aorta.commands._say import say
    from aorta.launch.own_program import (
        choose_python,
        inside_container,
        refuse_idle_overrides,
        resolved,
        starts_python,
    )

    refuse_idle_overrides(options["overrides"], command)
    if container.image is not None:
        interpreter = inside_container(own.python, container.image)
    else:
        interpreter = choose_python(own.python, os.environ)
    for text in resolved(own, command, interpreter):
        say(text, err=True)
    return replace(own, python=interpreter.path if starts_python(command) else None)


def _container(options: dict[str, Any], *, gpus: bool) -> ContainerConfig:
    """The configuration's container.

    Raises:
        ConfigError: the configuration is wrong, or no runtime can be told of the image or of a folder.
    """
    from aorta.config.load import load_config
    from aorta.launch import container
    from aorta.launch.submission import choose_config

    path, _ = choose_config(options["config"], gpus=gpus)
    block = load_config(path, options["overrides"]).container
    if block.image is not None:
        container.check_image(block.image)
        container.parse_mounts(block.mounts)
    return block


def base_request(options: dict[str, Any], **more: Any) -> LaunchRequest:
    """The request that `launch_options` describe, from the current folder, with `more` of its fields.

    Raises:
        PlanError: the scenarios are none, or aorta is not installed as a command.
    """
    from aorta.launch.plan import LaunchRequest, parse_scenarios
    from aorta.launch.submission import find_aorta, new_submission

    results = options["results"].absolute()
    container = _container(options, gpus=bool(more.get("gpus_per_node")))
    return LaunchRequest(
        scenarios=parse_scenarios(options["scenarios"], options["nodes"]),
        aorta=find_aorta(),
        project=Path.cwd(),
        results=results,
        submission=new_submission(results),
        processes_per_node=options["procs_per_node"],
        tasks_per_node=options["tasks_per_node"],
        time_limit=options["time_limit"],
        profiler=options["profiler"],
        monitor_interval_s=options["monitor_interval"],
        own=_own_program(options, container),
        container=container,
        command=options["command"],
        **more,
    )
