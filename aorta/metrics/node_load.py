"""Monitored load of nodes and GPUs in the steady window: other load, reading, swapping, throttling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from aorta.metrics.utilization import SampleSeries, mean_of
from aorta.units import NS_PER_MS, NS_PER_S

THERMAL = 0x20 | 0x40
"""Bits of NVML's clock event reasons: slowed down by software or hardware for heat."""
POWER = 0x04 | 0x08 | 0x80
"""Software power cap, hardware slowdown, power brake."""

OTHERS_CPUS = 0.5
"""Other programs are named if they use at least this many CPUs."""
FULL_PCT = 85.0
"""A process may wait for a CPU if the node's CPUs are busy for at least this percentage of the time."""
MIN_BUSY_SAMPLES = 5
"""Fewest samples for a mean. One sample from outside the window then shifts it by at most a fifth."""


class NodeLoad(Struct, frozen=True):
    """One node in its steady window; None where not measured."""

    cpu_pct: float | None
    """Percent of all CPUs of the machine, 0 to 100."""
    job_cpu_pct: float | None
    """Percent of one CPU: each busy CPU adds 100."""
    cpus_usable: float | None
    read_mb_per_s: float | None
    """Reads from the machine's disks."""
    swap_in_mb_per_s: float | None = None
    """Pages of any program that came back from swap: a process waited for each."""
    swap_out_mb_per_s: float | None = None
    swap_used_bytes: float | None = None
    """Swap in use on the machine, at the most."""
    job_swap_bytes: float | None = None
    """Swap in use by the job's cgroup, at the most."""
    limit_hits: float | None = None
    """Number of times that the job's own limit made the kernel take pages back."""
    stall_share: float | None = None
    """Share of the time, 0 to 1, in which some process waited for memory."""


class Throttling(Struct, frozen=True):
    """One GPU in its node's steady window: shares of the samples, 0 to 1."""

    thermal: float
    power: float
    samples: int
    clock_mhz: float | None = None
    """Mean clock of its multiprocessors; None where not sampled."""


def others_cpus(load: NodeLoad, cpus_machine: int | None) -> float | None:
    """Returns how many CPUs of a node programs other than the job used; None where that was not measured."""
    if load.cpu_pct is None or load.job_cpu_pct is None or not cpus_machine:
        return None
    return max(load.cpu_pct * cpus_machine - load.job_cpu_pct, 0.0) / 100.0


def crowded(loads: Mapping[str, NodeLoad], cpus_machine: Mapping[str, int]) -> dict[str, float]:
    """Returns the CPUs that others used on each node where hardly one was free, so that the job waited."""
    found = {}
    for host, load in loads.items():
        used = others_cpus(load, cpus_machine.get(host))
        if used is not None and used >= OTHERS_CPUS and (load.cpu_pct or 0.0) >= FULL_PCT:
            found[host] = used
    return found


def crowded_note(loads: Mapping[str, NodeLoad], cpus_machine: Mapping[str, int]) -> tuple[float, str] | None:
    """Returns how many CPUs others used on the fullest crowded node, and what to say of it. None means no
    such.
    """
    full = crowded(loads, cpus_machine)
    if not full:
        return None
    host = max(full, key=full.__getitem__)
    return full[host], (
        f"other programs used {full[host]:.1f} of {cpus_machine[host]} CPUs on {host}, and hardly any CPU "
        "was free: times include waiting for a core, and intervals cover only this run"
    )


def node_loads(hosts: Sequence[SampleSeries]) -> dict[str, NodeLoad]:
    """Load of each host, from the samples inside its window.

    Nodes that are processes of one host have one load: the job's CPUs are those of all of them.
    """
    found: dict[str, NodeLoad] = {}
    for item in hosts:
        before = found.get(item.host)
        stalled = _rate(item, "memory_stall_ms")
        found[item.host] = NodeLoad(
            cpu_pct=mean_of([item], "cpu_percent"),
            job_cpu_pct=_both(before, mean_of([item], "job_cpu_percent")),
            cpus_usable=mean_of([item], "cpus_usable"),
            read_mb_per_s=_mb(_rate(item, "disk_read_bytes")),
            swap_in_mb_per_s=_mb(_rate(item, "swap_in_bytes")),
            swap_out_mb_per_s=_mb(_rate(item, "swap_out_bytes")),
            swap_used_bytes=_most(item, "swap_used_bytes"),
            job_swap_bytes=_most(item, "job_swap_used_bytes"),
            limit_hits=_growth(item, "job_memory_limit_hits"),
            stall_share=min(stalled * NS_PER_MS / NS_PER_S, 1.0) if stalled is not None else None,
        )
    return found


def on_one_machine(loads: Mapping[str, NodeLoad]) -> dict[str, NodeLoad]:
    """Returns the loads of nodes that are one machine: what each node's processes use belongs to the job."""
    used = [load.job_cpu_pct for load in loads.values()]
    known = [value for value in used if value is not None]
    together = sum(known) if len(known) == len(used) else None
    return {host: replace(load, job_cpu_pct=together) for host, load in loads.items()}


def _both(before: NodeLoad | None, used: float | None) -> float | None:
    if before is None or used is None:
        return used
    return before.job_cpu_pct + used if before.job_cpu_pct is not None else None


def throttling(gpus: Sequence[SampleSeries]) -> dict[str, Throttling]:
    """Throttling by UUID of the GPU; GPUs without a UUID or reasons are left out."""
    found = {}
    for item in gpus:
        uuid = item.first_text("gpu_uuid")
        reasons = _known(item, "clock_event_reasons").astype(np.int64)
        if isinstance(uuid, str) and uuid and len(reasons):
            found[uuid] = Throttling(
                thermal=float(((reasons & THERMAL) != 0).mean()),
                power=float(((reasons & POWER) != 0).mean()),
                samples=len(reasons),
                clock_mhz=mean_of([item], "sm_clock_mhz"),
            )
    return found


def driver_busy(gpus: Sequence[SampleSeries]) -> dict[str, float]:
    """Busy share by UUID of the GPU: the driver's counter, % of the window in which any kernel ran. GPUs with
    fewer than `MIN_BUSY_SAMPLES` samples are not in it.
    """
    found = {}
    for item in gpus:
        uuid, mean = item.first_text("gpu_uuid"), mean_of([item], "utilization_gpu")
        samples = len(_known(item, "utilization_gpu"))
        if isinstance(uuid, str) and uuid and mean is not None and samples >= MIN_BUSY_SAMPLES:
            found[uuid] = mean
    return found


def _known(item: SampleSeries, column: str) -> NDArray[np.float64]:
    values = item.numbers(column)
    return np.asarray(values[~np.isnan(values)], dtype=np.float64)


def _most(item: SampleSeries, column: str) -> float | None:
    values = _known(item, column)
    return float(values.max()) if len(values) else None


def _growth(item: SampleSeries, column: str) -> float | None:
    """Growth of a counter, from the first sample to the last."""
    values = _known(item, column)
    return float(values[-1] - values[0]) if len(values) > 1 else None


def _rate(item: SampleSeries, column: str) -> float | None:
    """Growth of a counter a second."""
    grown = _growth(item, column)
    if grown is None:
        return None
    times = item.wall_ns[~np.isnan(item.numbers(column))]
    took_ns = int(times[-1] - times[0])
    return grown / (took_ns / NS_PER_S) if took_ns > 0 else None


def _mb(rate: float | None) -> float | None:
    return rate / 1e6 if rate is not None else None
