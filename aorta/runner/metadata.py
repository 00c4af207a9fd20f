"""`job_metadata.txt`: the manifest for people."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from datetime import datetime, timezone

from aorta.artefacts.records import Manifest, NodeInfo
from aorta.units import BYTES_PER_GIB, NS_PER_S

_SLURM = (
    ("account", "SLURM_JOB_ACCOUNT"),
    ("partition", "SLURM_JOB_PARTITION"),
    ("qos", "SLURM_JOB_QOS"),
    ("cluster", "SLURM_CLUSTER_NAME"),
    ("node list", "SLURM_JOB_NODELIST"),
)


def job_metadata(manifest: Manifest, environ: Mapping[str, str]) -> str:
    """Readable lines: the job, what it ran, and each node; what is not known is left out."""
    plan = manifest.plan
    rows = [
        ("job", f"{manifest.job_id} ({manifest.executor}), attempt {manifest.attempt}"),
        ("scenario", f"{manifest.scenario}: nodes {plan.nodes}, ranks {manifest.world_size}"),
        ("submitted", _time(manifest.submitted_wall_ns)),
        ("started", _time(manifest.started_wall_ns)),
        ("time limit", f"{plan.time_limit_s} s" if plan.time_limit_s is not None else ""),
        *((label, environ.get(name, "")) for label, name in _SLURM),
        ("command", shlex.join(plan.command)),
        ("container", "" if plan.container is None else str(plan.container)),
        ("profiler", _profiler(manifest.nodes)),
        ("monitors", f"every {plan.monitor_interval_s:g} s"),
        ("aorta", manifest.code_version),
        ("missing", ", ".join(f"node {index}" for index in manifest.nodes_missing)),
        ("note", "nodes share one machine" if manifest.shared_machine else ""),
    ]
    lines = [f"{label + ':':<12} {value}" for label, value in rows if value]
    for node in manifest.nodes:
        lines += ["", *_node(node)]
    return "\n".join(lines) + "\n"


def _time(wall_ns: int | None) -> str:
    if wall_ns is None:
        return ""
    moment = datetime.fromtimestamp(wall_ns / NS_PER_S, tz=timezone.utc).astimezone()
    return moment.isoformat(timespec="seconds")


def _profiler(nodes: list[NodeInfo]) -> str:
    if not nodes:
        return ""
    choice = nodes[0].profiler
    version = f" {choice.version}" if choice.version else ""
    return f"{choice.resolved}{version} (asked for: {choice.requested}; {choice.reason})"


def _node(node: NodeInfo) -> list[str]:
    name = f" ({node.slurm_node})" if node.slurm_node and node.slurm_node != node.host else ""
    limit = node.memory_limit_bytes
    memory = f", memory limit {limit / BYTES_PER_GIB:.1f} GiB" if limit is not None else ""
    lines = [
        f"node {node.node_index}: {node.host}{name}",
        f"  ranks {node.processes}, usable CPUs {node.cpus_usable}{memory}",
    ]
    lines += [f"  GPU {gpu.index}: {gpu.name} {gpu.uuid}" for gpu in node.gpus]
    lines.append("  " + ", ".join(f"{name} {version}" for name, version in node.packages.items()))
    return lines
