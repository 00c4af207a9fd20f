"""Recomputation although memory is free.

What it finds:
    Forward operators run again inside the backward pass (activation checkpointing), for more than a
    twentieth of the step.
Why it costs time:
    Recomputation saves memory and costs a second forward pass. If memory is free, nothing is gained. A trace
    does not show how much memory is free, so check the peak before you switch off recomputation.
What to do:
    Switch activation checkpointing off, or checkpoint only as many blocks as memory needs.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from aorta.artefacts.hostline import Tag
from aorta.diagnosis.mistake import MistakeSpec, Program, RankProgram, Sign
from aorta.diagnosis.observation import Observation
from aorta.metrics.line_replay import ReplayChanges

_LEAST_SHARE = 0.05
_FULL_PCT = 70.0
_HOOKS = 0.6
"""Time for saving and fetching tensors through Python hooks ÷ host time of the recomputation. It was timed
per operator on a CPU, with a tiny transformer, in comparison with the cost of a launch.
"""


def _look(program: Program) -> Sign | None:
    ranks = program.most(lambda item: program.share(_cost_ms(item)) >= _LEAST_SHARE)
    if not ranks:
        return None
    one = program.ranks[ranks[0]]
    return Sign(
        {rank: _fixed(program.ranks[rank]) for rank in ranks},
        where=program.where(Tag.RECOMPUTE),
        evidence={
            "recomputed_host_ms_per_step": round(one.tagged_ms(Tag.RECOMPUTE), 2),
            "recomputed_gpu_ms_per_step": round(_gpu_ms(one), 2),
            "memory_free": None,
        },
    )


def _fixed(item: RankProgram) -> ReplayChanges:
    """Without the recomputation, and without the hooks around each tensor that is kept for it."""
    change = item.without(Tag.RECOMPUTE)
    assert change.work_ns is not None
    again = item.tag_ns(Tag.RECOMPUTE)
    hooked = np.maximum(change.work_ns - item.tag_ns(Tag.OPTIMIZER) - item.tag_ns(Tag.LOADER), 0.0)
    share = min(_HOOKS * float(again.sum()) / max(float(hooked.sum()), 1.0), 0.5)
    return replace(change, work_ns=change.work_ns - share * hooked)


def _gpu_ms(item: RankProgram) -> float:
    return item.per_step(np.where(item.has(Tag.RECOMPUTE), item.table.gpu_ns, 0))


def _cost_ms(item: RankProgram) -> float:
    return max(item.tagged_ms(Tag.RECOMPUTE), _gpu_ms(item))


def _excused(seen: Observation) -> bool:
    """True if the GPUs' memory is so full, even with recomputation, that the program needs it."""
    use = seen.monitored.utilization
    used = None if use is None else use.gpu_memory_used_pct
    return used is not None and used >= _FULL_PCT


SPEC = MistakeSpec(
    id="needless_checkpointing",
    before="""\
x = checkpoint(block, x, use_reentrant=False)
""",
    after="""\
x = block(x)
""",
    predicted_by=(
        "replay without the forward operators inside the backward pass, and without their hooks that save "
        "tensors"
    ),
    captures=(
        "needless_checkpointing",
        "needless_checkpointing (one H200)",
    ),
    look=_look,
    shown_by="traces; not reported if samples show GPU memory more than 70 % full",
    excused=_excused,
)
