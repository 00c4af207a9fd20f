"""Blocking copies from pageable memory.

What it finds:
    Copies from pageable host memory to the GPU block the host for more than a twentieth of the step.
Why it costs time:
    The driver copies pageable memory through its own small buffer. This is slower than the link, and the
    host waits for the copy.
What to do:
    Pin the batches (`pin_memory=True` in the loader) and copy with `non_blocking=True`.
"""

from __future__ import annotations

import numpy as np

from aorta.artefacts.hostline import ComputeKind, Tag
from aorta.diagnosis.mistake import Mask, MistakeSpec, Program, RankProgram, Sign
from aorta.metrics.cards import card_of
from aorta.metrics.line_replay import ReplayChanges

_LEAST_SHARE = 0.05
_BYTES_PER_NS = 20.0
"""The rate of copies from pinned memory on a card that is not in the table, in GB/s."""
_REACHED = 0.8
"""Share of its link's peak that a copy reaches."""
_PINNING = 1.3
"""Time of a loader's thread that copies a batch to pinned memory, over that of the driver's pageable copy.
Both move the bytes with one core, and the thread waits for the interpreter besides.
"""


def _look(program: Program) -> Sign | None:
    costs = {rank: _held_ms(item) for rank, item in program.ranks.items()}
    ranks = [rank for rank, ms in costs.items() if program.share(ms) >= _LEAST_SHARE]
    if not ranks:
        return None
    one = program.ranks[ranks[0]]
    size = one.table.bytes[_slow(one)]
    return Sign(
        {rank: _fixed(program.ranks[rank]) for rank in ranks},
        ranks=ranks if len(ranks) < len(program.ranks) else (),
        where=program.where(Tag.PAGEABLE, ranks),
        evidence={
            "held_ms_per_step": round(max(costs.values()), 2),
            "mb_per_step": round(float(np.maximum(size, 0).sum()) / one.steps / 1e6, 1),
        },
        floor_ns=max(_pinning_ns(program.ranks[rank]) for rank in ranks),
    )


def _slow(item: RankProgram) -> Mask:
    return item.launched(ComputeKind.PAGEABLE_COPY)


def _held_ms(item: RankProgram) -> float:
    return item.per_step(np.where(_slow(item), item.table.held_ns, 0))


def _pinning_ns(item: RankProgram) -> float:
    """Returns how long a thread of the loader copies the same bytes to pinned memory, per step."""
    return _PINNING * float(item.table.gpu_ns[_slow(item)].sum()) / item.steps


def _fixed(item: RankProgram) -> ReplayChanges:
    rows, gpu = _slow(item), item.table.gpu_ns.astype(np.float64)
    known = rows & (item.table.bytes > 0)
    card = card_of(item.line.census.gpu)
    rate = _BYTES_PER_NS if card is None else _REACHED * card.link_gb_s
    gpu[known] = np.minimum(gpu[known], item.table.bytes[known] / rate)
    return ReplayChanges(gpu_ns=gpu, unheld=rows)


SPEC = MistakeSpec(
    id="pageable_copy",
    before="""\
images = images.to("cuda")
""",
    after="""\
loader = DataLoader(dataset, num_workers=8, pin_memory=True)
images = images.to("cuda", non_blocking=True)
""",
    predicted_by=(
        "replay in which the host does not wait for these copies. Each copy runs at 80 % of the rate of the "
        "card's link. The step is at least as long as the loader's thread needs to pin a batch"
    ),
    captures=(
        "pageable_copy",
        "nsys_pageable_copy",
        "pageable_copy (two H200, records and traces)",
    ),
    look=_look,
    shown_by="traces",
    parts=("other",),
)
