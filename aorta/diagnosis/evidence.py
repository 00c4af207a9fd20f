"""From a run's data to what tells the causes behind causes."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

import numpy as np

from aorta.artefacts.step_columns import ABSENT, StepColumns
from aorta.diagnosis.context import Evidence, Launches
from aorta.diagnosis.quality import cores_shared
from aorta.metrics.host_gaps import host_gaps
from aorta.metrics.node_load import driver_busy, node_loads, throttling
from aorta.metrics.steady import Steady
from aorta.metrics.utilization import Sampled, Window
from aorta.readers.run import RunData
from aorta.units import NS_PER_MS


def steady_windows(steady: Steady) -> dict[str, Window]:
    """The steady window of each host on its wall clock: from its ranks' first start to their last end."""
    windows: dict[str, Window] = {}
    for steps in steady.by_rank.values():
        if len(steps):
            host, first = steps.labels[0].host, int(steps.column("wall_start_ns")[0])
            last = int(steps.column("wall_end_ns")[-1])
            start, end = windows.get(host, (first, last))
            windows[host] = min(start, first), max(end, last)
    return windows


def evidence_of(data: RunData, steady: Steady, seen: Sampled) -> Evidence:
    """What the monitors (`seen`), the records and the agents left; what they did not is not guessed.

    Windows are those of all steady steps, parts of the step those of the steps timed part by part.
    """
    detailed = steady.detailed()
    slowed = throttling(seen.gpus)
    uuids = {rank: steps[-1:].labels[0].device_uuid for rank, steps in steady.by_rank.items() if len(steps)}
    busy = driver_busy(seen.gpus)
    counters = [None if uuid is None else busy.get(uuid) for uuid in uuids.values()]
    known = [pct for pct in counters if pct is not None]
    gaps = host_gaps(detailed.by_rank)
    shared = cores_shared(data)
    return Evidence(
        host_gap=gaps[0] if gaps else None,
        loads=node_loads(seen.hosts),
        throttling={
            rank: slowed[uuid] for rank, uuid in uuids.items() if uuid is not None and uuid in slowed
        },
        cpus_machine={
            info.host: info.cpus_machine for info in data.account.infos.values() if info.cpus_machine
        },
        cores_shared=shared[0] if shared else None,
        launches=_launches(data.records.by_rank, detailed),
        driver_busy_pct=fmean(known) if known and len(known) == len(counters) else None,
    )


def _launches(by_rank: Mapping[int, StepColumns], steady: Steady) -> Launches | None:
    """Of the steps that were recorded kernel by kernel; their windows are those of the steady ones.

    Recording makes launches slower and windows longer, so a recorded step is no steady one; it does not
    change how long a kernel runs.
    """
    if not steady.numbers:
        return None
    sampled = [
        item
        for rank in steady.ranks
        for number, item in by_rank[rank].executions.items()
        if number > steady.numbers[0] and item.kernels
    ]
    if not sampled:
        return None
    plain = [_not_recorded(steps) for steps in steady.by_rank.values()]
    hidden, windows = (
        np.concatenate([steps.column(name) for steps in plain]) for name in ("hidden_comm_ns", "compute_ns")
    )
    if not len(hidden):
        return None
    claimed = float(hidden.mean()) / NS_PER_MS
    truly = [item.hidden_comm_ms for item in sampled if item.hidden_comm_ms is not None]
    return Launches(
        kernels=fmean(item.kernels for item in sampled),
        kernels_ms=fmean(item.per_stream_ms.get("compute", 0.0) for item in sampled),
        windows_ms=float(windows.mean()) / NS_PER_MS,
        not_hidden_ms=max(claimed - fmean(truly), 0.0) if truly else 0.0,
    )


def _not_recorded(steps: StepColumns) -> StepColumns:
    """The steps with a breakdown that were not recorded kernel by kernel."""
    recorded = np.isin(steps.column("global_step"), list(steps.executions))
    return steps.where(~recorded & (steps.column("compute_ns") != ABSENT))
