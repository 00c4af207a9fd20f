"""Time between the end of a recorded step and the start of the next one, by what it was spent on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np
from msgspec import Struct, field

from aorta.artefacts.step_columns import BEFORE, StepColumns
from aorta.artefacts.step_names import Phase

UNKNOWN = "not recorded"
FIRST_BATCH = "first batch"
_AHEAD_OF: tuple[Phase, ...] = ("validation", "checkpoint")
"""Phases of a step that say what came before it."""


class Gaps(Struct, frozen=True):
    """Time between steps, from the first to the last of the steps that count."""

    shares: dict[int, float] = field(default_factory=dict)
    """Share (0 to 1) of each rank's time that lies between steps."""
    by_phase: dict[str, dict[int, float]] = field(default_factory=dict)
    """Phase to rank to ms per step."""


def gaps_between(by_rank: Mapping[int, StepColumns], first: int, last: int) -> Gaps:
    """Returns the gaps of each rank, told apart by the step that follows.

    What the program named counts by its name. Of the rest, a step after a validation or a checkpoint says
    so; in a new epoch the first batch is fetched.

    Args:
        by_rank: all steps.
        first: number of the first step that counts.
        last: number of the last one.
    """
    shares: dict[int, float] = {}
    by_phase: defaultdict[str, dict[int, float]] = defaultdict(dict)
    for rank, every in by_rank.items():
        numbers = every.column("global_step")
        steps = every.where((numbers >= first) & (numbers <= last))
        if len(steps) < 2:
            continue
        starts, ends = steps.column("mono_start_ns"), steps.column("mono_end_ns")
        numbers = steps.column("global_step")
        gaps = np.where(numbers[1:] == numbers[:-1] + 1, np.maximum(starts[1:] - ends[:-1], 0), 0)
        took = int(steps.duration_ns.sum()) + int(gaps.sum())
        shares[rank] = int(gaps.sum()) / took if took else 0.0
        named, left = {name: steps.column(column)[1:] for name, column in BEFORE.items()}, gaps
        for what, before in named.items():
            taken = np.minimum(before, left)
            if taken.any():
                by_phase[what][rank] = float(taken.sum()) / 1e6 / len(steps)
            left = left - taken
        phase = np.where(steps.epoch[1:] != steps.epoch[:-1], FIRST_BATCH, UNKNOWN).astype(object)
        for name in _AHEAD_OF:
            phase[steps.phase_is(name)[1:]] = name
        for name in np.unique(phase[left > 0].astype(str)).tolist():
            rest = float(left[phase == name].sum()) / 1e6 / len(steps)
            by_phase[name][rank] = by_phase[name].get(rank, 0.0) + rest
    return Gaps(shares, dict(by_phase))
