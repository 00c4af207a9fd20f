"""From a run's data to what tells the causes behind causes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from aorta.artefacts.steps import Step
from aorta.diagnosis.context import Evidence, Launches
from aorta.diagnosis.quality import cores_shared
from aorta.metrics.host_gaps import host_gaps
from aorta.metrics.node_load import node_loads, throttling
from aorta.metrics.steady import Steady
from aorta.metrics.utilization import Window
from aorta.readers.run import RunData
from aorta.units import NS_PER_MS


def steady_windows(steady: Steady) -> dict[str, Window]:
    """The steady window of each host on its wall clock: from its ranks' first start to their last end."""
    windows: dict[str, Window] = {}
    for steps in steady.by_rank.values():
        if steps:
            start, end = windows.get(steps[0].host, (steps[0].wall_start_ns, steps[-1].wall_end_ns))
            windows[steps[0].host] = min(start, steps[0].wall_start_ns), max(end, steps[-1].wall_end_ns)
    return windows


def evidence_of(data: RunData, steady: Steady) -> Evidence:
    """What the monitors, the records and the agents left; nothing is guessed where they left nothing."""
    windows = steady_windows(steady)
    slowed = throttling(data.gpu, windows)
    uuids = {rank: steps[-1].device_uuid for rank, steps in steady.by_rank.items() if steps}
    gaps = host_gaps(steady.by_rank)
    shared = cores_shared(data)
    return Evidence(
        host_gap=gaps[0] if gaps else None,
        loads=node_loads(data.cpu, windows),
        throttling={
            rank: slowed[uuid] for rank, uuid in uuids.items() if uuid is not None and uuid in slowed
        },
        cpus_machine={
            info.host: info.cpus_machine for info in data.account.infos.values() if info.cpus_machine
        },
        cores_shared=shared[0] if shared else None,
        launches=_launches(data.records.by_rank, steady),
    )


def _launches(by_rank: Mapping[int, Sequence[Step]], steady: Steady) -> Launches | None:
    """Of the steps that were recorded kernel by kernel; their windows are those of the steady ones.

    Recording makes launches slower and windows longer, so a recorded step is no steady one; it does not
    change how long a kernel runs.
    """
    if not steady.numbers:
        return None
    every = [step for rank in steady.ranks for step in by_rank[rank] if step.global_step > steady.numbers[0]]
    sampled = [step.execution for step in every if step.execution is not None and step.execution.kernels]
    counted = [step for steps in steady.by_rank.values() for step in steps]
    plain = [step.breakdown for step in counted if step.execution is None and step.breakdown is not None]
    if not sampled or not plain:
        return None
    claimed = fmean(item.hidden_comm_ns for item in plain) / NS_PER_MS
    truly = [item.hidden_comm_ms for item in sampled if item.hidden_comm_ms is not None]
    return Launches(
        kernels=fmean(item.kernels for item in sampled),
        kernels_ms=fmean(item.per_stream_ms.get("compute", 0.0) for item in sampled),
        windows_ms=fmean(item.compute_ns for item in plain) / NS_PER_MS,
        not_hidden_ms=max(claimed - fmean(truly), 0.0) if truly else 0.0,
    )
