"""The mistakes that a traced program makes, the one with the best gain first."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from aorta.artefacts.mistakes import Mistake, Mistakes
from aorta.artefacts.weight import Estimate
from aorta.diagnosis.mistake import Program, Sign
from aorta.diagnosis.mistakes import CATALOGUE
from aorta.metrics.line_replay import ReplayChanges, ReplayedStep
from aorta.metrics.profiler_weight import Lines

NO_GAIN = 1.02
"""A step that gets shorter by less gains nothing that can be told from noise."""
_LEAST_SPREAD = 0.15
"""Least half-width of the gain's range, as a share of the gain beyond 1."""


def mistakes_of(lines: Lines, intended: Collection[str] = ()) -> tuple[list[Mistake], Mistakes | None]:
    """The mistakes, and what all together cost that gain something; None for fewer than two of them.

    Args:
        lines: of all ranks.
        intended: ids that the user declared as intended; they are named and count for nothing.
    """
    program = Program(lines)
    signs: dict[str, Sign] = {}
    for id_, plugin in CATALOGUE.items():
        sign = None if plugin.spec.look is None else plugin.spec.look(program)
        if sign is not None:
            signs[id_] = sign
    found = [
        Mistake(
            id=id_,
            title=CATALOGUE[id_].page.title,
            ranks=sorted(sign.ranks),
            where=sign.where,
            gain=_gain(program, sign.changes),
            evidence=dict(sign.evidence),
            intended=id_ in intended,
        )
        for id_, sign in signs.items()
    ]
    found = [item for item in found if item.gain.value >= CATALOGUE[item.id].spec.least_gain]
    found.sort(key=lambda item: (item.intended, -item.gain.value))
    counted = [item.id for item in found if not item.intended and item.gain.value > NO_GAIN]
    if len(counted) < 2:
        return found, None
    changes = _together(program, [signs[id_] for id_ in counted])
    return found, Mistakes(ids=counted, gain=_gain(program, changes))


def _gain(program: Program, changes: Mapping[int, ReplayChanges]) -> Estimate:
    """Step now over step with the changes, with the range that the profiler's weight allows."""
    without = program.lines.run(changes)
    value = _ratio(program.now, without)
    spread = _LEAST_SPREAD * max(value - 1.0, 0.0)
    scaled = [
        _ratio(
            program.lines.run(scale=scale), program.lines.run(_scaled(program, changes, scale), scale=scale)
        )
        for side in (1, -1)
        for scale in [program.lines.scale * (1 + side * program.lines.spread)]
    ]
    low = min(*scaled, value - spread, value)
    return Estimate(value=value, low=max(low, 1.0), high=max(*scaled, value + spread, value))


def _ratio(now: ReplayedStep, then: ReplayedStep) -> float:
    # A change can only take away: a longer step is the replay's own noise.
    return max(now.mean_ns / max(then.mean_ns, 1.0), 1.0)


def _scaled(program: Program, changes: Mapping[int, ReplayChanges], scale: float) -> dict[int, ReplayChanges]:
    """The changes where the profiler weighs more or less: the same shares of the work go."""
    made = {}
    for rank, change in changes.items():
        if change.work_ns is None:
            made[rank] = change
            continue
        own = program.ranks[rank].work_ns
        left = np.divide(change.work_ns, own, out=np.ones(len(own)), where=own > 0)
        made[rank] = replace(change, work_ns=program.lines.work_ns(rank, scale) * left)
    return made


def _together(program: Program, signs: Sequence[Sign]) -> dict[int, ReplayChanges]:
    """All changes at once: what any of them takes away is gone."""
    made: dict[int, ReplayChanges] = {}
    for rank, item in program.ranks.items():
        mine = [sign.changes[rank] for sign in signs if rank in sign.changes]
        work, gpu = item.work_ns.copy(), item.table.gpu_ns.astype(np.float64)
        nothing = np.zeros(len(work), dtype=np.bool_)
        dropped, unheld = nothing.copy(), nothing.copy()
        for change in mine:
            if change.work_ns is not None:
                work -= np.maximum(item.work_ns - change.work_ns, 0.0)
            if change.gpu_ns is not None:
                gpu = np.minimum(gpu, change.gpu_ns)
            dropped |= nothing if change.dropped is None else change.dropped
            unheld |= nothing if change.unheld is None else change.unheld
        made[rank] = ReplayChanges(work_ns=np.maximum(work, 0.0), gpu_ns=gpu, dropped=dropped, unheld=unheld)
    return made
