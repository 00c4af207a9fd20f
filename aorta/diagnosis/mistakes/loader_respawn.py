"""Loader workers that restart in each epoch.

What it finds:
    Between two calls of a loader with workers, the host does nothing for a long time, because the workers
    restart in each epoch.
Why it costs time:
    Without `persistent_workers`, the loader restarts its processes in each epoch. They import the
    program, open the data and fill the queue while the GPU waits.
What to do:
    Create the loader once, before the first epoch, with `persistent_workers=True`. With very short epochs,
    repeat the data set within one epoch.
"""

from __future__ import annotations

import numpy as np

from aorta.artefacts.hostline import Item, Tag
from aorta.artefacts.mistakes import MistakePlace
from aorta.artefacts.weight import Estimate
from aorta.diagnosis.mistake import MistakeSpec, ObservedSign, Program, RankProgram, Sign
from aorta.diagnosis.mistakes._recorded import recorded, starts_ms, without_share
from aorta.diagnosis.mistakes._recurring import often
from aorta.diagnosis.observation import Observation
from aorta.metrics.line_replay import ReplayChanges

_LEAST_SHARE = 0.05


def _look(program: Program) -> Sign | None:
    ranks = program.most(lambda item: program.share(_cost_ms(item)) >= _LEAST_SHARE)
    if not ranks:
        return None
    one = program.ranks[ranks[0]]
    return Sign(
        {rank: _fixed(program.ranks[rank]) for rank in ranks},
        often=often(one.numbers, np.unique(one.table.step[one.tag_ns(Tag.LOADER_START) > 0])),
        where=program.where(Tag.LOADER_START) or MistakePlace(function="DataLoader.__iter__"),
        evidence={
            "starts_per_step": round(one.count(one.tag_ns(Tag.LOADER_START) > 0), 3),
            "start_ms_per_step": round(_cost_ms(one), 2),
        },
    )


def _cost_ms(item: RankProgram) -> float:
    return item.tagged_ms(Tag.LOADER_START)


def _fixed(item: RankProgram) -> ReplayChanges:
    left = item.work_ns - item.tag_ns(Tag.LOADER_START)
    return ReplayChanges(work_ns=np.maximum(left, 0.0), unheld=item.table.item == Item.LOADER)


def _observe(seen: Observation) -> ObservedSign | None:
    records = recorded(seen)
    if records is None:
        return None
    step_ms = max(row.step_ms for row in records.rows)
    cost = {row.rank: starts_ms(seen, [row.rank]) for row in records.rows}
    if 2 * sum(ms >= _LEAST_SHARE * step_ms for ms in cost.values()) <= len(cost):
        return None
    starts = max(one.loader_starts or 0 for one in seen.host.stacks.values())
    gain = without_share(max(cost.values()) / step_ms, once=starts < 2)
    # Workers of all ranks start at once, or those of each rank while the others wait.
    most = without_share(sum(cost.values()) / step_ms, once=False)
    return ObservedSign(
        Estimate(value=gain.value, low=gain.low, high=max(gain.high, most.value)),
        evidence={"starts": starts, "start_ms_per_step": round(max(cost.values()), 2)},
    )


SPEC = MistakeSpec(
    id="loader_respawn",
    before="""\
loader = DataLoader(dataset, batch_size=32, num_workers=8)
""",
    after="""\
loader = DataLoader(dataset, batch_size=32, num_workers=8, persistent_workers=True)
""",
    predicted_by=("replay without the time in which workers start. Every batch is ready in time"),
    captures=("loader_respawn",),
    look=_look,
    shown_by="traces, or the hooks' count of worker starts",
    observe=_observe,
    parts=("data",),
)
