"""Recompilation and graph breaks.

What it finds:
    `torch.compile` compiles during steady steps, for more than a twentieth of the step.
Why it costs time:
    The compiler runs again for each new shape, and for each changed value that a guard checks. This takes
    seconds, and the GPU waits.
What to do:
    Pad batches to a few fixed sizes, or compile with `dynamic=True`. `TORCH_LOGS=recompiles,graph_breaks`
    names the guards.
"""

from __future__ import annotations

import numpy as np

from aorta.artefacts.hostline import Tag
from aorta.artefacts.mistakes import MistakePlace
from aorta.diagnosis.mistake import MistakeSpec, Program, RankProgram, Sign
from aorta.metrics.line_replay import ReplayChanges

_LEAST_SHARE = 0.05


def _look(program: Program) -> Sign | None:
    ranks = program.most(
        lambda item: program.share(item.tagged_ms(Tag.COMPILE)) >= _LEAST_SHARE and _again(item)
    )
    if not ranks:
        return None
    cost = max(program.ranks[rank].tagged_ms(Tag.COMPILE) for rank in ranks)
    return Sign(
        {rank: _fixed(program.ranks[rank]) for rank in ranks},
        where=program.where(Tag.COMPILE) or MistakePlace(function="torch.compile"),
        evidence={"compile_ms_per_step": round(cost, 2)},
    )


def _again(item: RankProgram) -> bool:
    """True if the compiler works behind the first captured step: in that step the program may just begin."""
    by_step = item.by_step(item.tag_ns(Tag.COMPILE))
    return len(by_step) == 1 or bool(by_step[1:].sum() >= _LEAST_SHARE * by_step.sum())


def _fixed(item: RankProgram) -> ReplayChanges:
    left = item.work_ns - item.tag_ns(Tag.COMPILE)
    return ReplayChanges(work_ns=np.maximum(left, 0.0))


SPEC = MistakeSpec(
    id="recompile",
    before="""\
model = torch.compile(model)
""",
    after="""\
model = torch.compile(model, dynamic=True)
""",
    predicted_by="replay without the work of the compiler",
    captures=("recompile (one H200)",),
    look=_look,
    shown_by="traces",
)
