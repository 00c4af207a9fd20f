"""`aorta run-node`: the node agent, started once per node by the scheduler."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal, cast

import click


@click.command("run-node")
@click.option("--scenario", required=True, help="Name of the scenario: 2node, cpu_2node.")
@click.option("--results", required=True, type=click.Path(path_type=Path), help="Folder of all runs.")
@click.option(
    "--config", type=click.Path(path_type=Path), help="Configuration file [default: the default values]."
)
@click.option("--override", multiple=True, help="key.sub=value; may be repeated.")
@click.option("--profiler", help="auto, none, nsys or rocprofv3 [default: capture.profiler].")
@click.option(
    "--procs-per-node", type=click.IntRange(min=1), help="Ranks per node [default: one per GPU, or one]."
)
@click.option("--monitor-interval", type=float, help="Seconds between samples [default: monitor.interval_s].")
@click.option(
    "--instrument",
    type=click.Choice(["auto", "none"]),
    default="auto",
    help="auto: hooks record the steps of COMMAND; none: no hooks.",
)
@click.option("--python", help="Python interpreter for COMMAND [default: the agent's].")
@click.option(
    "--launcher", type=click.Choice(["aorta", "own"]), default="aorta", help="What starts the ranks."
)
@click.option("--steps", type=click.IntRange(min=1), help="End COMMAND after this many optimizer steps.")
@click.option("--executor", type=click.Choice(["slurm", "local"]), help="[default: slurm inside a Slurm job]")
@click.option("--job-id", help="[default: SLURM_JOB_ID]")
@click.option("--node-index", type=click.IntRange(min=0), help="[default: SLURM_NODEID]")
@click.option("--nodes", type=click.IntRange(min=1), help="[default: SLURM_STEP_NUM_NODES]")
@click.option("--submitted-wall-ns", type=int, help="When the job was submitted, in ns since 1970.")
@click.option("--script", type=click.Path(path_type=Path), help="Submitted script, kept as job.sbatch.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def command(
    *,
    scenario: str,
    results: Path,
    executor: str | None,
    job_id: str | None,
    node_index: int | None,
    nodes: int | None,
    **rest: Any,
) -> int:
    """Run this node's ranks, monitors and profiler. COMMAND (after --) is a program that runs instead of the
    trainer.
    """
    from aorta.artefacts.layout import Scenario
    from aorta.artefacts.own_program import OwnProgram
    from aorta.runner.node import run_node
    from aorta.runner.options import NodeOptions, find_place

    place = find_place(
        os.environ,
        executor=cast("Literal['slurm', 'local'] | None", executor),
        job_id=job_id,
        node_index=node_index,
        nodes=nodes,
    )
    options = NodeOptions(
        scenario=Scenario(scenario),
        results=results,
        config=rest["config"],
        overrides=tuple(rest["override"]),
        profiler=rest["profiler"],
        procs_per_node=rest["procs_per_node"],
        monitor_interval_s=rest["monitor_interval"],
        own=OwnProgram(**{name: rest[name] for name in ("instrument", "python", "launcher", "steps")}),
        executor=place.executor,
        job_id=place.job_id,
        node_index=place.node_index,
        nodes=place.nodes,
        attempt=place.attempt,
        slurm_node=place.slurm_node,
        submitted_wall_ns=rest["submitted_wall_ns"],
        script=rest["script"],
        command=tuple(rest["command"]),
    )
    return run_node(options, os.environ)
