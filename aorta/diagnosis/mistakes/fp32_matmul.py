"""Matrix products without tensor cores.

What it finds:
    Matrix products run in plain fp32 for more than a tenth of the step.
Why it costs time:
    Tensor cores multiply 8 to 15 times as fast as the other units of the same card. Products in fp32
    do not use them unless TF32 is allowed.
What to do:
    Use bf16 autocast, or allow TF32 where fp32 is needed: `torch.set_float32_matmul_precision("high")`.
"""

from __future__ import annotations

import numpy as np

from aorta.artefacts.hostline import ComputeKind
from aorta.diagnosis.mistake import Mask, MistakeSpec, Program, RankProgram, Sign
from aorta.diagnosis.mistakes._compute import products_of_scores
from aorta.metrics.cards import card_of
from aorta.metrics.line_replay import Floats, ReplayChanges

_LEAST_SHARE = 0.1
_PEAKS = 15.0
"""Dense bf16 peak over fp32 peak of a card that is not in the table: near those of an A100 and an H100."""
_REACHED = 0.8
"""Share of the ratio of the peaks that products reach: the faster ones wait more for memory."""
_CASTS = 0.5
"""Host work per product for autocast's casts, over that of a typical launch: one cast, half as costly."""
_ATTENTION = 0.5
"""And of that ratio, what attention reaches."""


def _look(program: Program) -> Sign | None:
    costs = {rank: item.per_step(_plain_ns(item)) for rank, item in program.ranks.items()}
    ranks = program.most(lambda item: program.share(costs[item.rank]) >= _LEAST_SHARE)
    if not ranks:
        return None
    return Sign(
        {rank: _fixed(program.ranks[rank]) for rank in ranks},
        evidence={"plain_matmul_ms_per_step": round(max(costs.values()), 2)},
    )


def _plain(item: RankProgram) -> Mask:
    """Products in fp32. Scores that only materialised attention has in fp32 are a mistake of their own."""
    plain = item.launched(ComputeKind.PLAIN_MATMUL)
    mixed = item.launched(ComputeKind.TENSOR_MATMUL).any()
    return plain & ~products_of_scores(item) if mixed else plain


def _plain_ns(item: RankProgram) -> Floats:
    return np.where(_plain(item), item.table.gpu_ns, 0).astype(np.float64)


def _fixed(item: RankProgram) -> ReplayChanges:
    """Faster products, and a host that launches the casts of autocast, too."""
    rows = _plain(item)
    gpu, work = item.table.gpu_ns.astype(np.float64), item.work_ns.copy()
    card = card_of(item.line.census.gpu)
    peaks = _PEAKS if card is None else card.tensor_tflops / card.fp32_tflops
    faster = max(_REACHED * peaks, 1.0)
    gpu[rows] /= faster
    gpu[item.launched(ComputeKind.ATTENTION)] /= max(_ATTENTION * faster, 1.0)
    work[rows] += _CASTS * float(np.median(item.work_ns[item.compute]))
    return ReplayChanges(work_ns=work, gpu_ns=gpu)


SPEC = MistakeSpec(
    id="fp32_matmul",
    before="""\
loss = model(batch)
""",
    after="""\
with torch.autocast("cuda", torch.bfloat16):
    loss = model(batch)
""",
    predicted_by=(
        "replay with faster products and one cast per product. The speed-up of the products is 80 % of the "
        "ratio between the card's dense bf16 peak and its fp32 peak. Attention in fp32 speeds up by half as "
        "much"
    ),
    captures=(
        "fp32_matmul",
        "fp32_matmul (two H200, records and traces)",
    ),
    look=_look,
    shown_by="traces",
)
