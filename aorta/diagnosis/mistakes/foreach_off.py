"""Optimizer without foreach or fused.

What it finds:
    The optimizer launches several small kernels for each parameter. More than 100 launches per step inside
    `Optimizer.step` are not multi-tensor kernels.
Why it costs time:
    Each launch costs the host more time than the kernel takes, so the GPU waits for the optimizer's
    loop.
What to do:
    Pass `fused=True` (or leave `foreach` at its default). One kernel then updates many parameters.
"""

from __future__ import annotations

import numpy as np

from aorta.artefacts.hostline import PRODUCTS, ComputeKind, Tag
from aorta.artefacts.mistakes import MistakePlace
from aorta.diagnosis.mistake import Mask, MistakeSpec, Program, RankProgram, Sign
from aorta.metrics.line_replay import ReplayChanges

_LEAST = 100
_KEPT = 0.1
_GPU_KEPT = 0.5


def _look(program: Program) -> Sign | None:
    def loops(item: RankProgram) -> bool:
        # An optimizer that multiplies matrices handles each parameter by itself for a reason.
        products = item.launched(*PRODUCTS) & item.has(Tag.OPTIMIZER)
        return item.count(_single(item)) >= _LEAST and not products.any()

    ranks = program.most(loops)
    if not ranks:
        return None
    counts = [program.ranks[rank].count(_single(program.ranks[rank])) for rank in ranks]
    return Sign(
        {rank: _fixed(program.ranks[rank]) for rank in ranks},
        where=program.where(Tag.OPTIMIZER) or MistakePlace(function="Optimizer.step"),
        evidence={"optimizer_launches_per_step": round(max(counts), 1)},
    )


def _single(item: RankProgram) -> Mask:
    """Launches of the optimizer that handle one tensor."""
    single: Mask = item.compute & item.has(Tag.OPTIMIZER) & (item.table.kind != ComputeKind.OPTIMIZER)
    return single


def _fixed(item: RankProgram) -> ReplayChanges:
    rows = np.flatnonzero(_single(item))
    last = rows[np.append(item.table.step[rows][1:] != item.table.step[rows][:-1], True)]
    gpu = item.table.gpu_ns.astype(np.float64)
    for row in last.tolist():
        gpu[row] = gpu[rows][item.table.step[rows] == item.table.step[row]].sum() * _GPU_KEPT
    change = item.without(Tag.OPTIMIZER, keep=_KEPT, gpu_ns=gpu)
    assert change.dropped is not None
    change.dropped[last] = False
    return change


SPEC = MistakeSpec(
    id="foreach_off",
    before="""\
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, foreach=False)
""",
    after="""\
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
""",
    predicted_by=(
        "replay with a tenth of the optimizer's host work. One launch replaces all of its launches, and "
        "takes half their time on the GPU"
    ),
    captures=(
        "foreach_off",
        "foreach_off (one H200)",
    ),
    look=_look,
    shown_by="traces",
)
