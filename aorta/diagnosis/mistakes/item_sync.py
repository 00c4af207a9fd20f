"""Synchronisation inside the step.

What it finds:
    The host reads values back from the GPU several times per step: `.item()`, `.cpu()`, `nonzero`,
    printing a tensor.
Why it costs time:
    Each time the host waits until the GPU has done everything before, and then launches the next work
    into an empty queue.
What to do:
    Keep the values on the GPU and read them every few steps: `total += loss.detach()`.
"""

from __future__ import annotations

import numpy as np

from aorta.artefacts.hostline import Tag
from aorta.artefacts.mistakes import MistakePlace
from aorta.diagnosis.mistake import Mask, MistakeSpec, Program, RankProgram, Sign

_LEAST = 3.0


def _look(program: Program) -> Sign | None:
    ranks = program.most(lambda item: item.count(_reads(item)) >= _LEAST)
    if not ranks:
        return None
    one = program.ranks[ranks[0]]
    held = one.per_step(np.where(_reads(one), one.table.held_ns, 0))
    return Sign(
        {rank: program.ranks[rank].without(Tag.READ_BACK) for rank in ranks},
        where=program.where(Tag.READ_BACK) or MistakePlace(function="aten::item"),
        evidence={"reads_per_step": round(one.count(_reads(one)), 1), "held_ms_per_step": round(held, 2)},
    )


def _reads(item: RankProgram) -> Mask:
    """Items at which the host waits for a value."""
    return item.has(Tag.READ_BACK) & (item.table.held_ns > 0) & ~item.has(Tag.ANOMALY)


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
    predicted_by="replay without the operators that read back, and without the host's wait",
    captures=(
        "item_sync",
        "item_sync (two H200, records and traces)",
    ),
    look=_look,
    shown_by="traces",
    parts=("forward", "other"),
)
