"""Requested against used, by the accounting and the monitors, and what to ask for next time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aorta.artefacts.records import Manifest
from aorta.artefacts.resources import ResourceTable, ResourceUse
from aorta.readers.run import RunData
from aorta.readers.sacct import cpu_seconds, elapsed_seconds, requested_bytes
from aorta.units import BYTES_PER_GIB, NS_PER_S

if TYPE_CHECKING:
    import pandas as pd

MARGIN = 1.2
"""Reserve on top of what one run used, because the next run may need more."""
MEAN = "accounting, mean over the whole job"
"""A mean hides how many CPUs were needed at once: no option follows from it."""
_TIME_STEP_S = 300
_WORTH = 0.8
"""Share of the request below which a line is written."""
_PART_OF_ONE = 100.0


@dataclass(frozen=True, slots=True)
class _Asked:
    """Says what accounting and manifest say of one job."""

    manifest: Manifest
    row: dict[str, str]
    """The job's row of sacct. Empty if there is none."""
    steps: tuple[dict[str, str], ...]
    state: str | None


def resources(data: RunData) -> ResourceTable | None:
    """Returns what a Slurm job asked for and used; None for a run outside Slurm, or without a manifest."""
    manifest = data.account.manifest
    if manifest is None or manifest.executor != "slurm":
        return None
    attempt = data.accounting.attempts[-1] if data.accounting.attempts else ()
    asked = _Asked(manifest, attempt[0] if attempt else {}, tuple(attempt[1:]), data.accounting.state)
    rows = [_time(asked, data), _memory(asked, data), _cpus(asked, data.cpu), _gpus(asked, data.gpu)]
    found = [row for row in rows if row is not None]
    ended = asked.state == "completed"
    lines = [line for row in found if (line := _line(row, asked)) is not None] if ended else []
    notes = [] if ended else ["the job did not end by itself, so its use says nothing about the next job"]
    return ResourceTable(rows=found, sbatch=lines, notes=notes) if found else None


def _row(what: str, requested: float | None, used: float | None, unit: str, source: str) -> ResourceUse:
    share = None if not requested or used is None else 100.0 * used / requested
    return ResourceUse(
        what=what,  # type: ignore[arg-type]
        requested=requested,
        used=used,
        unit=unit,  # type: ignore[arg-type]
        used_pct=share,
        source=source,
    )


def _time(asked: _Asked, data: RunData) -> ResourceUse:
    used, source = elapsed_seconds(asked.row.get("Elapsed", "")), "accounting"
    if used is None and data.account.status is not None:
        ends = [node.ended_wall_ns for node in data.account.status.nodes]
        starts = [node.started_wall_ns for node in data.account.status.nodes]
        if starts and all(end is not None for end in ends):
            source = "the nodes' markers"
            used = (max(end for end in ends if end is not None) - min(starts)) / NS_PER_S
    limit = elapsed_seconds(asked.row.get("Timelimit", "")) or asked.manifest.plan.time_limit_s
    return _row("time", limit, used, "s", source if used is not None else "nobody")


def _memory(asked: _Asked, data: RunData) -> ResourceUse:
    requested = requested_bytes(asked.row)
    peak = _peak_of_nodes(data.cpu, "job_memory_used_bytes", asked.manifest)
    if peak is not None:
        return _row("memory", requested, peak, "bytes", "monitors, highest sample of all nodes together")
    estimate = data.accounting.memory
    if estimate is not None:
        words = "accounting, upper estimate: the largest task times the tasks"
        return _row("memory", requested, float(estimate.used_bytes), "bytes", words)
    return _row("memory", requested, None, "bytes", "nobody")


def _cpus(asked: _Asked, cpu: pd.DataFrame | None) -> ResourceUse:
    count = asked.row.get("AllocCPUS", "")
    requested = float(count) if count.isdigit() and int(count) else None
    peak = _peak_of_nodes(cpu, "job_cpu_percent", asked.manifest)
    if peak is not None:
        return _row("cpus", requested, peak / _PART_OF_ONE, "CPUs", "monitors, highest sample of all nodes")
    elapsed, busy = elapsed_seconds(asked.row.get("Elapsed", "")), cpu_seconds(asked.row.get("TotalCPU", ""))
    if elapsed and busy is not None:
        return _row("cpus", requested, busy / elapsed, "CPUs", MEAN)
    return _row("cpus", requested, None, "CPUs", "nobody")


def _gpus(asked: _Asked, gpu: pd.DataFrame | None) -> ResourceUse | None:
    per_node = asked.manifest.plan.gpus_per_node
    if not per_node:
        return None
    requested = float(per_node * asked.manifest.plan.nodes)
    if gpu is None or gpu["utilization_gpu"].isna().all():
        return _row("gpus", requested, None, "GPUs", "nobody")
    peaks = gpu.groupby(["node_index", "gpu_id"], observed=True)["utilization_gpu"].max()
    return _row("gpus", requested, float((peaks > 0).sum()), "GPUs", "monitors: GPUs that ran a kernel")


def _peak_of_nodes(cpu: pd.DataFrame | None, column: str, manifest: Manifest) -> float | None:
    """The sum over the nodes of each one's highest sample; None where a node has none of the job alone."""
    if cpu is None or not _is_of_job(manifest):
        return None
    peaks = cpu.groupby("node_index")[column].max().dropna()
    return float(peaks.sum()) if len(peaks) == manifest.plan.nodes else None


def _is_of_job(manifest: Manifest) -> bool:
    """True if what was sampled of each node's cgroup is the job's, and nothing else's."""
    return bool(manifest.nodes) and all(node.memory_of_job for node in manifest.nodes)


def _line(row: ResourceUse, asked: _Asked) -> str | None:
    """The option that asks for less; None where that is not worth it, or not known."""
    if row.requested is None or row.used is None or row.source == MEAN:
        return None
    nodes, wanted = asked.manifest.plan.nodes, row.used * MARGIN
    if row.what == "time":
        wanted = max(1, math.ceil(wanted / _TIME_STEP_S)) * _TIME_STEP_S
        text = f"--time={wanted // 3600:02d}:{wanted % 3600 // 60:02d}:00"
    elif row.what == "memory":
        each = max(1, math.ceil(wanted / nodes / BYTES_PER_GIB))
        wanted, text = each * nodes * BYTES_PER_GIB, f"--mem={each}G"
    elif row.what == "cpus":
        ranks = max((node.processes for node in asked.manifest.nodes), default=1)
        each = max(ranks, math.ceil(wanted / nodes))
        wanted, text = each * nodes, f"--cpus-per-task={each}"
    else:
        each = max(1, math.ceil(row.used / nodes))
        wanted, text = each * nodes, f"--gpus-per-node={each}"
    return text if wanted <= _WORTH * row.requested else None
