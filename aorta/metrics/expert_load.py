"""Bytes that each rank exchanges with all others per step: of experts, the share of tokens that it gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from aorta.artefacts.events import ABSENT
from aorta.artefacts.step_columns import StepColumns
from aorta.metrics.trace_work import GpuWork

_OP = "all_to_all"


def recorded_load(by_rank: Mapping[int, StepColumns]) -> dict[int, float]:
    """Returns the bytes of each rank's all-to-all per step; empty where sizes are not recorded."""
    found = {}
    for rank, columns in by_rank.items():
        ranges = columns.ranges()
        sizes = np.array([kind.bytes or 0 if kind.op == _OP else 0 for kind in ranges.kinds], dtype=np.int64)
        total = int(sizes[ranges.kind].sum()) if len(ranges.kind) else 0
        if total and len(columns):
            found[rank] = total / len(columns)
    return found if len(found) == len(by_rank) else {}


def traced_load(work: Mapping[int, GpuWork], steps: Sequence[int]) -> dict[int, float]:
    """Returns the same by traces."""
    found = {}
    for rank, item in work.items():
        codes = [code for code, name in enumerate(item.names) if name == _OP]
        mine = np.isin(item.calls.op, codes) & np.isin(item.calls.step, list(steps))
        sizes = item.calls.size[mine]
        if len(sizes) and (sizes != ABSENT).all() and int(sizes.sum()):
            found[rank] = int(sizes.sum()) / max(len(steps), 1)
    return found if len(found) == len(work) else {}
