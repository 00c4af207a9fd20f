"""Synchronisation inside the step.

What it finds:
    The host reads values back from the GPU several times per step: `.item()`, `.cpu()`, `nonzero`,
    printing a tensor.
Why it costs time:
    Each read makes the host wait until the GPU has finished all earlier work. The host then launches the
    next work into an empty queue.
What to do:
    Keep the values on the GPU and read them every few steps: `total += loss.detach()`.
"""

from __future__ import annotations

import numpy as np

from aorta.artefacts.hostline import ComputeKind, Tag
from aorta.artefacts.mistakes import MistakePlace
from aorta.diagnosis.mistake import Mask, MistakeSpec, Program, RankProgram, Sign
from aorta.metrics.line_replay import ReplayChanges

_LEAST = 3.0
_FEW_PCT = 20
_VALUES = 65_536
"""Bytes of a copy to the host that are read as values; more are data."""


def _look(program: Program) -> Sign | None:
    ranks = program.most(lambda item: _often(item) >= _LEAST)
    if not ranks:
        return None
    one = program.ranks[ranks[0]]
    held = one.per_step(np.where(_reads(one), one.table.held_ns, 0))
    return Sign(
        {rank: _without(program.ranks[rank]) for rank in ranks},
        where=program.where(Tag.READ_BACK) or MistakePlace(function="aten::item"),
        evidence={"reads_per_step": round(one.count(_reads(one)), 1), "held_ms_per_step": round(held, 2)},
    )


def _often(item: RankProgram) -> float:
    """Returns how many reads each step has, but for a few steps.

    A program that saves its weights now and then reads a lot in these steps, and no value.
    """
    steps = item.table.step[_reads(item)]
    return float(np.percentile([(steps == number).sum() for number in item.numbers.tolist()], _FEW_PCT))


def _reads(item: RankProgram) -> Mask:
    """Items at which the host waits for a value, or for a few of them."""
    small = item.launched(ComputeKind.READ_COPY) & (item.table.bytes >= 0) & (item.table.bytes <= _VALUES)
    reads = item.has(Tag.READ_BACK) | small
    return reads & (item.table.held_ns > 0) & ~item.has(Tag.ANOMALY)


def _without(item: RankProgram) -> ReplayChanges:
    return item.without(Tag.READ_BACK, also=_reads(item))


SPEC = MistakeSpec(
    id="item_sync",
    before="""\
total += loss.item()
""",
    after="""\
total += loss.detach()
if step % 50 == 0:
    print(total.item())
""",
    predicted_by="replay without the operators that read values back, and without the host's wait",
    captures=(
        "item_sync",
        "item_sync (two H200, records and traces)",
    ),
    look=_look,
    shown_by="traces",
    parts=("forward", "other"),
)
