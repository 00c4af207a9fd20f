"""Waits for loaders that work in other processes, which three mistakes share."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from aorta.artefacts.hostline import Item
from aorta.averages import median
from aorta.diagnosis.mistake import Program, RankProgram
from aorta.metrics.line_replay import Floats, ReplayChanges
from aorta.units import NS_PER_MS

LEAST_SHARE = 0.1
"""A rank makes no mistake in its loader if it waits for the loader for less than this share of the step."""
_MANY_STEPS = 8
_BURST = 0.8
_FEW_STEPS = 0.25
_APART = 0.25
_WAITED_STEPS = 3
"""Steps with a wait from which a difference between ranks counts: prefetched batches hide single waits."""


class LoaderWaits(Struct, frozen=True):
    """Each rank's wait for its loader, ms per step; `bursts` if few steps have nearly all of it."""

    ms: dict[int, float]
    bursts: bool
    few: bool
    """The ranks waited in too few steps for a difference between them to tell anything."""

    def ranks(self, program: Program) -> list[int]:
        """The ranks that wait for more than a tenth of the step."""
        return [rank for rank, ms in self.ms.items() if program.share(ms) >= LEAST_SHARE]

    def some(self, program: Program) -> list[int]:
        """The ranks that wait, if all other ranks wait for much less in enough steps; else none."""
        return [] if self.few else self.alone(program)

    def alone(self, program: Program) -> list[int]:
        """The ranks that wait, if all other ranks wait for much less in the captured steps; else none."""
        found = self.ranks(program)
        others = [ms for rank, ms in self.ms.items() if rank not in found]
        typical = median([self.ms[rank] for rank in found]) if found else 0.0
        return found if others and max(others) <= _APART * typical else []


def waits(program: Program) -> LoaderWaits:
    """The waits of all ranks."""
    each = _in_common(program)
    total = np.concatenate(list(each.values()))
    steps = min(len(column) for column in each.values())
    order = np.sort(total)[::-1]
    first = order[: max(int(_FEW_STEPS * len(order)), 1)].sum()
    bursts = steps >= _MANY_STEPS and total.sum() > 0 and first >= _BURST * total.sum()
    waited = max((int((column > 0).sum()) for column in each.values()), default=0)
    return LoaderWaits(
        {rank: float(column.mean()) for rank, column in each.items()}, bool(bursts), waited < _WAITED_STEPS
    )


def _in_common(program: Program) -> dict[int, Floats]:
    """The waits of the steps that all ranks have."""
    numbers = set.intersection(*(set(item.numbers.tolist()) for item in program.ranks.values()))
    return {
        rank: _by_step(item)[np.isin(item.numbers, sorted(numbers))] for rank, item in program.ranks.items()
    }


def _by_step(item: RankProgram) -> Floats:
    return item.by_step(np.where(item.table.item == Item.LOADER, item.table.held_ns / NS_PER_MS, 0.0))


def without_waits(item: RankProgram) -> ReplayChanges:
    """The line in which each batch is ready in time."""
    return ReplayChanges(unheld=item.table.item == Item.LOADER)
