"""The function and the line that a finding is in, from the sampled stacks of the ranks."""

from __future__ import annotations

from pathlib import PurePath

import msgspec

from aorta.artefacts.analysis import CodeLocation, Finding
from aorta.diagnosis.finding import FindingSpec
from aorta.diagnosis.observation import Observation
from aorta.metrics.places import where
from aorta.units import rank_words

_LEAST_MS = 0.05
"""A line that takes hardly longer on the named ranks is not compared."""
LOOK = "look at "
"""First words of the action that names the place."""


def with_where(spec: FindingSpec, finding: Finding, seen: Observation) -> Finding:
    """Returns the finding with its place in the program; unchanged where no stack tells."""
    if spec.parts is None or finding.symptom_of is not None or not seen.host.stacks:
        return finding
    found = where(seen.host.stacks, finding.ranks, spec.parts(finding, seen))
    if found is None:
        return finding
    step_ms = {row.rank: row.step_ms for row in seen.steps.breakdown.per_rank}
    mean = max(step_ms.get(rank, seen.steps.step_ms) for rank in (finding.ranks or step_ms))
    place = CodeLocation(
        function=found.function,
        file=found.file,
        line=found.line,
        share=found.share,
        longer_ms=None if found.longer is None else found.longer * mean,
    )
    return msgspec.structs.replace(
        finding, where=place, actions=[_look(finding, place, seen), *finding.actions]
    )


def _others(finding: Finding, seen: Observation) -> str:
    """Returns the ranks that are not named: `rank 0`, or `the other ranks`."""
    others = [row.rank for row in seen.steps.breakdown.per_rank if row.rank not in finding.ranks]
    return rank_words(others) if len(others) == 1 else "the other ranks"


def _look(finding: Finding, place: CodeLocation, seen: Observation) -> str:
    whose = f"of {rank_words(finding.ranks)}'s step" if len(finding.ranks) == 1 else "of the step"
    longer = (
        f", {place.longer_ms:.1f} ms more per step than on {_others(finding, seen)}"
        if place.longer_ms is not None and place.longer_ms >= _LEAST_MS and finding.ranks
        else ""
    )
    file = PurePath(place.file).name
    return f"{LOOK}{place.function} ({file}, line {place.line}): {100 * place.share:.0f} % {whose}{longer}"
