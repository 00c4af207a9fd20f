"""Data that is drawn over time, taken from the run: step times, and monitor samples by node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from aorta.artefacts.page import StepTimeSeries, Strip, UtilizationCurve, UtilizationOverTime
from aorta.artefacts.step_columns import StepColumns
from aorta.readers.run import RunData
from aorta.units import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    import pandas as pd


MAX_NODES = 4
"""Maximum number of nodes with a strip of their own; more are shown as one band."""
MAX_POINTS = 240
"""Most points of a curve; step times may have twice as many. A panel resolves no more."""

What = Literal["gpu", "job_cpu", "cpu"]
_Samples = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Seconds and percent, by time, at least one."""
_ORDER: tuple[What, ...] = ("gpu", "job_cpu", "cpu")


def step_times(by_rank: Mapping[int, StepColumns]) -> StepTimeSeries | None:
    """Each step by its slowest rank, steady where it is on every rank; None without records."""
    each = [steps for steps in by_rank.values() if len(steps)]
    if not each:
        return None
    number = np.concatenate([steps.column("global_step") for steps in each])
    numbers, place = np.unique(number, return_inverse=True)
    place = place.reshape(-1)
    slowest = np.zeros(len(numbers), dtype=np.int64)
    np.maximum.at(slowest, place, np.concatenate([steps.duration_ns for steps in each]))
    steady, detailed = (np.ones(len(numbers), dtype=np.bool_) for _ in range(2))
    steady[place[~np.concatenate([steps.phase_is("steady") for steps in each])]] = False
    detailed[place[~np.concatenate([steps.detailed for steps in each])]] = False
    return StepTimeSeries(
        global_step=numbers.tolist(),
        ms=[duration / NS_PER_MS for duration in slowest.tolist()],
        steady=steady.tolist(),
        steps_a_point=1,
        whole=[] if detailed.all() else (~detailed).tolist(),
    )


