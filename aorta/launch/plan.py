"""From what a person asks for to what will run: one checked plan a scenario. Nothing here executes.

What cannot work is refused here, before anything is submitted, with the reason.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from aorta.artefacts.layout import Scenario, job_output
from aorta.artefacts.own_program import AORTAS, OwnProgram
from aorta.artefacts.submissions import SubmissionDir
from aorta.config.schema import ContainerConfig
from aorta.errors import ArtefactError, PlanError
from aorta.launch import checks
from aorta.launch.durations import DEFAULT_TIME
from aorta.launch.site import Site
from aorta.launch.storage import Storage

CPU_FAMILY = "cpu"
CPU_OVERRIDES = ("training.device=cpu", "distributed.backend=gloo")
"""Overrides that make a scenario of the family `cpu` a CPU run wherever it lands."""
DEFAULT_SCENARIOS = ("1node", "2node", "4node")
NO_CONTAINER = ContainerConfig()
SIGNAL_LEAD_S = 90
"""Seconds before the limit at which agents are told to end; ranks, monitors and profilers need them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """Options of the user that hold for all scenarios."""

    scenarios: tuple[Scenario, ...]
    aorta: tuple[str, ...]
    """The aorta command that the jobs call, absolute."""
    project: Path
    """Folder that the jobs run in: relative names start from it; absolute."""
    results: Path
    """Absolute."""
    submission: SubmissionDir
    """Folder of the resolved configurations and the scripts; absolute."""
    gpus_per_node: int | None = None
    """GPUs per node to ask for. None if none are asked for."""
    processes_per_node: int | None = None
    """Ranks per node; None: as many as there are GPUs, one without."""
    tasks_per_node: int = 1
    cpus_per_task: int | None = None
    exclusive: bool = False
    time_limit: str = DEFAULT_TIME
    account: str | None = None
    partition: str | None = None
    qos: str | None = None
    constraint: str | None = None
    sbatch_lines: tuple[str, ...] = ()
    profiler: str | None = None
    """Profiler. None means the configuration's."""
    monitor_interval_s: float | None = None
    """Seconds between samples. None means the configuration's."""
    command: tuple[str, ...] = ()
    """The user's own program. Empty means the trainer."""
    own: OwnProgram = AORTAS
    container: ContainerConfig = NO_CONTAINER
    """Container of the ranks, as the configuration says."""
    assume_shared: bool = False
    submitted_wall_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """One scenario, resolved: everything that its script or its local run is made of."""

    scenario: str
    nodes: int
    aorta: tuple[str, ...]
    project: str
    results: str
    config: str
    output: str
    """File that the job's output goes to; `%j` stands for its id."""
    time_limit: str
    time_limit_s: int
    gpus_per_node: int | None = None
    processes_per_node: int | None = None
    cpus_per_task: int | None = None
    exclusive: bool = False
    account: str | None = None
    partition: str | None = None
    qos: str | None = None
    constraint: str | None = None
    sbatch_lines: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    """Only of committed files: a submitted job's configuration is resolved already."""
    profiler: str | None = None
    monitor_interval_s: float | None = None
    command: tuple[str, ...] = ()
    own: OwnProgram = AORTAS
    container: ContainerConfig = NO_CONTAINER
    signal_lead_s: int = SIGNAL_LEAD_S
    submitted_wall_ns: int | None = None
    array: str | None = None
    """Task indices of a job array, such as `0-5%1`. None means one job."""
    job_id: str | None = None
    """The agents' name of the job. None means the id that the scheduler gives it."""


def parse_scenarios(scenarios: str | None, nodes: str | None) -> tuple[Scenario, ...]:
    """The scenarios of `--scenarios 1node,cpu_2node` or `--nodes 1,2`; the documented three for neither.

    Raises:
        PlanError: both are given, one is not of that form, or one comes twice.
    """
    if scenarios is not None and nodes is not None:
        raise PlanError("--scenarios and --nodes mean the same thing", "give one of them")
    if nodes is not None:
        counts = [part.strip() for part in nodes.split(",")]
        wrong = next(
            (part for part in counts if not re.fullmatch(r"0{0,9}[1-9][0-9]{0,5}", part, re.ASCII)), None
        )
        if wrong is not None:
            raise PlanError(
                f"--nodes: {wrong[:40]!r} is not a number of nodes between 1 and 999999",
                "write --nodes 1,2,4",
            )
        names = [f"{int(part)}node" for part in counts]
    elif scenarios is not None:
        names = [part.strip() for part in scenarios.split(",")]
    else:
        names = list(DEFAULT_SCENARIOS)
    try:
        found = tuple(Scenario(name) for name in names)
    except ArtefactError as error:
        raise PlanError(f"--scenarios: {error.message}", "write --scenarios 1node,2node,cpu_2node") from error
    if len(set(names)) != len(names):
        raise PlanError(f"a scenario is named twice in {','.join(names)}", "each scenario gives one job")
    return found


