"""Gradient accumulation without no_sync().

What it finds:
    DDP runs several forward and backward passes per optimizer step and exchanges the gradients in each.
Why it costs time:
    Only the last micro-batch needs the exchange, because the gradients of the others are added locally.
What to do:
    Wrap all micro-batches except the last one in `model.no_sync()`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aorta.artefacts.events import ABSENT
from aorta.artefacts.hostline import Item, Tag
from aorta.artefacts.mistakes import MistakePlace
from aorta.artefacts.weight import Estimate
from aorta.diagnosis.mistake import MistakeSpec, ObservedSign, Program, RankProgram, Sign
from aorta.diagnosis.mistakes._recorded import recorded, spread, without_share
from aorta.diagnosis.observation import Observation
from aorta.diagnosis.records_alone import ObservedRecords
from aorta.metrics.line_replay import ReplayChanges

_LEAST_PASSES = 1.9
_LEAST_RECORDED = 1.05


def _look(program: Program) -> Sign | None:
    ranks = program.most(lambda item: _passes(item) >= 2 and _calls(item) >= _passes(item))
    if not ranks:
        return None
    one = program.ranks[ranks[0]]
    if not all(_repeats(program.ranks[rank]) for rank in ranks):
        return None
    # An optimizer that computes the loss several times needs the gradients of all ranks each time.
    if (one.has(Tag.OPTIMIZER) & (one.table.group != ABSENT)).any():
        return None
    return Sign(
        {rank: _fixed(program.ranks[rank]) for rank in ranks},
        where=MistakePlace(function="DistributedDataParallel.forward"),
        evidence={"passes_per_step": _passes(one), "collectives_per_step": round(_calls(one), 1)},
    )


def _passes(item: RankProgram) -> int:
    counts = item.line.census.counts
    passes = counts.get("ddp_forward", 0.0) / max(counts.get("optimizer", 0.0), 1.0)
    return round(passes) if passes >= _LEAST_PASSES else 1


def _repeats(item: RankProgram) -> bool:
    """True if each pass exchanges what the others do: as many collectives, of the same sizes.

    A model that is called twice for one backward pass exchanges its gradients once.
    """
    passes = _passes(item)
    for step in item.numbers.tolist():
        sizes = item.table.bytes[(item.table.step == step) & (item.table.group != ABSENT)]
        each = len(sizes) // passes
        if len(sizes) % passes or (sizes.reshape(passes, each) != sizes[:each]).any():
            return False
    return True


def _calls(item: RankProgram) -> float:
    return item.count(item.table.group != ABSENT)


def _fixed(item: RankProgram) -> ReplayChanges:
    """Without the first passes' exchange; what belongs to it lies before the last pass's first collective."""
    table, passes = item.table, _passes(item)
    early = np.zeros(len(table), dtype=np.bool_)
    for step in np.unique(table.step).tolist():
        rows = np.flatnonzero((table.step == step) & (table.group != ABSENT))
        kept = len(rows) // passes
        if kept and len(rows) > kept:
            last = rows[len(rows) - kept - 1]
            early |= (table.step == step) & (np.arange(len(table)) <= last)
    exchange = early & ((table.group != ABSENT) | item.has(Tag.COLLECTIVE)) & (table.item == Item.LAUNCH)
    work = item.work_ns - np.where(early, item.tag_ns(Tag.COLLECTIVE), 0.0)
    return ReplayChanges(work_ns=np.maximum(work, 0.0), dropped=exchange)


def _observe(seen: Observation) -> ObservedSign | None:
    records = recorded(seen)
    calls = [] if records is None else list(records.calls.values())
    if records is None or not calls or len({(item.passes, item.gradients) for item in calls}) > 1:
        return None
    if not all(item.each_pass for item in calls):
        return None
    passes, sizes = calls[0].passes, calls[0].gradients
    each = len(sizes) // max(passes, 1)
    if passes < 2 or not each or sizes != sizes[:each] * passes:
        return None
    gain = _without_early(records, passes, sizes)
    # Records do not say whether an optimizer computes the loss several times, and needs the gradients of all
    # ranks each time: they are not asked about what costs nothing.
    if gain.value < _LEAST_RECORDED:
        return None
    return ObservedSign(
        gain,
        where=MistakePlace(function="DistributedDataParallel.forward"),
        evidence={"passes_per_step": passes, "collectives_per_step": float(len(sizes))},
    )


def _without_early(records: ObservedRecords, passes: int, sizes: Sequence[int]) -> Estimate:
    """The gain without the exchanges of all passes but the last."""
    replays = records.model.usable if records.model is not None else None
    if replays is None:
        shares = [row.exposed_comm_ms / row.step_ms * (1 - 1 / passes) for row in records.rows]
        value = without_share(min(shares), once=False)
        return Estimate(value=value.value, low=1.0, high=without_share(max(shares), once=False).high)
    groups = {place.group for place in replays.places() if place.op == "all_reduce" and place.bytes in sizes}
    early = len(sizes) - len(sizes) // passes
    made = replays.with_transfers({(group, number): 0.0 for group in groups for number in range(early)})
    ends = made.speedup_interval
    return spread(made.speedup, *(() if ends is None else (ends.low, ends.high)))


SPEC = MistakeSpec(
    id="no_no_sync",
    before="""\
for batch in micro_batches:
    model(batch).backward()
optimizer.step()
""",
    after="""\
for number, batch in enumerate(micro_batches):
    last = number == len(micro_batches) - 1
    with contextlib.nullcontext() if last else model.no_sync():
        model(batch).backward()
optimizer.step()
""",
    predicted_by="replay without the collectives and their preparation in all passes except the last one",
    captures=(
        "no_no_sync",
        "no_no_sync (two H200, records and traces)",
    ),
    look=_look,
    observe=_observe,
    shown_by="step records and traces",
)
