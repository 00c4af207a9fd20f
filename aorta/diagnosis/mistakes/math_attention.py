"""Attention that materialises its scores.

What it finds:
    Softmax kernels over attention scores take more than a twentieth of the compute time, and no fused
    attention kernel runs.
Why it costs time:
    Each layer writes and reads tensors of batch × heads × length × length several times: scores, mask,
    softmax, dropout. Memory bandwidth is the limit, not arithmetic.
What to do:
    Call `torch.nn.functional.scaled_dot_product_attention` (flash attention), with `is_causal=True`
    instead of a mask tensor.
"""

from __future__ import annotations

import numpy as np

from aorta.artefacts.hostline import ComputeKind, Tag
from aorta.diagnosis.mistake import Mask, MistakeSpec, Program, RankProgram, Sign
from aorta.metrics.line_replay import Floats, ReplayChanges

_LEAST_SHARE = 0.05
_LEAST_LAUNCHES = 2.0
_SAME_SIZE = 0.5


def _look(program: Program) -> Sign | None:
    ranks = program.most(_materialises)
    if not ranks:
        return None
    one = program.ranks[ranks[0]]
    return Sign(
        {rank: _fixed(program.ranks[rank]) for rank in ranks},
        evidence={
            "softmax_ms_per_step": round(one.per_step(_time(one, _softmax(one))), 2),
            "score_sized_ms_per_step": round(one.per_step(_time(one, _score_sized(one))), 2),
        },
    )


def _materialises(item: RankProgram) -> bool:
    softmax, whole = _time(item, _softmax(item)).sum(), _time(item, item.compute).sum()
    if item.launched(ComputeKind.ATTENTION).any() or whole <= 0:
        return False
    return bool(softmax >= _LEAST_SHARE * whole) and item.count(_softmax(item)) >= _LEAST_LAUNCHES


def _softmax(item: RankProgram) -> Mask:
    return item.launched(ComputeKind.SOFTMAX)


def _time(item: RankProgram, rows: Mask) -> Floats:
    return np.where(rows, item.table.gpu_ns.astype(np.float64), 0.0)


def _score_sized(item: RankProgram) -> Mask:
    typical = float(np.median(item.table.gpu_ns[_softmax(item)]))
    long = item.table.gpu_ns >= _SAME_SIZE * typical
    others = item.launched(ComputeKind.ELEMENTWISE, ComputeKind.COPY) & ~item.has(Tag.OPTIMIZER)
    return np.asarray(_softmax(item) | (others & long), dtype=np.bool_)


def _fixed(item: RankProgram) -> ReplayChanges:
    rows = _score_sized(item)
    return ReplayChanges(gpu_ns=np.where(rows, 0.0, item.table.gpu_ns.astype(np.float64)))


SPEC = MistakeSpec(
    id="math_attention",
    before="""\
scores = q @ k.transpose(-2, -1) / math.sqrt(d)
scores = scores.masked_fill(mask, float("-inf"))
out = scores.softmax(-1) @ v
""",
    after="""\
out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
""",
    predicted_by=(
        "replay without the softmax kernels and the elementwise kernels that take as long, which "
        "are of the scores' size"
    ),
    captures=("math_attention (one H200)",),
    look=_look,
    shown_by="traces",
)
