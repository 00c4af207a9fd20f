"""Too few loader workers.

What it finds:
    Every rank waits for its loader's workers in most steps, for more than a tenth of the step.
Why it costs time:
    Together, the workers produce fewer batches per second than the GPU uses, so each step waits for the next
    batch.
What to do:
    Raise `num_workers` up to the CPU cores per rank, raise `prefetch_factor`, or move costly transforms
    out of the loader.
"""

from __future__ import annotations

from aorta.artefacts.mistakes import MistakePlace
from aorta.diagnosis.mistake import MistakeSpec, ObservedSign, Program, Sign
from aorta.diagnosis.mistakes._loaders import waits, without_waits
from aorta.diagnosis.mistakes._recorded import gain_without, recorded, starts_ms, starved, waiting, workers
from aorta.diagnosis.observation import Observation


def _look(program: Program) -> Sign | None:
    found = waits(program)
    ranks = found.ranks(program)
    if not ranks or found.bursts or found.alone(program):
        return None
    return Sign(
        {rank: without_waits(item) for rank, item in program.ranks.items()},
        where=MistakePlace(function="DataLoader.__next__"),
        evidence={"loader_wait_ms_per_step": round(max(found.ms.values()), 2)},
    )


def _observe(seen: Observation) -> ObservedSign | None:
    records = recorded(seen)
    ranks, alone = waiting(seen, records) if records is not None else ([], False)
    if records is None or alone or 2 * len(ranks) <= len(records.rows):
        return None
    count = workers(seen, ranks)
    # More workers gain nothing where no CPU is free for them, and a start is another mistake.
    wait_ms = max(row.data_wait_ms for row in records.rows)
    if not count or starved(seen, records) or starts_ms(seen, ranks) >= wait_ms / 2:
        return None
    return ObservedSign(
        gain_without(records, "data_loading"),
        evidence={"loader_wait_ms_per_step": round(wait_ms, 2), "workers": count},
    )


SPEC = MistakeSpec(
    id="loader_few_workers",
    before="""\
loader = DataLoader(dataset, batch_size=32, num_workers=1)
""",
    after="""\
loader = DataLoader(dataset, batch_size=32, num_workers=8, pin_memory=True, persistent_workers=True)
""",
    predicted_by="replay in which every batch is ready in time",
    captures=(
        "loader_few_workers",
        "loader_few_workers (one H200)",
    ),
    look=_look,
    shown_by="traces, or step records with the number of workers if CPUs are free",
    observe=_observe,
    parts=("data",),
    replaces=("loader_few_workers", "loader_rank1", "loader_serial"),
)
