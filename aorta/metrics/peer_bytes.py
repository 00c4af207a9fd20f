"""Bytes that the ranks of a group send to each other by all-to-all, per step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import structs

from aorta.artefacts.events import ABSENT
from aorta.artefacts.mesh import MeshGroup
from aorta.metrics.mesh_groups import NOT_NAMED
from aorta.metrics.trace_work import GpuWork

_OP = "all_to_all"
_DIGITS = 19
"""Digits of the largest size that a trace can hold."""


def with_peers(
    groups: Sequence[MeshGroup], work: Mapping[int, GpuWork], steps: Sequence[int]
) -> tuple[MeshGroup, ...]:
    """Returns the groups with what each rank sends to each other one, where all of them are known.

    Args:
        groups: in which ranks exchange.
        work: of each rank.
        steps: the steps of which the mean is taken.
    """
    return tuple(structs.replace(group, bytes_to=_matrix(group, work, steps)) for group in groups)


def _matrix(group: MeshGroup, work: Mapping[int, GpuWork], steps: Sequence[int]) -> list[list[float]] | None:
    rows = []
    for rank in group.ranks:
        row = _row(work[rank], group, steps) if rank in work else None
        if row is None:
            return None
        rows.append(row)
    return rows


def _row(item: GpuWork, group: MeshGroup, steps: Sequence[int]) -> list[float] | None:
    """Returns what a rank sends to each rank of the group. None if it sends nothing in this way, or if not
    everything is known.
    """
    table = item.calls
    ops = [code for code, name in enumerate(item.names) if name == _OP]
    own = [code for code, name in enumerate(item.names) if (name or NOT_NAMED) == group.name]
    mine = np.isin(table.op, ops) & np.isin(table.group, own) & np.isin(table.step, list(steps))
    codes, counts = np.unique(table.sent[mine], return_counts=True)
    if not len(codes) or not len(steps) or codes[0] == ABSENT:
        return None
    total = np.zeros(len(group.ranks))
    for code, count in zip(codes.tolist(), counts.tolist(), strict=True):
        sizes = item.names[code].split()
        # Torch numbers the members of a group by ascending rank, as `ranks` is sorted.
        if len(sizes) != len(group.ranks) or not all(_is_size(size) for size in sizes):
            return None
        total += count * np.array([int(size) for size in sizes], dtype=np.float64)
    sent: list[float] = (total / len(steps)).tolist()
    return sent


def _is_size(text: str) -> bool:
    return text.isdecimal() and len(text) <= _DIGITS
