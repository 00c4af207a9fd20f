"""Evaluation on one rank while the others wait.

What it finds:
    One rank launches many more compute kernels than the others in some steps.
Why it costs time:
    The other ranks reach the next all-reduce and wait until the evaluation is over.
What to do:
    Let each rank evaluate a part of the data, and reduce the results. Or evaluate checkpoints in another job.
"""

from __future__ import annotations

import numpy as np

from aorta.diagnosis.mistake import MistakeSpec, ObservedSign, Program, RankProgram, Sign
from aorta.diagnosis.mistakes._compute import reads_values, without_beyond
from aorta.diagnosis.mistakes._recorded import (
    gain_without,
    longer_hosts,
    own_place,
    recorded,
    without_share,
)
from aorta.diagnosis.mistakes._recurring import often
from aorta.diagnosis.observation import Observation
from aorta.metrics.line_replay import ReplayChanges

_MORE = 1.3
_LEAST_SHARE = 0.1


def _look(program: Program) -> Sign | None:
    if len(program.ranks) < 2:
        return None
    counts = {rank: item.by_step(item.compute) for rank, item in program.ranks.items()}
    typical = float(np.percentile([count.max() for count in counts.values()], 50, method="lower"))
    more = [
        rank
        for rank, count in counts.items()
        if count.max() >= _MORE * typical
        and not reads_values(program, rank, float(np.maximum(count - typical, 0).mean()))
    ]
    if not more or 2 * len(more) > len(counts):
        return None
    changes = {rank: without_beyond(program.ranks[rank], typical) for rank in more}
    cost = {rank: _cost_ms(program.ranks[rank], changes[rank]) for rank in more}
    ranks = [rank for rank in more if program.share(cost[rank]) >= _LEAST_SHARE]
    if not ranks:
        return None
    most = max(ranks, key=cost.__getitem__)
    numbers = program.ranks[most].numbers
    return Sign(
        {rank: changes[rank] for rank in ranks},
        ranks=ranks,
        often=often(numbers, numbers[counts[most] >= _MORE * typical]),
        evidence={
            "kernels_per_step": {str(rank): round(float(count.mean()), 1) for rank, count in counts.items()}
        },
    )


def _cost_ms(item: RankProgram, change: ReplayChanges) -> float:
    assert change.work_ns is not None
    return item.per_step(item.work_ns - change.work_ns)


def _observe(seen: Observation) -> ObservedSign | None:
    """Validations that only some ranks have, or a forward pass outside of the one that trains."""
    records = recorded(seen)
    if records is None:
        return None
    found = records.rare.get("validation", {})
    ranks = [rank for rank, item in found.items() if item.share >= _LEAST_SHARE]
    others = [found[row.rank].share for row in records.rows if row.rank in found and row.rank not in ranks]
    if ranks and 2 * len(ranks) <= len(records.rows) and not others:
        most = max(ranks, key=lambda rank: found[rank].share)
        return ObservedSign(
            without_share(found[most].share, once=found[most].count < 2),
            ranks=ranks,
            evidence={"share_of_time": {str(rank): round(item.share, 3) for rank, item in found.items()}},
        )
    longer = longer_hosts(records)
    if own_place(seen.host.stacks, longer, forward=True) is None:
        return None
    return ObservedSign(
        gain_without(records, "host", sorted(longer)),
        ranks=sorted(longer),
        evidence={"host_ms_per_step": {str(row.rank): round(row.host_ms, 2) for row in records.rows}},
    )


SPEC = MistakeSpec(
    id="rank0_evaluation",
    before="""\
if rank == 0 and step % 100 == 0:
    evaluate(model, everything)
""",
    after="""\
if step % 100 == 0:
    evaluate(model, my_part_of_it)
""",
    predicted_by=("replay without the launches and the work that only this rank does in these steps"),
    captures=(),
    look=_look,
    shown_by="traces, and step records with sampled stacks",
    observe=_observe,
    parts=("other",),
    of_equal_ranks=True,
    of_ranks=True,
)
