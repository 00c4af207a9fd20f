"""The line of code that a cause is in, and why only some ranks are slow, for the first screen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

from aorta.artefacts.analysis import Analysis, Finding
from aorta.diagnosis.findings import FINDINGS
from aorta.report.blocks import Code, Line
from aorta.report.selection import own_ms
from aorta.report.text import number, ranks
from aorta.units import rank_words

EXPLAINS = 0.5
"""Share of a rank's extra time from which on one line of code explains it."""


def place_pairs(analysis: Analysis, finding: Finding) -> Iterator[tuple[str, Line]]:
    """Yields the line of code, where it is known, and the reason why only the named ranks are slow."""
    place = finding.where
    if place is not None:
        whose = f"{rank_words(finding.ranks)}'s step" if len(finding.ranks) == 1 else "the step"
        most = "" if len(finding.ranks) == 1 else ", on the rank where it takes longest"
        file = Code(PurePath(place.file).name)
        share = f", line {place.line}: {100 * place.share:.0f} % of {whose}{most}"
        yield "Line of code", (Code(place.function), " in ", file, share)
    spec, every = FINDINGS.get(finding.kind), len(analysis.breakdown.per_rank) or analysis.world_size or 0
    tells = spec is not None and (spec.parts is not None or bool(spec.compares_ranks))
    if tells and 0 < len(finding.ranks) < every:
        yield f"Why only {ranks(finding.ranks)}", _why_only(analysis, finding)


def _why_only(analysis: Analysis, finding: Finding) -> str:
    spec, place = FINDINGS.get(finding.kind), finding.where
    if place is not None and place.longer_ms is not None:
        late = _extra_ms(analysis, finding)
        said = f"{number(place.longer_ms)} ms more per step at this line than on the other ranks"
        if late is None or place.longer_ms >= EXPLAINS * late:
            return said
        if place.longer_ms > 0:
            return f"known in part: {said}, of {number(late)} ms more per step in total"
    if finding.sub_cause_text and spec is not None and finding.sub_cause in spec.compares_ranks:
        return finding.sub_cause_text
    mistake = next((item for item in analysis.mistakes if set(item.ranks) == set(finding.ranks)), None)
    if mistake is not None:
        return f"{mistake.title} there"
    compare = next((action for action in finding.actions if action.startswith("compare ")), None)
    return f"not known; {compare}" if compare else "not known: no measurement shows what differs there"


def _extra_ms(analysis: Analysis, finding: Finding) -> float | None:
    """Returns how much longer the own time of the named ranks is than that of the others, ms per step."""
    rows = analysis.breakdown.per_rank
    own = [own_ms(row) for row in rows if row.rank in finding.ranks]
    others = [own_ms(row) for row in rows if row.rank not in finding.ranks]
    return max(own) - sum(others) / len(others) if own and others else None