def thinned(times: StepTimeSeries, limit: int = 2 * MAX_POINTS) -> StepTimeSeries:
    """At most `limit` points, each the longest of as many neighbouring steps as that takes."""
    each = -(-len(times.ms) // limit)
    if each == 1:
        return times
    kept = [
        max(range(first, min(first + each, len(times.ms))), key=lambda place: times.ms[place])
        for first in range(0, len(times.ms), each)
    ]
    return StepTimeSeries(
        global_step=[times.global_step[place] for place in kept],
        ms=[times.ms[place] for place in kept],
        steady=[times.steady[place] for place in kept],
        whole=[times.whole[place] for place in kept] if times.whole else [],
        steps_a_point=each,
    )


def utilization_over_time(data: RunData) -> UtilizationOverTime:
    """The samples of each node, or of many nodes as a band; second 0 is the run's first sample or step."""
    start_ns = _start_ns(data)
    nodes = [
        (name, samples) for name, found in _nodes(data, start_ns) if (samples := _known(found)) is not None
    ]
    if not nodes:
        return UtilizationOverTime(
            strips=[], window_s=_window(data, start_ns), absent="not measured: no monitor samples"
        )
    if len(nodes) <= MAX_NODES:
        strips = [
            Strip(
                name=name, nodes=1, curves=[_curve(what, samples[what]) for what in _ORDER if what in samples]
            )
            for name, samples in nodes
        ]
    else:
        every = [samples for _, samples in nodes]
        bands = [_band(what, found) for what in _ORDER if (found := [s[what] for s in every if what in s])]
        strips = [Strip(name=f"median and range of {len(nodes):,} nodes", nodes=len(nodes), curves=bands)]
    gpus = any(info.gpus for info in data.account.infos.values())
    absent = _absent([samples for _, samples in nodes], gpus=gpus)
    return UtilizationOverTime(strips=strips, window_s=_window(data, start_ns), absent=absent)


def _known(found: dict[What, _Samples | None]) -> dict[What, _Samples] | None:
    return {what: samples for what, samples in found.items() if samples is not None} or None


def _absent(nodes: Sequence[Mapping[What, _Samples]], *, gpus: bool) -> str:
    """The kinds of samples that no node has, with the reasons."""
    absent = []
    if not any("gpu" in samples for samples in nodes):
        absent.append(f"GPU ({'not sampled' if gpus else 'none in the job'})")
    if not any("job_cpu" in samples for samples in nodes):
        absent.append("CPU of the job (no cgroup of its own)")
    if not any("cpu" in samples for samples in nodes):
        absent.append("CPU of the node (not sampled)")
    return f"not measured: {', '.join(absent)}" if absent else ""


def _curve(what: What, samples: _Samples) -> UtilizationCurve:
    seconds, values = samples
    if len(seconds) > MAX_POINTS:
        # Means of neighbours: a load that comes and goes within a pixel shows as the part of the time.
        pieces = np.array_split(np.arange(len(seconds)), MAX_POINTS)
        seconds = np.array([seconds[piece].mean() for piece in pieces])
        values = np.array([values[piece].mean() for piece in pieces])
    return UtilizationCurve(what=what, seconds=_rounded(seconds), middle=_rounded(values))


def _band(what: What, found: Sequence[_Samples]) -> UtilizationCurve:
    """Lowest, median and highest over nodes at `MAX_POINTS` moments; between samples, straight lines."""
    moments = np.linspace(
        min(seconds[0] for seconds, _ in found), max(seconds[-1] for seconds, _ in found), MAX_POINTS
    )
    table = np.array([np.interp(moments, *samples, left=np.nan, right=np.nan) for samples in found])
    kept = ~np.isnan(table).all(axis=0)
    low, middle, high = np.nanquantile(table[:, kept], [0.0, 0.5, 1.0], axis=0)
    return UtilizationCurve(
        what=what,
        seconds=_rounded(moments[kept]),
        middle=_rounded(middle),
        low=_rounded(low),
        high=_rounded(high),
    )


def _rounded(values: NDArray[np.float64]) -> list[float]:
    """Three decimals: ms of seconds, and no more digits of a percentage than a sampler has."""
    return [float(value) for value in values.round(3)]


def _start_ns(data: RunData) -> int:
    starts = [int(steps.column("wall_start_ns")[0]) for steps in data.records.by_rank.values()]
    starts += [int(table["wall_ns"].min()) for table in (data.cpu, data.gpu) if table is not None]
    return min(starts, default=0)


def _window(data: RunData, start_ns: int) -> tuple[float, float] | None:
    first = last = None
    for steps in data.records.by_rank.values():
        kept = steps.where(steps.phase_is("steady"))
        if len(kept):
            start, end = int(kept.column("wall_start_ns")[0]), int(kept.column("wall_end_ns")[-1])
            first = min(start, first if first is not None else start)
            last = max(end, last if last is not None else end)
    if first is None or last is None:
        return None
    return (first - start_ns) / NS_PER_S, (last - start_ns) / NS_PER_S


def _nodes(data: RunData, start_ns: int) -> list[tuple[str, dict[What, _Samples | None]]]:
    """Names of the nodes and their samples: CPU of the whole node, the job's CPU time ÷ the CPUs that it may
    use, and the driver's counter as a mean over the node's GPUs.
    """
    tables = [table for table in (data.cpu, data.gpu) if table is not None]
    hosts = {
        int(index): str(host)
        for table in tables
        for index, host in table[["node_index", "hostname"]].drop_duplicates().itertuples(index=False)
    }
    shared = len(set(hosts.values())) < len(hosts)
    cpus = {} if data.cpu is None else dict(iter(data.cpu.groupby("node_index")))
    gpus = {} if data.gpu is None else dict(iter(_gpu_means(data.gpu).groupby("node_index")))
    nodes = []
    for index in sorted(hosts):
        found: dict[What, _Samples | None] = {}
        if (cpu := cpus.get(index)) is not None:
            found["cpu"] = _samples(cpu["wall_ns"], cpu["cpu_percent"], start_ns)
            share = cpu["job_cpu_percent"] / cpu["cpus_usable"]
            found["job_cpu"] = _samples(cpu["wall_ns"], share, start_ns)
        if (gpu := gpus.get(index)) is not None:
            found["gpu"] = _samples(gpu["wall_ns"], gpu["utilization_gpu"], start_ns)
        nodes.append((f"node {index} ({hosts[index]})" if shared else hosts[index], found))
    return nodes


def _gpu_means(samples: pd.DataFrame) -> pd.DataFrame:
    """Means over GPUs of each node and round of its sampler, with its first time.

    The n-th sample of each GPU belongs to the n-th round.
    """
    rows = samples[["node_index", "gpu_id", "wall_ns", "utilization_gpu"]]
    turn = rows.groupby(["node_index", "gpu_id"], dropna=False).cumcount()
    rounds = rows.groupby([rows["node_index"], turn.rename("turn")])
    return rounds.agg({"wall_ns": "min", "utilization_gpu": "mean"}).reset_index()


def _samples(wall_ns: pd.Series[int], values: pd.Series[float], start_ns: int) -> _Samples | None:
    numbers = values.to_numpy(dtype=float)
    known = np.isfinite(numbers)
    if not known.any():
        return None
    seconds = (wall_ns.to_numpy()[known] - start_ns) / NS_PER_S
    order = np.argsort(seconds, kind="stable")
    return seconds[order], numbers[known][order]
