"""Allocator retries near full memory.

What it finds:
    In some steps, but not all, the allocator runs out of memory, returns memory to the driver and tries
    again.
Why it costs time:
    When memory is nearly full, the caching allocator frees its cache with `cudaFree`, which waits for the
    GPU, and then requests the memory again.
What to do:
    Lower the batch size, or reduce fragmentation: `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`.
"""

from __future__ import annotations

import numpy as np

from aorta.artefacts.hostline import Tag
from aorta.diagnosis.mistake import MistakeSpec, Program, RankProgram, Sign
from aorta.metrics.line_replay import ReplayChanges

_MOST_STEPS = 0.8
_LEAST_SHARE = 0.02


def _look(program: Program) -> Sign | None:
    ranks = [rank for rank, item in program.ranks.items() if _retries(program, item)]
    if not ranks:
        return None
    one = program.ranks[ranks[0]]
    return Sign(
        {rank: _fixed(program.ranks[rank]) for rank in ranks},
        ranks=ranks if len(ranks) < len(program.ranks) else (),
        where=program.where(Tag.ALLOCATOR, ranks),
        evidence={
            "frees_per_step": round(one.line.census.counts["frees"], 2),
            "allocator_ms_per_step": round(one.tagged_ms(Tag.ALLOCATOR), 2),
        },
    )


def _retries(program: Program, item: RankProgram) -> bool:
    counts = item.line.census.counts
    some = 0.0 < counts.get("allocating_steps", 0.0) < _MOST_STEPS and counts.get("frees", 0.0) > 0.0
    return some and program.share(item.tagged_ms(Tag.ALLOCATOR)) >= _LEAST_SHARE


def _fixed(item: RankProgram) -> ReplayChanges:
    left = item.work_ns - item.tag_ns(Tag.ALLOCATOR)
    return ReplayChanges(work_ns=np.maximum(left, 0.0), unheld=item.has(Tag.ALLOCATOR))


SPEC = MistakeSpec(
    id="alloc_retries",
    before="""\
python train.py  # batch size 64, 79 of 80 GB used
""",
    after="""\
PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python train.py
""",
    predicted_by="replay without the allocator's driver calls",
    captures=(),
    look=_look,
    shown_by="traces",
)
