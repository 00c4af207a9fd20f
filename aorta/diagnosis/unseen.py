"""Unseen time in the breakdown, and in the answers of findings: a share may be as large as it allows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import structs

from aorta.artefacts.measured import BreakdownTable
from aorta.artefacts.unseen import UnseenTime
from aorta.diagnosis.finding import FindingSpec, RuleResult, not_measured
from aorta.diagnosis.observation import Observation
from aorta.metrics.places import unseen_passes

if TYPE_CHECKING:
    from aorta.artefacts.instrument_record import InstrumentRecord

_LEAST_PCT = 1.0
"""Less unseen time than this, in % of the step, changes no answer."""
_UNCLASSIFIED = "kernels that have no name, or that compute and exchange data at once"
_CLASSIFY = "record kernels' names; for fused kernels, also run once without fusing the exchange"
_CALL_MODELS = "call the model itself, model(batch), instead of its methods; or record with StepRecorder"
_OF_TIME = ("% of step", "% of time")


def with_unseen_passes(
    breakdown: BreakdownTable, instruments: Mapping[int, InstrumentRecord]
) -> tuple[BreakdownTable, tuple[UnseenTime, ...]]:
    """Returns the breakdown with the host's part as unseen time on ranks whose hooks saw no forward pass."""
    found = unseen_passes(instruments)
    rows = breakdown.per_rank
    if found is None or not rows:
        return breakdown, ()
    ranks, reason = found
    lost_ms = sum(row.host_ms for row in rows if row.rank in ranks) / len(rows)
    changed = [
        structs.replace(row, host_ms=0.0, unseen_ms=row.host_ms) if row.rank in ranks else row for row in rows
    ]
    unseen = UnseenTime(ms=lost_ms, reason=reason, remedy=_CALL_MODELS)
    return structs.replace(breakdown, per_rank=changed), (unseen,)


def beside_unseen(spec: FindingSpec, answer: RuleResult, seen: Observation) -> RuleResult:
    """Returns the answer, or that the finding is not measurable if unseen time could change the answer.

    Unseen time may be anything. A share above its threshold without it is above it with it.
    """
    said, unseen = answer.measured, seen.steps.unseen_pct()
    unknown = _unclassified_pct(seen) if spec.of_kernel_kinds else 0.0
    kinds_first, unseen = unknown > unseen, unseen + unknown
    if said.value is None or said.unit not in _OF_TIME or unseen < _LEAST_PCT:
        return answer
    if not (seen.steps.traced or spec.of_host_time or spec.fires_below):
        return answer  # a pass that hooks did not see is compute or host work, and no exchange or wait
    most = said.value + unseen
    open_above = not spec.fires_below and not said.fired and most > said.threshold
    open_below = spec.fires_below and said.fired and most >= said.threshold
    if not open_above and not open_below:
        return answer
    why, remedy = _why(seen, kinds_first=kinds_first)
    word = "of an unknown kind" if kinds_first else "unseen"
    span = f"{said.value:.0f} to {min(most, 100.0):.0f} {said.unit}"
    reason = f"not measured: {span}, since {unseen:.0f} % is {word} ({why})"
    return not_measured(spec.kind, said.threshold, said.unit, reason, remedy=remedy)


def _why(seen: Observation, *, kinds_first: bool) -> tuple[str, str | None]:
    """Returns the reason for most of the unseen time, and the way to measure it."""
    if kinds_first:
        return _UNCLASSIFIED, _CLASSIFY
    first = seen.steps.unseen[0] if seen.steps.unseen else None
    return (first.reason, first.remedy) if first else ("the sources do not show it", None)


def _unclassified_pct(seen: Observation) -> float:
    """Returns the largest share of any rank's step in kernels of an unknown kind, in percent."""
    rows = seen.steps.breakdown.per_rank
    shares = (100.0 * (row.unclassified_ms or 0.0) / row.step_ms for row in rows if row.step_ms)
    return max(shares, default=0.0)
