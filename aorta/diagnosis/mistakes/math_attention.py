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

from aorta.artefacts.events import Column
from aorta.artefacts.hostline import ComputeKind
from aorta.diagnosis.mistake import Mask, MistakeSpec, Program, RankProgram, Sign
from aorta.diagnosis.mistakes._compute import products, products_of_scores
from aorta.metrics.line_replay import Floats, ReplayChanges

_LEAST_SHARE = 0.05
_LEAST_LAUNCHES = 2.0
_BLOCKED = 0.5
"""Products of scores within one attention kernel, over the same ones with the scores in memory."""


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
    """The softmax kernels, and what lies between them and the nearest matrix products."""
    places = np.flatnonzero(products(item))
    found = _softmax(item)
    first, after = _around(places, np.flatnonzero(found))
    for begin, end in zip(first.tolist(), after.tolist(), strict=True):
        found[begin + 1 : end] |= item.compute[begin + 1 : end]
    return found


def _around(places: Column, rows: Column) -> tuple[Column, Column]:
    """The nearest product before and after each row that has both."""
    place = np.searchsorted(places, rows)
    both = (place > 0) & (place < len(places))
    return places[place[both] - 1], places[place[both]]


def _fixed(item: RankProgram) -> ReplayChanges:
    """Without the scores: one kernel computes the products in blocks, in half of their time."""
    rows, blocked = _score_sized(item), products_of_scores(item)
    gpu = item.table.gpu_ns.astype(np.float64)
    gpu[blocked] *= _BLOCKED
    return ReplayChanges(work_ns=np.where(rows, 0.0, item.work_ns), gpu_ns=gpu, dropped=rows)


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
        "replay without the softmax kernels and all kernels between them and the nearest matrix products. "
        "These products take half the time"
    ),
    captures=(
        "math_attention (one H200)",
        "math_attention (two H200, records and traces)",
    ),
    look=_look,
    shown_by="traces",
)
