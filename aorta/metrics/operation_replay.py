"""Replays the operations of a mesh with other times than the recorded ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aorta.metrics.operation_graph import Floats, Graph

_AT_ONCE = 128
"""Scenarios that are replayed together."""


def replayed(graph: Graph, own: Sequence[Floats]) -> Floats:
    """Returns the mean step of each scenario, ns.

    Args:
        graph: the job.
        own: of each scenario, the time of each operation, (rows,).
    """
    return np.asarray(step_times(graph, own).mean(axis=0), dtype=np.float64)


def step_times(graph: Graph, own: Sequence[Floats]) -> Floats:
    """Returns the end of each step since its start, ns: (steps, scenarios)."""
    parts = [own[first : first + _AT_ONCE] for first in range(0, len(own), _AT_ONCE)]
    return np.concatenate([_replay(graph, np.stack(part, axis=1)) for part in parts], axis=1)


def _replay(graph: Graph, own: Floats) -> Floats:
    end = np.zeros_like(own)
    before = graph.before
    for rows in graph.members:
        begun = None
        for row in rows:
            for source in before[row]:
                begun = end[source] if begun is None else np.maximum(begun, end[source])
        for row in rows:
            end[row] = own[row] if begun is None else begun + own[row]
    step = graph.operations.step
    return np.stack([end[step == one].max(axis=0) for one in np.unique(step)])
