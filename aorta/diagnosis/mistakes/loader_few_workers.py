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
from aorta.diagnosis.mistake import MistakeSpec, Program, Sign
from aorta.diagnosis.mistakes._loaders import waits, without_waits


def _look(program: Program) -> Sign | None:
    found = waits(program)
    ranks = found.ranks(program)
    if not ranks or found.bursts or found.some(program):
        return None
    return Sign(
        {rank: without_waits(item) for rank, item in program.ranks.items()},
        where=MistakePlace(function="DataLoader.__next__"),
        evidence={"loader_wait_ms_per_step": round(max(found.ms.values()), 2)},
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
    shown_by="traces",
)
