"""Plans to sbatch scripts, through one template.

A script can be read, edited and submitted by hand. Values of `#SBATCH` lines are checked, everything that the
shell reads is quoted. `python -m aorta.launch.sbatch FOLDER` writes the committed scripts.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import jinja2

from aorta.artefacts.io import write_exact
from aorta.artefacts.layout import Scenario, job_output
from aorta.artefacts.names import RESULTS
from aorta.artefacts.submissions import SubmissionDir
from aorta.launch import checks, container
from aorta.launch.durations import DEFAULT_TIME, parse_limit
from aorta.launch.plan import CPU_FAMILY, CPU_OVERRIDES, LaunchPlan, agent_arguments

COMMITTED = ("1node", "2node", "4node", "cpu_2node")


class Shell(str):
    """Text that is shell already, such as the expansion of a variable, and is not quoted again."""

    __slots__ = ()


def render(plan: LaunchPlan, heading: Sequence[str] = ()) -> str:
    """The script of `plan`, with `heading` as comments for people.

    Raises:
        PlanError: a value cannot stand in a `#SBATCH` line.
    """
    return _template("profile.sbatch.j2").render(
        heading=heading,
        options=_options(plan),
        project=plan.project,
        nodes=plan.nodes,
        container=container.in_words(plan.container, plan.project, plan.results, plan.own.python),
        aorta=plan.aorta,
        arguments=[*agent_arguments(plan), ["--script", Shell('"$0"')]],
        command=plan.command,
    )


def render_aggregate(plans: Sequence[LaunchPlan], submission: SubmissionDir, docs: Path) -> str:
    """The script that analyses a submission, to be chained behind its jobs; it asks for one task and no GPU.

    Raises:
        PlanError: a value cannot stand in a `#SBATCH` line.
    """
    first = plans[0]
    options = _option_lines(
        {
            "job-name": "profile_aggregate",
            "nodes": 1,
            "ntasks": 1,
            "account": first.account,
            "partition": first.partition,
            "qos": first.qos,
            "time": DEFAULT_TIME,
            "output": job_output(Path(first.results.replace("%", "%%")), "aggregate", "%j"),
        }
    )
    command = [*first.aorta, "aggregate", first.results, "--docs", docs, "--submission", submission.root]
    return _template("aggregate.sbatch.j2").render(options=options, project=first.project, command=command)


def _options(plan: LaunchPlan) -> list[str]:
    lines = _option_lines(
        {
            "job-name": f"profile_{plan.scenario}",
            "array": plan.array,
            "nodes": plan.nodes,
            "ntasks-per-node": 1,
            "cpus-per-task": plan.cpus_per_task,
            "gpus-per-node": plan.gpus_per_node,
            "account": plan.account,
            "partition": plan.partition,
            "qos": plan.qos,
            "constraint": plan.constraint,
            "time": plan.time_limit,
            "output": plan.output,
            "open-mode": "append",
            "signal": f"TERM@{plan.signal_lead_s}",
        }
    )
    if plan.exclusive:
        lines.append("--exclusive")
    return lines + [line.removeprefix("#SBATCH").strip() for line in plan.sbatch_lines]


def _option_lines(values: dict[str, object]) -> list[str]:
    return [f"--{name}={_value(name, str(value))}" for name, value in values.items() if value is not None]


def _value(name: str, text: str) -> str:
    checks.sbatch_value(name, text)
    return f'"{text}"' if any(char in " #;&|*?()<>" for char in text) else text


def quote(value: object) -> str:
    """`value` as one word of shell; what is shell already stays."""
    return value if isinstance(value, Shell) else shlex.quote(str(value))


@cache
def _template(name: str) -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("aorta", "templates"),
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # noqa: S701  a shell script, quoted by the filter below; there is no HTML
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["sh"] = quote
    return environment.get_template(name)


def committed(name: str) -> tuple[LaunchPlan, list[str]]:
    """Plan and heading of a scenario's committed script: relative names, the site's choices left open."""
    scenario = Scenario(name)
    on_cpu = scenario.family == CPU_FAMILY
    where = Shell('"${AORTA_CONFIG:-config/default.yaml}"')
    limit_s = parse_limit(DEFAULT_TIME)
    assert limit_s is not None
    plan = LaunchPlan(
        scenario=name,
        nodes=scenario.nodes,
        aorta=(".venv/bin/aorta",),
        project=Shell('"${SLURM_SUBMIT_DIR}"'),
        results=str(RESULTS),
        config="config/dcrnn.yaml" if on_cpu else where,
        output=str(job_output(RESULTS, name, "%j")),
        time_limit=DEFAULT_TIME,
        time_limit_s=limit_s,
        overrides=CPU_OVERRIDES if on_cpu else (),
        processes_per_node=1 if on_cpu else None,
    )
    return plan, _HEADING_CPU if on_cpu else _HEADING


_COMMON = [
    "Rendered from aorta/templates/profile.sbatch.j2 by `make slurm-files`, as for `aorta submit`.",
    "Submit it from the project folder after `make setup`. The nodes must share results/profiling:",
]
_HEADING = [
    *_COMMON,
    "    source scripts/profiling_config.sh && sbatch slurm/profile_<N>node.sbatch",
    "That file exports SBATCH_ACCOUNT, SBATCH_PARTITION, SBATCH_GPUS_PER_NODE and AORTA_CONFIG, which sbatch",
    "and this script read. Without it: sbatch --account=A --partition=P --gpus-per-node=G slurm/...",
    "Each node runs one process per GPU, or one process over gloo without GPUs. Options on sbatch's command",
    "line win over the lines below (--time, --cpus-per-task, --qos); leave the number of nodes as it is.",
]
_HEADING_CPU = [
    *_COMMON,
    "    sbatch slurm/profile_cpu_2node.sbatch",
    "DCRNN on two nodes, with one process per node, over gloo on CPUs even if there are GPUs. With",
    "profiling_config.sh sourced, put `env -u SBATCH_GPUS_PER_NODE` before sbatch, so that no unused GPUs",
    "are reserved.",
]


def main() -> None:
    """Write the committed scripts into a folder."""
    parser = argparse.ArgumentParser(prog="python -m aorta.launch.sbatch", description=main.__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    for name in COMMITTED:
        write_exact(folder / f"profile_{name}.sbatch", render(*committed(name)))


if __name__ == "__main__":
    main()
