"""One small collective per metric.

What it finds:
    More than four collectives of at most 4 KB run per step.
Why it costs time:
    Each small all-reduce costs a launch and a round trip, and makes all ranks wait for the last one. A
    value that is read afterwards also makes the host wait.
What to do:
    Put all metrics into one tensor, and reduce this tensor only once every few steps.
"""

from __future__ import annotations

import numpy as np

from aorta.artefacts.events import ABSENT
from aorta.artefacts.hostline import Tag
from aorta.diagnosis.mistake import Mask, MistakeSpec, ObservedSign, Program, RankProgram, Sign
from aorta.diagnosis.mistakes._recorded import recorded, without_share
from aorta.diagnosis.observation import Observation
from aorta.metrics.line_replay import ReplayChanges
from aorta.metrics.recorded_calls import REDUCTIONS, SMALL_BYTES

_LEAST = 4.0
_LEAST_SHARE = 0.05
"""Share of the step that small calls take by the step records; less is no mistake."""
_MOSTLY = 0.5


def _look(program: Program) -> Sign | None:
    ranks = program.most(lambda item: item.count(_tiny(item)) > _LEAST and _reduces(item))
    if not ranks:
        return None
    one = program.ranks[ranks[0]]
    return Sign(
        {rank: _fixed(program.ranks[rank]) for rank in ranks},
        where=program.where(Tag.COLLECTIVE),
        evidence={"small_collectives_per_step": round(one.count(_tiny(one)), 1)},
    )


def _tiny(item: RankProgram) -> Mask:
    size = item.table.bytes
    tiny = (item.table.group != ABSENT) & (size > 0) & (size <= SMALL_BYTES)
    return np.asarray(tiny & ~item.has(Tag.BACKWARD), dtype=np.bool_)


def _reduces(item: RankProgram) -> bool:
    """True if most small collectives are reductions outside of the backward pass.

    Statistics of SyncBatchNorm are gathered and experts' counts exchanged, and belong to the model.
    """
    counts = item.line.census.counts
    named = [counts[name] for name in REDUCTIONS if name in counts]
    calls = item.table.group != ABSENT
    backward = item.count(np.asarray(calls & item.has(Tag.BACKWARD), dtype=np.bool_))
    return not named or sum(named) - backward >= _MOSTLY * item.count(_tiny(item))


def _fixed(item: RankProgram) -> ReplayChanges:
    rows = _tiny(item)
    work = item.work_ns - np.where(rows, item.tag_ns(Tag.COLLECTIVE), 0.0)
    return ReplayChanges(work_ns=np.maximum(work, 0.0), dropped=rows)


def _observe(seen: Observation) -> ObservedSign | None:
    records = recorded(seen)
    calls = {} if records is None else records.calls
    if records is None or len(calls) < len(records.rows):
        return None
    count = min(item.small for item in calls.values())
    # The rank that comes last waits for nobody, and one call remains.
    cost = min(item.small_ms for item in calls.values()) * (1.0 - 1.0 / max(count, 1.0))
    share = cost / max(row.step_ms for row in records.rows)
    # An optimizer that computes the loss again, such as LBFGS, has to exchange its values each time.
    each = min(item.small / max(item.passes, 1) for item in calls.values())
    if each <= _LEAST or share < _LEAST_SHARE:
        return None
    return ObservedSign(
        without_share(share, once=False), evidence={"small_collectives_per_step": round(count, 1)}
    )


SPEC = MistakeSpec(
    id="metric_reduces",
    before="""\
for value in (loss, accuracy, norm):
    dist.all_reduce(value)
""",
    after="""\
if step % 50 == 0:
    values = torch.stack((loss, accuracy, norm))
    dist.all_reduce(values)
""",
    predicted_by="replay without these collectives and their preparation",
    captures=("metric_reduces (two H200, records and traces)",),
    look=_look,
    observe=_observe,
    shown_by="step records and traces",
    parts=("other",),
)
