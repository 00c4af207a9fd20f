"""Matrix products without tensor cores.

What it finds:
    Matrix products run in plain fp32 for more than a tenth of the step.
Why it costs time:
    Tensor cores multiply 8 to 15 times faster than the other units of the same card. Products in fp32
    do not use them unless TF32 is allowed.
What to do:
    Use bf16 autocast, or allow TF32 where fp32 is needed: `torch.set_float32_matmul_precision("high")`.
"""

from __future__ import annotations

import numpy as np

from aorta.artefacts.hostline import ComputeKind
from aorta.diagnosis.mistake import MistakeSpec, Program, RankProgram, Sign
from aorta.metrics.line_replay import Floats, ReplayChanges

_LEAST_SHARE = 0.1
_FASTER = 0.6 * 15
_ATTENTION_FASTER = _FASTER / 3


def _look(program: Program) -> Sign | None:
    costs = {rank: item.per_step(_plain_ns(item)) for rank, item in program.ranks.items()}
    ranks = program.most(lambda item: program.share(costs[item.rank]) >= _LEAST_SHARE)
    if not ranks:
        return None
    return Sign(
        {rank: _fixed(program.ranks[rank]) for rank in ranks},
        evidence={"plain_matmul_ms_per_step": round(max(costs.values()), 2)},
    )


def _plain_ns(item: RankProgram) -> Floats:
    return np.where(item.launched(ComputeKind.PLAIN_MATMUL), item.table.gpu_ns, 0).astype(np.float64)


def _fixed(item: RankProgram) -> ReplayChanges:
    gpu = item.table.gpu_ns.astype(np.float64)
    gpu[item.launched(ComputeKind.PLAIN_MATMUL)] /= _FASTER
    gpu[item.launched(ComputeKind.ATTENTION)] /= _ATTENTION_FASTER
    return ReplayChanges(gpu_ns=gpu)


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
        "replay with these products at 60 % of the ratio of dense bf16 to fp32 peak of a current "
        "card (15), fp32 attention at a third of that"
    ),
    captures=("fp32_matmul",),
    look=_look,
    shown_by="traces",
)
