"""The mistakes that a traced program makes, the one with the best gain first."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from aorta.artefacts.hostline import ComputeKind
from aorta.artefacts.mistakes import Mistake, Mistakes
from aorta.artefacts.weight import Estimate
from aorta.diagnosis.mistake import Program, RankProgram, Sign
from aorta.diagnosis.mistakes import CATALOGUE
from aorta.metrics.host_tags import SILENT_NS
from aorta.metrics.line_replay import ReplayChanges, ReplayedStep
from aorta.metrics.profiler_weight import Lines

NO_GAIN = 1.05
"""A smaller gain cannot be told from noise and is reported as 1."""
_LEAST_SPREAD = 0.35
"""Least half-width of the gain's range, as a share of the gain beyond 1."""
_WARMTH = 0.2
"""The host's remaining work gets faster by this share of the work that goes: the host idles less, and its
caches hold what it needs. A stretch of `SILENT_NS` and more between two calls is no work of launching, and
stays as it is.
"""
_HOT, _COLD = 0.75, 1.15
"""The host's work without the mistake over the predicted one, where the gain is largest and smallest."""


def mistakes_of(
    lines: Lines, intended: Collection[str] = (), *, staged: bool = False, missing: int = 0
) -> tuple[list[Mistake], Mistakes | None]:
    """The mistakes, and what all together cost that gain something; None for fewer than two of them.

    Args:
        lines: of all ranks, but for `missing` of them.
        intended: ids that the user declared as intended; they are named and count for nothing.
        staged: the ranks are stages of a pipeline, or otherwise unequal by design.
        missing: ranks without lines. Mistakes that ranks make by themselves are found, and the range of their
            gain reaches to where no exchange with the missing ranks takes time.
    """
    program = Program(lines)
    signs: dict[str, Sign] = {}
    for id_, plugin in CATALOGUE.items():
        spec = plugin.spec
        if spec.look is None or (staged and spec.of_equal_ranks) or (missing and spec.of_ranks):
            continue
        sign = spec.look(program)
        if sign is not None:
            signs[id_] = sign
    found = [
        Mistake(
            id=id_,
            title=CATALOGUE[id_].page.title,
            ranks=sorted(sign.ranks),
            where=sign.where,
            gain=_gain(program, sign, alone=missing > 0),
            evidence={**sign.evidence, **({"ranks_without_traces": missing} if missing else {})},
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
    floor = max(signs[id_].floor_ns for id_ in counted)
    return found, Mistakes(ids=counted, gain=_gain(program, Sign(changes, floor_ns=floor)))


def _gain(program: Program, sign: Sign, *, alone: bool = False) -> Estimate:
    """Step now over step with the changes, with the range that the host's work allows.

    What the GPU needs stays in each of the replays, so that the range ends where the GPU is the limit.
    """
    often = sign.often
    warm = {rank: _warmed(program.ranks[rank], change) for rank, change in sign.changes.items()}
    value, high, low = (
        _ratio(program.now, program.lines.run(_worked(program, warm, times)), sign.floor_ns)
        for times in (1.0, _HOT, _COLD)
    )
    if alone:
        unheld = {rank: _exchanged(program.ranks[rank], change) for rank, change in warm.items()}
        high = max(high, _ratio(program.now, program.lines.run(unheld), sign.floor_ns))
    low, value, high = (
        1.0 + times * (gain - 1.0)
        for times, gain in ((often.low, low), (often.value, value), (often.high, high))
    )
    spread = _LEAST_SPREAD * max(value - 1.0, 0.0)
    low, high = max(min(low, value - spread), 1.0), max(high, value + spread)
    high = 1.0 + sign.reach * (high - 1.0)
    return Estimate(value=1.0 if value < NO_GAIN else value, low=low, high=high)


def _ratio(now: ReplayedStep, then: ReplayedStep, floor_ns: float) -> float:
    # A change can only take away: a longer step is the replay's own noise.
    return max(now.longest_ns / max(then.longest_ns, floor_ns, 1.0), 1.0)


def _exchanged(item: RankProgram, change: ReplayChanges) -> ReplayChanges:
    """The change, with an exchange that takes no time: it may all be waiting for the missing ranks."""
    gpu = item.table.gpu_ns.astype(np.float64) if change.gpu_ns is None else change.gpu_ns
    return replace(change, gpu_ns=np.where(item.launched(ComputeKind.COMMUNICATION), 0.0, gpu))


def _warmed(item: RankProgram, change: ReplayChanges) -> ReplayChanges:
    """The change, with what is left of the host's work as fast as a host that does nothing else."""
    held = item.table.held_ns.astype(np.float64)
    work = item.work_ns if change.work_ns is None else change.work_ns
    gone = np.zeros(len(held), dtype=np.bool_)
    for mask in (change.dropped, change.unheld):
        gone |= False if mask is None else mask
    before = float((item.work_ns + held).sum())
    after = float((work + np.where(gone, 0.0, held)).sum())
    share = max(1.0 - after / before, 0.0) if before > 0 else 0.0
    return replace(change, work_ns=np.where(work < SILENT_NS, work * (1.0 - _WARMTH * share), work))


def _worked(
    program: Program, changes: Mapping[int, ReplayChanges], times: float
) -> Mapping[int, ReplayChanges]:
    """The changes, with the host's work of all ranks taking `times` as long."""
    if times == 1.0:
        return changes
    made = {}
    for rank, item in program.ranks.items():
        change = changes.get(rank, ReplayChanges())
        work = item.work_ns if change.work_ns is None else change.work_ns
        # A rank that changes nothing works as it does now.
        made[rank] = replace(change, work_ns=work * times) if rank in changes else change
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
