"""The tables of a synthetic run: monitor samples and epochs."""

from __future__ import annotations

import csv
import datetime as dt
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from aorta.artefacts.columns import CPU_COLUMNS, GPU_COLUMNS
from aorta.artefacts.io import write_json
from aorta.artefacts.layout import RunDir
from aorta.artefacts.records import METRICS_COLUMNS, MonitorStatus
from aorta.units import NS_PER_MS, NS_PER_S
from tests.support.run_spec import START_MONO_NS, START_WALL_NS, RunSpec


def write_monitors(run: RunDir, spec: RunSpec, node: int, last_ns: int) -> None:
    """Samples of one node, from before its first step to after its last one, which ends at `last_ns`."""
    interval = round(spec.monitor_interval_s * NS_PER_S)
    first_step = round(spec.startup_s * NS_PER_S)
    last = first_step + last_ns + round(spec.tail_s * NS_PER_S)
    folder = run.node(node)
    cuda = spec.device == "cuda"
    times = np.arange(0, last, interval)
    cpu_rows, gpu_rows = [], []
    for since in (int(value) for value in times):
        era = 0 if since < first_step else 1 if since < first_step + last_ns else 2
        common = _sample_time(spec, node, since)
        cpu_rows.append(_cpu_row(spec, era, common))
        if cuda:
            gpu_rows += [_gpu_row(spec, node, gpu, era, common) for gpu in range(spec.ranks_per_node)]
    _write_csv(folder.cpu_csv, CPU_COLUMNS, cpu_rows)
    if cuda:
        _write_csv(folder.gpu_csv, GPU_COLUMNS, gpu_rows)
    status = MonitorStatus(
        interval_s=spec.monitor_interval_s,
        samples=len(times),
        missed=0,
        max_late_ms=0.4,
        gpu_source="nvml" if cuda else None,
        gpu_reason=None if cuda else "no GPU found",
        stopped_by="signal",
    )
    write_json(folder.monitor_status, status)


def _sample_time(spec: RunSpec, node: int, since: int) -> dict[str, Any]:
    offset = spec.clock_offset_ns.get(node, 0)
    wall = START_WALL_NS + offset + since
    stamp = dt.datetime.fromtimestamp(wall / NS_PER_S, tz=dt.timezone.utc).isoformat(timespec="milliseconds")
    return {
        "timestamp": stamp,
        "hostname": spec.host(node),
        "node_index": node,
        "wall_ns": wall,
        "mono_ns": START_MONO_NS + offset + since,
    }


def _cpu_row(spec: RunSpec, era: int, common: dict[str, Any]) -> dict[str, Any]:
    return {
        **common,
        "cpu_percent": (20.0, 80.0, 5.0)[era],
        "memory_percent": 40.0,
        "memory_used_gb": 9.6,
        "memory_total_gb": 24.0,
        "job_cpu_percent": (30.0, 150.0, 8.0)[era],
        "job_memory_used_bytes": spec.job_memory_used_bytes,
        "job_memory_limit_bytes": spec.job_memory_limit_bytes,
        "cpus_usable": 2,
        "swap_used_bytes": 0,
        **_swap_cells(spec, common["node_index"], common["mono_ns"] - START_MONO_NS),
    }


def _swap_cells(spec: RunSpec, node: int, since: int) -> dict[str, Any]:
    cells: dict[str, Any] = {"job_swap_used_bytes": spec.job_swap_used_bytes}
    if spec.swap_mb_per_s is not None:
        rates = spec.swap_mb_per_s.get(node, (0.0, 0.0))
        cells["swap_in_bytes"], cells["swap_out_bytes"] = (round(rate * since / 1000) for rate in rates)
    if spec.memory_stall_share is not None:
        cells["memory_stall_ms"] = spec.memory_stall_share.get(node, 0.0) * since / NS_PER_MS
    return cells


def _gpu_row(spec: RunSpec, node: int, gpu: int, era: int, common: dict[str, Any]) -> dict[str, Any]:
    return {
        **common,
        "gpu_id": gpu,
        "utilization_gpu": None if spec.gpu_util_pct is None else (0.0, spec.gpu_util_pct, 0.0)[era],
        "utilization_memory": 30.0,
        "memory_used_mb": spec.gpu_memory_used_mb,
        "memory_total_mb": spec.gpu_memory_total_mb,
        "temperature": 60.0,
        "power_draw_w": None if spec.gpu_power_w is None else spec.gpu_power_w[era],
        "gpu_uuid": f"GPU-{node}-{gpu}",
        "gpu_name": "Test GPU",
    }


def _write_csv(path: Path, columns: Sequence[str], rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: "" if value is None else value for key, value in row.items()} for row in rows)


def write_metrics_csv(run: RunDir, spec: RunSpec, last_ns: int) -> None:
    """The one epoch of a run."""
    samples = spec.steps * spec.batch_size * spec.ranks
    row = {
        "epoch": 0,
        "train_loss": 0.68,
        "epoch_time_sec": last_ns / NS_PER_S,
        "throughput_samples_per_sec": samples / (last_ns / NS_PER_S),
        "steps": spec.steps,
        "samples": samples,
    }
    _write_csv(run.metrics_csv, METRICS_COLUMNS, [row])
