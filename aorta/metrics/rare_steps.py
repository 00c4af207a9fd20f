"""Finds what steps with a checkpoint or a validation take beyond the usual step, by the step records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
from msgspec import Struct

from aorta.artefacts.step_columns import BEFORE, StepColumns
from aorta.artefacts.step_names import Phase

RARE: tuple[Literal["checkpoint", "validation"], ...] = ("checkpoint", "validation")


class RareSteps(Struct, frozen=True):
    """One rank's steps that hold a checkpoint, or a validation."""

    count: int
    share: float
    """Time beyond that of as many usual steps, as a share of all steps' time (0 to 1)."""


def rare_steps(
    by_rank: Mapping[int, StepColumns], numbers: tuple[int, ...]
) -> dict[Phase, dict[int, RareSteps]]:
    """Returns the steps of each phase by rank; a rank without such steps has none there.

    Args:
        by_rank: all steps.
        numbers: the steps that are steady on every rank. Steps before the first and behind the last are left
            out.
    """
    found: dict[Phase, dict[int, RareSteps]] = {phase: {} for phase in RARE}
    if not numbers:
        return found
    for rank, every in by_rank.items():
        number = every.column("global_step")
        steps = every.where((number >= numbers[0]) & (number <= numbers[-1]))
        took, usual = steps.duration_ns, np.isin(steps.column("global_step"), numbers)
        if not usual.any():
            continue
        whole = int(took.sum()) + sum(int(steps.column(name).sum()) for name in BEFORE.values())
        for phase in RARE:
            rows, before = steps.phase_is(phase), steps.column(BEFORE[phase])
            more = np.maximum(took[rows] - np.median(took[usual]), 0.0).sum() + before.sum()
            if rows.any() or before.any():
                count = int((rows | (before > 0)).sum())
                found[phase][rank] = RareSteps(count, float(more) / whole)
    return found
