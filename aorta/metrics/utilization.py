"""Monitor samples inside the steady window, weighted by the time that each stands for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from aorta.artefacts.analysis import RankBreakdown, Utilization

Window = tuple[int, int]
"""[start, end) in wall-clock ns."""


@dataclass(frozen=True, slots=True)
class Series:
    """One sampled thing on one node: rows in time order."""

    wall_ns: NDArray[np.int64]
    rows: pd.DataFrame
    window: Window


def utilization(
    windows: Mapping[str, Window],
    gpu: pd.DataFrame | None,
    cpu: pd.DataFrame | None,
    effective_pct: float | None,
) -> Utilization:
    """Means (memory: peaks) over the samples of each host's steady window.

    Args:
        windows: the steady window of each host, on that host's wall clock.
        gpu: GPU_COLUMNS, NaN where not measured; None without a GPU file.
        cpu: CPU_COLUMNS, likewise.
        effective_pct: effective GPU utilisation by the step records; None where there is no GPU.

    A mean is taken per GPU (per node for the CPU) and then over them, each sample weighing the time to its
    neighbours. A column without any number in the window is None, never 0.
    """
    gpus = in_windows(gpu, ["hostname", "node_index", "gpu_uuid", "gpu_id"], windows)
    hosts = in_windows(cpu, ["hostname", "node_index"], windows)
    return Utilization(
        gpu_util_pct=mean_of(gpus, "utilization_gpu"),
        effective_gpu_util_pct=effective_pct,
        gpu_memory_used_pct=_peak_share(gpus, "memory_used_mb", "memory_total_mb"),
        gpu_power_w=mean_of(gpus, "power_draw_w"),
        cpu_pct=mean_of(hosts, "cpu_percent"),
        job_cpu_pct=mean_of(hosts, "job_cpu_percent"),
        host_memory_used_pct=_peak(hosts, "memory_percent"),
        samples=sum(len(item.rows) for item in (*gpus, *hosts)),
        job_memory_used_pct=_peak_share(hosts, "job_memory_used_bytes", "job_memory_limit_bytes"),
    )


def effective_gpu_utilization(rows: list[RankBreakdown]) -> float | None:
    """|U| / step in percent, summed over ranks: the share of rank time in which a compute kernel ran."""
    total = sum(row.step_ms for row in rows)
    return 100.0 * sum(row.compute_ms for row in rows) / total if total else None


def in_windows(table: pd.DataFrame | None, keys: list[str], windows: Mapping[str, Window]) -> list[Series]:
    """The samples of each thing that `keys` name, in its host's window; things without any are left out."""
    if table is None:
        return []
    found = []
    for _, rows in table.groupby(keys, sort=True, dropna=False):
        window = windows.get(str(rows["hostname"].iloc[0]))
        if window is None:
            continue
        wall = rows["wall_ns"].to_numpy(dtype=np.int64)
        inside = (wall >= window[0]) & (wall < window[1])
        if inside.any():
            found.append(Series(wall[inside], rows[inside], window))
    return found


def mean_of(series: list[Series], column: str) -> float | None:
    """Mean over series of each one's mean, samples weighing the time around them; None without a number."""
    means = []
    for item in series:
        values = item.rows[column].to_numpy(dtype=np.float64)
        known = ~np.isnan(values)
        if known.any():
            weights = _weights(item.wall_ns[known], item.window)
            means.append(float(np.average(values[known], weights=weights)))
    return float(np.mean(means)) if means else None


def _weights(wall_ns: NDArray[np.int64], window: Window) -> NDArray[np.float64]:
    """The time nearer to each sample than to another, within the window."""
    middles = (wall_ns[1:] - wall_ns[:-1]) / 2 + (wall_ns[:-1] - window[0])
    edges = np.concatenate(([0.0], middles, [float(window[1] - window[0])]))
    return np.asarray(np.maximum(np.diff(edges), 1.0), dtype=np.float64)


def _peak(series: list[Series], column: str) -> float | None:
    peaks = [float(item.rows[column].max()) for item in series if item.rows[column].notna().any()]
    return max(peaks, default=None)


def _peak_share(series: list[Series], used: str, total: str) -> float | None:
    """The largest used / total in percent, where both are known and the total is not 0."""
    shares = []
    for item in series:
        known = item.rows[[used, total]].dropna()
        known = known[known[total] > 0]
        if len(known):
            shares.append(float((100.0 * known[used] / known[total]).max()))
    return max(shares, default=None)
