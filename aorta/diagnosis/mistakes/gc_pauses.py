"""Garbage-collector pauses.

What it finds:
    Python's garbage collector takes more than a twentieth of the step, according to the interpreter's report
    of each collection.
Why it costs time:
    A collection stops the training thread. Ranks collect at different times, and all others wait in the
    next collective each time.
What to do:
    Call `gc.freeze()` and `gc.disable()` before the loop, and collect on all ranks in the same step.
"""

from __future__ import annotations

from aorta.artefacts.weight import Estimate
from aorta.diagnosis.mistake import MistakeSpec, ObservedSign
from aorta.diagnosis.observation import Observation

_LEAST_SHARE = 0.05
_MOST_SHARE = 0.95


def _observe(seen: Observation) -> ObservedSign | None:
    if not seen.steps.costs:
        return None
    step = seen.steps.step_ms
    pauses = {rank: item.ms for rank, item in seen.host.collector.items()}
    ranks = [rank for rank, ms in pauses.items() if ms >= _LEAST_SHARE * step]
    if not ranks:
        return None
    most, together = max(pauses.values()), sum(pauses.values())
    return ObservedSign(
        # Pauses of all ranks come at once, or each when the others wait.
        Estimate(value=_gain(step, most), low=1.0, high=_gain(step, together)),
        ranks=ranks if len(ranks) < len(seen.steps.costs) else (),
        evidence={"pauses_ms_per_step": {str(rank): round(ms, 2) for rank, ms in pauses.items()}},
    )


def _gain(step_ms: float, saved_ms: float) -> float:
    return 1.0 / (1.0 - min(saved_ms / step_ms, _MOST_SHARE))


SPEC = MistakeSpec(
    id="gc_pauses",
    before="""\
for batch in loader:
    ...
""",
    after="""\
gc.freeze()
gc.disable()
for step, batch in enumerate(loader):
    ...
    if step % 100 == 0:
        gc.collect(1)
""",
    predicted_by="the step without the longest pauses of any single rank; the upper limit is the step "
    "without the pauses of all ranks",
    captures=("gc_pauses (two H200, records and traces)",),
    look=None,
    observe=_observe,
    yields_to=("empty_cache",),
    shown_by="step records, which contain each collection; a trace alone only shows a silent stretch",
)
