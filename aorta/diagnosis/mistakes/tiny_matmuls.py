"""Loops of tiny matrix products.

What it finds:
    A loop over heads, experts, models or time steps computes a tiny matrix product in each iteration. Each
    product takes at most 15 µs on the GPU, and there are twelve or more in a row.
Why it costs time:
    A tiny product uses few of the GPU's multiprocessors and reaches only a fraction of its peak. The host
    also has to launch each product and the kernels around it.
What to do:
    Stack the operands, and compute all iterations in one product: `torch.bmm`, `torch.einsum`, a grouped
    product. For a recurrent network, call `nn.LSTM` or `nn.GRU` on the whole sequence.
"""

from __future__ import annotations

import numpy as np

from aorta.artefacts.hostline import PRODUCTS, Item, Tag
from aorta.diagnosis.mistake import Mask, MistakeSpec, Program, RankProgram, Sign
from aorta.metrics.line_replay import Floats, ReplayChanges

_LEAST_SHARE = 0.1
_FILLED = 0.25
"""Share of the GPU that a tiny product fills, at most: so much of the rounds' time is left in one product."""
_FEWER_WEIGHTS = 1.8
"""Gain beyond the replay's, where each round has own weights: the optimizer gets fewer of them, too."""


def _look(program: Program) -> Sign | None:
    ranks = program.most(lambda item: program.share(_cost_ms(item)) >= _LEAST_SHARE)
    if not ranks:
        return None
    one = program.ranks[ranks[0]]
    products = one.has(Tag.LOOP) & one.launched(*PRODUCTS)
    took = one.table.gpu_ns[products]
    return Sign(
        {rank: _fixed(program.ranks[rank]) for rank in ranks},
        where=program.where(Tag.LOOP, ranks),
        reach=_FEWER_WEIGHTS,
        evidence={
            "products_per_step": round(one.count(products), 1),
            "product_us": round(float(np.median(took)) / 1e3, 1),
            "host_ms_per_step": round(one.per_step(_work(one)), 2),
        },
    )


def _rounds(item: RankProgram) -> Mask:
    return np.asarray(item.has(Tag.LOOP) & (item.table.item == Item.LAUNCH), dtype=np.bool_)


def _work(item: RankProgram) -> Floats:
    return np.where(_rounds(item), item.work_ns, 0.0)


def _cost_ms(item: RankProgram) -> float:
    gpu = (1 - _FILLED) * item.per_step(np.where(_rounds(item), item.table.gpu_ns, 0))
    return max(item.per_step(_work(item)), gpu)


def _fixed(item: RankProgram) -> ReplayChanges:
    """The first round of each loop does the work of all, in one launch of each kind."""
    rounds = _rounds(item)
    gpu = item.table.gpu_ns.astype(np.float64)
    # Rounds follow their first one, so the last kernel that remains before them belongs to it.
    remains = np.where(item.compute & ~rounds, np.arange(len(gpu)), -1)
    first = np.maximum.accumulate(remains)[rounds]
    np.add.at(gpu, first[first >= 0], _FILLED * gpu[rounds][first >= 0])
    return ReplayChanges(work_ns=item.work_ns - _work(item), gpu_ns=gpu, dropped=rounds)


SPEC = MistakeSpec(
    id="tiny_matmuls",
    before="""\
outs = [expert(x[i]) for i, expert in enumerate(experts)]
out = torch.stack(outs)
""",
    after="""\
out = torch.bmm(F.gelu(torch.bmm(x, up)), down)
""",
    predicted_by=(
        "replay with only the launches of the first iteration. On the GPU, these take longer by a quarter of "
        "the other iterations' time. The upper end of the range is higher than the replay, because the "
        "optimizer has less work with a single tensor of weights"
    ),
    captures=(),
    look=_look,
    shown_by="traces",
    parts=("forward",),
    least_gain=1.05,
)
