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
from aorta.diagnosis.mistakes._recorded import recorded, spread
from aorta.diagnosis.observation import Observation

_LEAST_SHARE = 0.05
_MOST_SHARE = 0.95
_OUTSIDE = 0.9
"""Share of the pauses that lie outside of the passes, from which a replay without these stands for all."""


def _observe(seen: Observation) -> ObservedSign | None:
    if not seen.steps.costs:
        return None
    step = seen.steps.step_ms
    pauses = {rank: item.ms for rank, item in seen.host.collector.items()}
    ranks = [rank for rank, ms in pauses.items() if ms >= _LEAST_SHARE * step]
    if not ranks:
        return None
    most, together = max(pauses.values()), sum(pauses.values())
    value = max(_replayed(seen) or 1.0, _gain(step, most))
    return ObservedSign(
        # Pauses of all ranks come at once, or each when the others wait.
        Estimate(value=value, low=1.0, high=spread(max(_gain(step, together), value)).high),
        ranks=ranks if len(ranks) < len(seen.steps.costs) else (),
        evidence={"pauses_ms_per_step": {str(rank): round(ms, 2) for rank, ms in pauses.items()}},
    )


def _replayed(seen: Observation) -> float | None:
    """The gain by replay without the pauses outside of the passes; None where it holds no other ones.

    Pauses inside of a pass are part of its compute, which no replay takes away by halves.
    """
    records = recorded(seen)
    replays = records.model.usable if records is not None and records.model is not None else None
    if records is None or replays is None:
        return None
    pauses = seen.host.collector
    if any(item.outside_ms < _OUTSIDE * item.ms for item in pauses.values()):
        return None
    hosts = {row.rank: row.host_ms for row in records.rows if row.rank in pauses}
    shares = {rank: min(pauses[rank].outside_ms / ms, 1.0) for rank, ms in hosts.items() if ms > 0}
    return replays.without_each("host", shares).speedup if shares else None


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
