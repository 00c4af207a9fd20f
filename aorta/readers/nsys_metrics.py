"""The GPU counters that nsys sampled (`capture.gpu_metrics`), as means over its capture."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aorta.artefacts.analysis import Problem
from aorta.errors import ArtefactError
from aorta.readers.trace_sqlite import open_database

_VALUES, _NAMES = "GPU_METRICS", "TARGET_INFO_GPU_METRICS"
_DEVICE = 0xFF
"""The low byte of a typeId is the GPU."""
_SM, _TENSOR, _READ, _WRITE = "SMs Active", "Tensor Active", "DRAM Read Bandwidth", "DRAM Write Bandwidth"
_MEANS = f"""
    SELECT m.typeId & {_DEVICE}, n.metricName, AVG(m.value), COUNT(*)
    FROM {_VALUES} m JOIN {_NAMES} n ON n.typeId = m.typeId AND n.metricId = m.metricId
    WHERE m.value BETWEEN 0 AND 100 AND n.metricName LIKE '%[Throughput %'
    GROUP BY m.typeId & {_DEVICE}, n.metricName
"""  # noqa: S608  constants


@dataclass(frozen=True, slots=True)
class CounterMeans:
    """Means over the GPUs and the capture, %. None if no GPU's counter was sampled."""

    sm_active_pct: float | None
    tensor_active_pct: float | None
    dram_active_pct: float | None
    gpus: int
    samples: int
    """Samples of the counter with the fewest."""


def read_counters(exports: Sequence[Path]) -> tuple[CounterMeans | None, tuple[Problem, ...]]:
    """Returns the counters in these SQLite exports, and what was wrong; None where none holds any.

    Args:
        exports: of nsys; one per node has the counters of its GPUs.
    """
    found: dict[str, list[float]] = defaultdict(list)
    counts: list[int] = []
    gpus: set[tuple[Path, int]] = set()
    problems = []
    for path in exports:
        try:
            rows = _rows(path)
        except ArtefactError as error:
            problems.append(Problem(file=path.name, reason=f"GPU counters: {error.message}"))
            continue
        of_gpu: dict[tuple[int, str], float] = {}
        for device, name, mean, count in rows:
            of_gpu[device, str(name).partition(" [")[0]] = float(mean)
            gpus.add((path, device))
            counts.append(int(count))
        for device in {device for device, _ in of_gpu}:
            for name in (_SM, _TENSOR):
                if (device, name) in of_gpu:
                    found[name].append(of_gpu[device, name])
            if (device, _READ) in of_gpu and (device, _WRITE) in of_gpu:
                found[_READ].append(of_gpu[device, _READ] + of_gpu[device, _WRITE])
    if not found:
        return None, tuple(problems)
    sm, tensor, memory = (_mean(found.get(name, [])) for name in (_SM, _TENSOR, _READ))
    return CounterMeans(sm, tensor, memory, len(gpus), min(counts)), tuple(problems)


def _rows(path: Path) -> list[tuple[int, str, float, int]]:
    with open_database(path) as database:
        if not database.has(_VALUES, "typeId", "metricId", "value"):
            return []
        if not database.has(_NAMES, "typeId", "metricId", "metricName"):
            return []
        return database.connection.execute(_MEANS).fetchall()


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
