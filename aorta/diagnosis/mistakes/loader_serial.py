"""Loader without workers.

What it finds:
    The training process loads its batches itself (`num_workers=0`), which takes more than a tenth of the
    step.
Why it costs time:
    While the process reads and transforms samples, it launches no kernels, and the GPU waits.
What to do:
    Set `num_workers` high enough that all workers together load more batches per second than the job has
    steps per second. Add `persistent_workers=True`.
"""

from __future__ import annotations

from aorta.artefacts.hostline import Tag
from aorta.artefacts.mistakes import MistakePlace
from aorta.diagnosis.mistake import MistakeSpec, ObservedSign, Program, Sign
from aorta.diagnosis.mistakes._recorded import gain_without, recorded, waiting, workers
from aorta.diagnosis.observation import Observation

_LEAST_SHARE = 0.1


def _look(program: Program) -> Sign | None:
    ranks = program.most(lambda item: program.share(item.tagged_ms(Tag.LOADER)) >= _LEAST_SHARE)
    if not ranks:
        return None
    cost = max(program.ranks[rank].tagged_ms(Tag.LOADER) for rank in ranks)
    return Sign(
        {rank: program.ranks[rank].without(Tag.LOADER) for rank in ranks},
        where=program.where(Tag.LOADER) or MistakePlace(function="DataLoader.__next__"),
        evidence={"loading_ms_per_step": round(cost, 2)},
    )


def _observe(seen: Observation) -> ObservedSign | None:
    records = recorded(seen)
    ranks, alone = waiting(seen, records) if records is not None else ([], False)
    if records is None or alone or 2 * len(ranks) <= len(records.rows) or workers(seen, ranks) != 0:
        return None
    cost = max(row.data_wait_ms for row in records.rows)
    return ObservedSign(
        gain_without(records, "data_loading"), evidence={"loading_ms_per_step": round(cost, 2), "workers": 0}
    )


SPEC = MistakeSpec(
    id="loader_serial",
    before="""\
loader = DataLoader(dataset, batch_size=32)
""",
    after="""\
loader = DataLoader(dataset, batch_size=32, num_workers=8, pin_memory=True, persistent_workers=True)
""",
    predicted_by="replay without the loader's work in the training process",
    captures=("loader_serial (one H200)",),
    look=_look,
    shown_by="traces, and step records with the number of workers",
    observe=_observe,
    replaces=("loader_serial", "loader_few_workers"),
    parts=("data",),
)
