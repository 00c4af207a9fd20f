"""Decisions of a node before its run starts, and the manifest that node 0 makes of them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from aorta.artefacts.records import Manifest, NodeInfo, ResolvedPlan
from aorta.config.schema import Config
from aorta.runner import session as rendezvous
from aorta.runner.contained import Inside
from aorta.runner.describe import code_version, program_commit
from aorta.runner.environment import without_secrets
from aorta.runner.options import NodeOptions
from aorta.runner.profiler import Wrapper


@dataclass(frozen=True, slots=True)
class Prepared:
    """Decisions of a node before the run starts."""

    config: Config
    info: NodeInfo
    command: list[str]
    """One rank's program without a profiler."""
    stem: str
    """Start of the names of the profiler's reports."""
    wrapper: Wrapper
    inside: Inside | None
    """The container of the ranks."""


def make_manifest(
    options: NodeOptions, environ: Mapping[str, str], nodes: list[NodeInfo], prepared: Prepared
) -> Manifest:
    """Returns what the run is: its job, what was asked for, and its nodes.

    Args:
        options: of node 0's agent.
        environ: of that agent.
        nodes: that reported.
        prepared: decisions of node 0.
    """
    start, end = environ.get("SLURM_JOB_START_TIME", ""), environ.get("SLURM_JOB_END_TIME", "")
    per_node = environ.get("SLURM_GPUS_ON_NODE", "")
    machines = [node.machine for node in nodes if node.machine is not None]
    return Manifest(
        run_id=f"{options.scenario.name}-{options.job_id}",
        job_id=options.job_id,
        executor=options.executor,
        attempt=options.attempt,
        scenario=options.scenario.name,
        started_wall_ns=time.time_ns(),
        submitted_wall_ns=options.submitted_wall_ns,
        code_version=code_version(),
        program_commit=program_commit(Path.cwd()) if options.command else None,
        world_size=sum(node.processes for node in nodes),
        plan=ResolvedPlan(
            scenario=options.scenario.name,
            nodes=options.nodes,
            processes_per_node=options.procs_per_node,
            gpus_per_node=int(per_node) if per_node.isdigit() else None,
            command=without_secrets(prepared.command),
            profiler=prepared.config.capture.profiler,
            monitor_interval_s=prepared.config.monitor.interval_s,
            time_limit_s=int(end) - int(start) if start.isdigit() and end.isdigit() else None,
            workload=None if options.command else prepared.config.workload,
            instrument=options.own.instrument if options.command else "none",
            container=None if prepared.inside is None else prepared.inside.record,
        ),
        nodes=nodes,
        nodes_missing=rendezvous.missing_nodes(nodes, options.nodes),
        shared_machine=options.executor == "local" or len(set(machines)) < len(machines),
    )
