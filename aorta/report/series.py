"""What the figure of a run is drawn from, as arrays, taken from the run's data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from aorta.readers.run import RunData
from aorta.units import NS_PER_MS, NS_PER_S


@dataclass(frozen=True, slots=True)
class StepSeries:
    """Each step's time, all of shape (n,), by step: global step, time of its slowest rank, steady or not."""

    steps: NDArray[np.int64]
    ms: NDArray[np.float64]
    steady: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Series:
    """Samples over time, by time; both of shape (n,), n ≥ 1; values in percent."""

    seconds: NDArray[np.float64]
    values: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class NodeSeries:
    """Samples of one node; None where not measured.

    `cpu` is of the whole host, `job` the job's CPU time over the CPUs it may use, `gpu` the driver's counter,
    averaged over the node's GPUs.
    """

    name: str
    cpu: Series | None
    job: Series | None
    gpu: Series | None


@dataclass(frozen=True, slots=True)
class Window:
    """Seconds on the clock of the series."""

    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class RunSeries:
    """Everything drawn over time.

    `no_samples` and `no_gpu` say why there are no samples (of GPUs), for where there are none.
    """

    steps: StepSeries | None
    nodes: tuple[NodeSeries, ...]
    window: Window | None
    no_samples: str
    no_gpu: str


def run_series(data: RunData) -> RunSeries:
    """The series of a run; second 0 is its first sample or step."""
    start_ns = _start_ns(data)
    return RunSeries(
        steps=_step_series(data),
        nodes=tuple(_node_series(data, start_ns)),
        window=_window(data, start_ns),
        no_samples="not measured: no monitor samples",
        no_gpu="not sampled" if any(info.gpus for info in data.account.infos.values()) else "none in the job",
    )


def _start_ns(data: RunData) -> int:
    starts = [steps[0].wall_start_ns for steps in data.records.by_rank.values()]
    starts += [int(table["wall_ns"].min()) for table in (data.cpu, data.gpu) if table is not None]
    return min(starts, default=0)


def _step_series(data: RunData) -> StepSeries | None:
    slowest: dict[int, int] = {}
    steady: dict[int, bool] = {}
    for steps in data.records.by_rank.values():
        for step in steps:
            number = step.global_step
            slowest[number] = max(slowest.get(number, 0), step.duration_ns)
            steady[number] = steady.get(number, True) and step.phase == "steady"
    if not slowest:
        return None
    numbers = sorted(slowest)
    return StepSeries(
        steps=np.array(numbers, dtype=np.int64),
        ms=np.array([slowest[number] / NS_PER_MS for number in numbers]),
        steady=np.array([steady[number] for number in numbers]),
    )


def _window(data: RunData, start_ns: int) -> Window | None:
    kept = [step for steps in data.records.by_rank.values() for step in steps if step.phase == "steady"]
    if not kept:
        return None
    first = min(step.wall_start_ns for step in kept)
    last = max(step.wall_end_ns for step in kept)
    return Window((first - start_ns) / NS_PER_S, (last - start_ns) / NS_PER_S)


def _node_series(data: RunData, start_ns: int) -> list[NodeSeries]:
    tables = [table for table in (data.cpu, data.gpu) if table is not None]
    hosts = {
        int(index): str(host)
        for table in tables
        for index, host in zip(table["node_index"], table["hostname"], strict=True)
    }
    shared = len(set(hosts.values())) < len(hosts)
    nodes = []
    for index in sorted(hosts):
        cpu = _of_node(data.cpu, index)
        gpu = _of_node(data.gpu, index)
        nodes.append(
            NodeSeries(
                name=f"node {index} ({hosts[index]})" if shared else hosts[index],
                cpu=None if cpu is None else _series(cpu["wall_ns"], cpu["cpu_percent"], start_ns),
                job=None
                if cpu is None
                else _series(cpu["wall_ns"], cpu["job_cpu_percent"] / cpu["cpus_usable"], start_ns),
                gpu=None if gpu is None else _gpu_mean(gpu, start_ns),
            )
        )
    return nodes


def _of_node(table: pd.DataFrame | None, index: int) -> pd.DataFrame | None:
    if table is None:
        return None
    rows = table[table["node_index"] == index]
    return None if rows.empty else rows


def _gpu_mean(rows: pd.DataFrame, start_ns: int) -> Series | None:
    """The n-th sample of each GPU belongs to the n-th round of the sampler, whose mean is taken."""
    rounds = rows.groupby(rows.groupby("gpu_id", dropna=False).cumcount())
    return _series(rounds["wall_ns"].min(), rounds["utilization_gpu"].mean(), start_ns)


def _series(wall_ns: pd.Series[int], values: pd.Series[float], start_ns: int) -> Series | None:
    known = np.isfinite(values.to_numpy(dtype=float))
    if not known.any():
        return None
    seconds = (wall_ns.to_numpy()[known] - start_ns) / NS_PER_S
    order = np.argsort(seconds, kind="stable")
    return Series(seconds[order], values.to_numpy(dtype=float)[known][order])
