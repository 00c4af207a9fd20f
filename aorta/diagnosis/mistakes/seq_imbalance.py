"""Uneven sequence lengths.

What it finds:
    Compute times differ between ranks in each step, and the late rank changes from step to step.
Why it costs time:
    In each step, all ranks wait for the rank with the longest sequences. On average, no rank has more work,
    but all ranks still wait.
What to do:
    Bucket samples by length, or pack sequences to a fixed number of tokens per rank.
"""

from __future__ import annotations

import numpy as np

from aorta.diagnosis.mistake import MistakeSpec, Program, RankProgram, Sign
from aorta.diagnosis.mistakes._compute import differences
from aorta.metrics.line_replay import ReplayChanges

_LEAST_SHARE = 0.1
_LEAST_STEPS = 3


def _look(program: Program) -> Sign | None:
    if len(program.ranks) < 2:
        return None
    found = differences(program)
    table = np.stack(list(found.by_step.values()))
    if table.shape[1] < _LEAST_STEPS or found.slow(program):
        return None
    last = table.argmax(axis=0)
    lost = float((table.max(axis=0) - table.mean(axis=0)).mean())
    if program.share(lost) < _LEAST_SHARE or len(np.unique(last)) < 2:
        return None
    means = np.maximum(table.mean(axis=0), 1e-9)
    return Sign(
        {
            rank: _fixed(item, dict(zip(steps_of(program), column / means, strict=True)))
            for (rank, item), column in zip(program.ranks.items(), table, strict=True)
        },
        evidence={"lost_ms_per_step": round(lost, 2), "late_ranks": len(np.unique(last))},
    )


def steps_of(program: Program) -> list[int]:
    """The steps that all ranks have."""
    return sorted(set.intersection(*(set(item.table.step.tolist()) for item in program.ranks.values())))


def _fixed(item: RankProgram, ratio: dict[int, float]) -> ReplayChanges:
    gpu = item.table.gpu_ns.astype(np.float64)
    each = np.array([ratio.get(step, 1.0) for step in item.table.step.tolist()])
    gpu[item.compute] /= np.maximum(each[item.compute], 1e-9)
    return ReplayChanges(gpu_ns=gpu)


SPEC = MistakeSpec(
    id="seq_imbalance",
    before="""\
sampler = DistributedSampler(dataset, shuffle=True)
""",
    after="""\
sampler = LengthGroupedSampler(lengths, batch_size, world_size)
""",
    predicted_by="replay in which each rank's compute takes the mean of all ranks in each step",
    captures=(),
    look=_look,
    shown_by="traces",
    of_ranks=True,
)
