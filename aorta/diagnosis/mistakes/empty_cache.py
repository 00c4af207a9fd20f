"""empty_cache() or gc.collect() in every step.

What it finds:
    In nearly every step, memory is returned to the driver and allocated again (`cudaFree` and `cudaMalloc`).
Why it costs time:
    `cudaFree` waits for the whole GPU, and each `cudaMalloc` takes up to a millisecond. A full garbage
    collection walks all Python objects.
What to do:
    Remove `torch.cuda.empty_cache()` and `gc.collect()` from the loop. Call them only after an evaluation,
    if at all.
"""

from __future__ import annotations

import numpy as np

from aorta.artefacts.hostline import Tag
from aorta.diagnosis.mistake import MistakeSpec, Program, RankProgram, Sign
from aorta.metrics.line_replay import Floats, ReplayChanges

_LEAST_STEPS = 0.8
_LEAST_CALLS = 4.0
_LEAST_SHARE = 0.02


def _look(program: Program) -> Sign | None:
    def frees(item: RankProgram) -> bool:
        counts = item.line.census.counts
        each = counts.get("allocating_steps", 0.0) >= _LEAST_STEPS
        many = counts.get("allocator_calls", 0.0) >= _LEAST_CALLS and counts.get("frees", 0.0) > 0.0
        cost = item.tagged_ms(Tag.ALLOCATOR) + item.per_step(_behind(item))
        return each and many and program.share(cost) >= _LEAST_SHARE

    ranks = [rank for rank, item in program.ranks.items() if frees(item)]
    if not ranks:
        return None
    one = program.ranks[ranks[0]]
    return Sign(
        {rank: _fixed(program.ranks[rank]) for rank in ranks},
        ranks=ranks if len(ranks) < len(program.ranks) else (),
        where=program.where(Tag.ALLOCATOR, ranks),
        evidence={
            "allocator_calls_per_step": round(one.line.census.counts["allocator_calls"], 1),
            "allocator_ms_per_step": round(one.tagged_ms(Tag.ALLOCATOR), 2),
            "silent_ms_per_step": round(one.per_step(_behind(one)), 2),
        },
    )


def _behind(item: RankProgram) -> Floats:
    """Silent Python time in the stretches in which memory is given back."""
    return np.where(item.tag_ns(Tag.ALLOCATOR) > 0, item.tag_ns(Tag.SILENT), 0.0)


def _fixed(item: RankProgram) -> ReplayChanges:
    left = item.work_ns - item.tag_ns(Tag.ALLOCATOR) - _behind(item)
    return ReplayChanges(work_ns=np.maximum(left, 0.0), unheld=item.has(Tag.ALLOCATOR))


SPEC = MistakeSpec(
    id="empty_cache",
    before="""\
loss.backward()
optimizer.step()
torch.cuda.empty_cache()
gc.collect()
""",
    after="""\
loss.backward()
optimizer.step()
""",
    predicted_by=("replay without the allocator's driver calls and the silent Python time right after them"),
    captures=(
        "empty_cache",
        "empty_cache (two H200, records and traces)",
    ),
    look=_look,
    shown_by="traces",
    parts=("other",),
)
