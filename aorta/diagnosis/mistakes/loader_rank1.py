"""Slow storage or loader on some ranks.

What it finds:
    Some ranks wait for their loader for more than a tenth of the step. The other ranks wait less than a
    quarter of that time.
Why it costs time:
    All ranks meet in the all-reduce of the gradients, so one slow loader sets the pace for all ranks.
What to do:
    Compare files, mounts and CPU cores of these ranks with those of the others. Spread large files
    evenly.
"""

from __future__ import annotations

from aorta.artefacts.mistakes import MistakePlace
from aorta.diagnosis.mistake import MistakeSpec, ObservedSign, Program, Sign
from aorta.diagnosis.mistakes._loaders import waits, without_waits
from aorta.diagnosis.mistakes._recorded import (
    alone_have_loaders,
    gain_without,
    recorded,
    starved,
    waiting,
)
from aorta.diagnosis.observation import Observation


def _look(program: Program) -> Sign | None:
    found = waits(program)
    ranks = found.some(program)
    if not ranks or found.bursts:
        return None
    return Sign(
        {rank: without_waits(program.ranks[rank]) for rank in ranks},
        ranks=ranks,
        where=MistakePlace(function="DataLoader.__next__"),
        evidence={"loader_wait_ms_per_step": {str(rank): round(ms, 2) for rank, ms in found.ms.items()}},
    )


def _observe(seen: Observation) -> ObservedSign | None:
    records = recorded(seen)
    ranks, alone = waiting(seen, records) if records is not None else ([], False)
    if records is None or not alone or 2 * len(ranks) > len(records.rows) or starved(seen, records):
        return None
    if alone_have_loaders(seen, ranks):
        return None
    return ObservedSign(
        gain_without(records, "data_loading", ranks),
        ranks=ranks,
        evidence={
            "loader_wait_ms_per_step": {str(row.rank): round(row.data_wait_ms, 2) for row in records.rows}
        },
    )


SPEC = MistakeSpec(
    id="loader_rank1",
    before="""\
paths = files if rank else files_on_network_share
""",
    after="""\
paths = files[rank::world_size]  # all of them on the same storage
""",
    predicted_by="replay in which these ranks' batches are ready in time",
    captures=("loader_rank1 (two H200, records and traces)",),
    look=_look,
    shown_by="traces, or step records if CPUs are free",
    observe=_observe,
    parts=("data",),
    replaces=("loader_rank1", "loader_few_workers"),
    of_ranks=True,
)
