"""Checkpoint inside the step.

What it finds:
    In some steps the host copies many tensors from the device, more than 8 MB in total. The step waits
    for these copies.
Why it costs time:
    The step stands still while weights and optimizer state are copied, packed and written.
What to do:
    Copy to pinned memory, write from another thread or process (`torch.distributed.checkpoint.async_save`),
    and write less often.
"""

from __future__ import annotations

import numpy as np

from aorta.artefacts.events import Column
from aorta.artefacts.hostline import ComputeKind, Tag
from aorta.artefacts.mistakes import MistakePlace
from aorta.diagnosis.mistake import Mask, MistakeSpec, ObservedSign, Program, RankProgram, Sign
from aorta.diagnosis.mistakes._recorded import recorded, without_share
from aorta.diagnosis.mistakes._recurring import often
from aorta.diagnosis.observation import Observation
from aorta.metrics.line_replay import ReplayChanges

_LEAST_COPIES = 20
_LEAST_BYTES = 8e6
_MOST_STEPS = 0.8
_LEAST_SHARE = 0.05


def _look(program: Program) -> Sign | None:
    ranks = [rank for rank, item in program.ranks.items() if _stalls(program, item)]
    if not ranks:
        return None
    one = program.ranks[ranks[0]]
    return Sign(
        {rank: _fixed(program.ranks[rank]) for rank in ranks},
        often=often(one.numbers, _steps(one)),
        ranks=ranks if len(ranks) < len(program.ranks) else (),
        where=program.where(Tag.SILENT, ranks),
        evidence={
            "steps_with_checkpoint": len(_steps(one)),
            "steps": one.steps,
            "ms_per_step": round(_cost_ms(one), 2),
        },
    )


def _steps(item: RankProgram) -> Column:
    """The steps in which many tensors are copied to the host."""
    copies = item.launched(ComputeKind.READ_COPY)
    numbers, counts = np.unique(item.table.step[copies], return_counts=True)
    sums = np.array(
        [np.maximum(item.table.bytes[copies & (item.table.step == one)], 0).sum() for one in numbers]
    )
    chosen = numbers[(counts >= _LEAST_COPIES) & (sums >= _LEAST_BYTES)] if len(numbers) else numbers
    return np.asarray(chosen)


def _stalls(program: Program, item: RankProgram) -> bool:
    found = len(_steps(item))
    return 0 < found <= _MOST_STEPS * item.steps and program.share(_cost_ms(item)) >= _LEAST_SHARE


def _within(item: RankProgram) -> Mask:
    return np.isin(item.table.step, _steps(item))


def _cost_ms(item: RankProgram) -> float:
    copies = item.launched(ComputeKind.READ_COPY) & _within(item)
    left = _fixed(item).work_ns
    assert left is not None
    return item.per_step(np.where(copies, item.table.held_ns, 0) + item.work_ns - left)


def _fixed(item: RankProgram) -> ReplayChanges:
    """The steps with a checkpoint work as long as the others do on average, without the copies.

    What a checkpoint leaves to do, as freeing its memory, falls into the step behind it.
    """
    steps = _steps(item)
    within = _within(item)
    after = np.isin(item.table.step, steps + 1) & ~within
    copies = item.launched(ComputeKind.READ_COPY) & within
    silent = np.where(within | after, item.tag_ns(Tag.SILENT), 0.0)
    left = np.maximum(item.work_ns - silent, 0.0)
    others = float(left[~within].sum()) / max(item.steps - len(steps), 1)
    rest = float(left[within].sum()) / max(len(steps), 1)
    if rest > others > 0:
        left[within] *= others / rest
    return ReplayChanges(work_ns=left, dropped=copies)


def _observe(seen: Observation) -> ObservedSign | None:
    records = recorded(seen)
    saves = {} if records is None else records.rare.get("checkpoint", {})
    ranks = [rank for rank, item in saves.items() if item.share >= _LEAST_SHARE]
    if records is None or not ranks:
        return None
    most = max(ranks, key=lambda rank: saves[rank].share)
    return ObservedSign(
        without_share(saves[most].share, once=saves[most].count < 2),
        ranks=ranks if len(ranks) < len(records.rows) else (),
        evidence={
            "steps_with_checkpoint": saves[most].count,
            "share_of_time": {str(rank): round(item.share, 3) for rank, item in saves.items()},
        },
        where=_place(seen, most),
        # Steps with a checkpoint are not sampled.
        sampled=False,
    )


def _place(seen: Observation, rank: int) -> MistakePlace | None:
    """The line that calls `torch.save` most often, by the hooks. None if they did not see it."""
    from aorta.artefacts.instrument_record import CHECKPOINT  # traces have none

    places = seen.host.stacks[rank].places if rank in seen.host.stacks else []
    saving = [place for place in places if place.part == CHECKPOINT and not place.package]
    if not saving:
        return None
    most = max(saving, key=lambda place: place.samples)
    return MistakePlace(function=most.function, file=most.file, line=most.line)


SPEC = MistakeSpec(
    id="ckpt_stall",
    before="""\
torch.save(model.state_dict(), path)
""",
    after="""\
future = dcp.async_save(model.state_dict(), checkpoint_id=path)
""",
    predicted_by="replay without these copies, and with the host work of steps without a checkpoint",
    captures=(
        "ckpt_stall (two H200, records and traces)",
        "ckpt_stall (one H200)",
    ),
    look=_look,
    shown_by="traces, or step records, which mark steps with a checkpoint",
    observe=_observe,
    parts=("other",),
)