def make_plans(request: LaunchRequest, storage: Storage, site: Site | None) -> list[LaunchPlan]:
    """The plans of `request`, in its order. `site` is None for a run on this machine, without Slurm.

    Raises:
        PlanError: it cannot work; nothing may be submitted.
    """
    limit_s = checks.time_limit(request.time_limit, SIGNAL_LEAD_S)
    for name in ("gpus_per_node", "processes_per_node", "cpus_per_task", "tasks_per_node"):
        value = getattr(request, name)
        if value is not None and value < (0 if name == "gpus_per_node" else 1):
            raise PlanError(f"--{name.replace('_', '-')} is {value}", "give a positive number")
    checks.processes(
        request.tasks_per_node,
        request.processes_per_node,
        request.gpus_per_node,
        request.command,
        launcher_is_own=request.own.launcher == "own",
    )
    if request.own.launcher == "own":
        request = replace(request, profiler=checks.own_launcher(request.profiler, request.command))
    for scenario in request.scenarios:
        checks.size(scenario.nodes, request.processes_per_node, here=site is None)
    checks.program(request.command, request.project)
    if request.own.launcher == "aorta":
        checks.shell_script(request.command, request.project)
    checks.sbatch_lines(request.sbatch_lines)
    checks.writable(storage)
    checks.run_folders(request.results, [scenario.name for scenario in request.scenarios])
    plans = [_plan(scenario, request, limit_s) for scenario in request.scenarios]
    if site is not None:
        for name in ("account", "partition", "qos", "constraint"):
            checks.sbatch_value(name, getattr(request, name) or "")
        checks.sbatch_value("output", plans[0].output)
        checks.account(request.account, site)
        chosen = checks.partitions(request.partition, site)
        checks.shared(storage, chosen, site, assume_shared=request.assume_shared)
        for plan in plans:
            checks.fits(plan.scenario, plan.nodes, plan.gpus_per_node or 0, limit_s, chosen)
    return plans


def _plan(scenario: Scenario, request: LaunchRequest, limit_s: int) -> LaunchPlan:
    on_cpu = scenario.family == CPU_FAMILY
    return LaunchPlan(
        scenario=scenario.name,
        nodes=scenario.nodes,
        aorta=request.aorta,
        project=str(request.project),
        results=str(request.results),
        config=str(request.submission.config(scenario)),
        output=str(job_output(Path(str(request.results).replace("%", "%%")), scenario.name, "%j")),
        time_limit=request.time_limit,
        time_limit_s=limit_s,
        gpus_per_node=None if on_cpu else request.gpus_per_node or None,
        processes_per_node=request.processes_per_node,
        cpus_per_task=request.cpus_per_task,
        exclusive=request.exclusive,
        account=request.account,
        partition=request.partition,
        qos=request.qos,
        constraint=request.constraint,
        sbatch_lines=request.sbatch_lines,
        profiler=request.profiler,
        monitor_interval_s=request.monitor_interval_s,
        own=request.own,
        container=request.container,
        command=request.command,
        submitted_wall_ns=request.submitted_wall_ns,
    )


def agent_arguments(plan: LaunchPlan) -> list[list[str]]:
    """The node agent's arguments after `aorta run-node`, one option a group, without the user's program."""
    groups = [["--scenario", plan.scenario], ["--results", plan.results], ["--config", plan.config]]
    groups += [["--override", text] for text in plan.overrides]
    optional = {
        "--job-id": plan.job_id,
        "--profiler": plan.profiler,
        "--procs-per-node": plan.processes_per_node,
        "--monitor-interval": plan.monitor_interval_s,
        "--submitted-wall-ns": plan.submitted_wall_ns,
    }
    groups += [
        [name, value if isinstance(value, str) else str(value)]
        for name, value in optional.items()
        if value is not None
    ]
    return groups + (plan.own.arguments() if plan.command else [])
