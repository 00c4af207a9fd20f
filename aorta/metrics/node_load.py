"""What monitors say of nodes and GPUs in the steady window: other load, reading, swapping, throttling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from aorta.metrics.utilization import Series, Window, in_windows, mean_of
from aorta.units import NS_PER_S

THERMAL = 0x20 | 0x40
"""Bits of NVML's clock event reasons: slowed down by software or hardware for heat."""
POWER = 0x04 | 0x08 | 0x80
"""Software power cap, hardware slowdown, power brake."""

MIN_BUSY_SAMPLES = 5
"""One that looks back behind the window then moves the mean by a fifth at most, less than any threshold."""


@dataclass(frozen=True, slots=True)
class NodeLoad:
    """One node in its steady window; None where not measured."""

    cpu_pct: float | None
    """Of all CPUs of the machine, 0 to 100."""
    job_cpu_pct: float | None
    """Of one CPU: 100 a busy CPU."""
    cpus_usable: float | None
    read_mb_per_s: float | None
    """From the machine's disks."""
    swap_growth_bytes: float | None
    """From the first sample to the last."""
    swap_used_bytes: float | None
    """At the most."""


@dataclass(frozen=True, slots=True)
class Throttling:
    """One GPU in its node's steady window: shares of the samples, 0 to 1."""

    thermal: float
    power: float
    samples: int


def node_loads(cpu: pd.DataFrame | None, windows: Mapping[str, Window]) -> dict[str, NodeLoad]:
    """By host: samples of CPU_COLUMNS inside each host's window."""
    found = {}
    for item in in_windows(cpu, ["hostname", "node_index"], windows):
        swap = _known(item, "swap_used_bytes")
        found[item.host] = NodeLoad(
            cpu_pct=mean_of([item], "cpu_percent"),
            job_cpu_pct=mean_of([item], "job_cpu_percent"),
            cpus_usable=mean_of([item], "cpus_usable"),
            read_mb_per_s=_rate(item, "disk_read_bytes"),
            swap_growth_bytes=float(swap[-1] - swap[0]) if len(swap) > 1 else None,
            swap_used_bytes=float(swap.max()) if len(swap) else None,
        )
    return found


def throttling(gpu: pd.DataFrame | None, windows: Mapping[str, Window]) -> dict[str, Throttling]:
    """By UUID of the GPU; without a UUID or reasons a GPU is not in it."""
    found = {}
    for item in in_windows(gpu, ["hostname", "node_index", "gpu_uuid", "gpu_id"], windows):
        uuid = item.first_text("gpu_uuid")
        reasons = _known(item, "clock_event_reasons").astype(np.int64)
        if isinstance(uuid, str) and uuid and len(reasons):
            found[uuid] = Throttling(
                thermal=float(((reasons & THERMAL) != 0).mean()),
                power=float(((reasons & POWER) != 0).mean()),
                samples=len(reasons),
            )
    return found


def driver_busy(gpu: pd.DataFrame | None, windows: Mapping[str, Window]) -> dict[str, float]:
    """By UUID of the GPU: the driver's counter, % of its window in which any kernel ran; GPUs with fewer than
    `MIN_BUSY_SAMPLES` samples are not in it.
    """
    found = {}
    for item in in_windows(gpu, ["hostname", "node_index", "gpu_uuid", "gpu_id"], windows):
        uuid, mean = item.first_text("gpu_uuid"), mean_of([item], "utilization_gpu")
        samples = len(_known(item, "utilization_gpu"))
        if isinstance(uuid, str) and uuid and mean is not None and samples >= MIN_BUSY_SAMPLES:
            found[uuid] = mean
    return found


def _known(item: Series, column: str) -> NDArray[np.float64]:
    values = item.numbers(column)
    return np.asarray(values[~np.isnan(values)], dtype=np.float64)


def _rate(item: Series, column: str) -> float | None:
    """MB a second of a counter since boot."""
    values = item.numbers(column)
    known = ~np.isnan(values)
    if known.sum() < 2:
        return None
    values, times = values[known], item.wall_ns[known]
    return float((values[-1] - values[0]) / 1e6 / ((times[-1] - times[0]) / NS_PER_S))
