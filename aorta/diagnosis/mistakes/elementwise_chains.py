"""Chains of elementwise kernels that compilation would fuse.

What it finds:
    Six or more elementwise kernels run one after another, without a matrix product between them. A single
    kernel instead would save more than a tenth of the step.
Why it costs time:
    Each kernel reads its input from memory and writes its result back. One fused kernel reads and writes
    once for all of them.
What to do:
    Compile the function that holds them with `torch.compile`, or call one operator that does the same work:
    `F.gelu`, `F.rms_norm`, `F.cross_entropy`.
"""

from __future__ import annotations

import numpy as np

from aorta.artefacts.hostline import ComputeKind, Item, Tag
from aorta.diagnosis.mistake import Mask, MistakeSpec, Program, RankProgram, Sign
from aorta.metrics.line_replay import ReplayChanges
from aorta.metrics.small_kernels import NOT_FUSED

_LEAST_SHARE = 0.1


def _look(program: Program) -> Sign | None:
    dropped = {rank: _dropped(item) for rank, item in program.ranks.items()}
    saved = {rank: _gpu_ms(program.ranks[rank], rows) for rank, rows in dropped.items()}
    ranks = program.most(lambda item: program.share(saved[item.rank]) >= _LEAST_SHARE)
    if not ranks:
        return None
    one = program.ranks[ranks[0]]
    links = one.has(Tag.CHAIN)
    return Sign(
        {rank: ReplayChanges(dropped=dropped[rank]) for rank in ranks},
        where=program.where(Tag.CHAIN, ranks),
        evidence={
            "kernels_per_step": round(one.count(links), 1),
            "chains_ms_per_step": round(_gpu_ms(one, links), 2),
            "passes_over_memory_ms_per_step": round(saved[one.rank], 2),
        },
    )


def _dropped(item: RankProgram) -> Mask:
    """All links of a chain but the longest one between two other kernels of a step."""
    dropped = item.has(Tag.CHAIN)
    table = item.table
    other = (table.kind != ComputeKind.POINTWISE) | ((table.tags & NOT_FUSED) != 0)
    part = np.cumsum((item.compute & other) | (table.item == Item.STEP))
    rows = np.flatnonzero(dropped)
    order = rows[np.lexsort((-table.gpu_ns[rows], part[rows]))]
    dropped[order[np.diff(part[order], prepend=-1) > 0]] = False
    return dropped


def _gpu_ms(item: RankProgram, rows: Mask) -> float:
    return item.per_step(np.where(rows, item.table.gpu_ns, 0))


SPEC = MistakeSpec(
    id="elementwise_chains",
    before="""\
def activation(x):
    return 0.5 * x * (1 + torch.tanh(0.79788 * (x + 0.044715 * x**3)))
""",
    after="""\
def activation(x):
    return F.gelu(x, approximate="tanh")
""",
    predicted_by=(
        "replay with one kernel per chain, which moves as many bytes as the chain's longest kernel. "
        "Normalisations and reductions do not change, and end a chain. Host work stays the same, because a "
        "compiled function saved no host work on one H200"
    ),
    captures=(),
    look=_look,
    shown_by="traces",
    least_gain=1.05,
)
