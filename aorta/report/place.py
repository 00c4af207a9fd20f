"""The line of code that a cause is in, and why only some ranks are slow, for the first screen.

That a line takes longer on one rank says where the difference is. It does not say why.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

from aorta.artefacts.analysis import Analysis, Finding
from aorta.diagnosis.findings import FINDINGS
from aorta.report.blocks import Code, Line
from aorta.report.selection import own_ms
from aorta.report.text import number, ranks
from aorta.units import rank_words

MOST = 0.5
"""A line of code explains a rank's extra time if it takes at least this share of it."""
OTHERS = "the other ranks"


def place_pairs(analysis: Analysis, finding: Finding) -> Iterator[tuple[str, Line]]:
    """Yields the line of code, where it is known, and the reason why only the named ranks are slow."""
    place = finding.where
    if place is not None:
        whose = f"{rank_words(finding.ranks)}'s step" if len(finding.ranks) == 1 else "the step"
        most = "" if len(finding.ranks) == 1 else ", on the rank where it takes longest"
        file = Code(PurePath(place.file).name)
        share = f", line {place.line}: {100 * place.share:.0f} % of {whose}{most}{_longer(analysis, finding)}"
        yield "Line of code", (Code(place.function), " in ", file, share)
    spec, every = FINDINGS.get(finding.kind), len(analysis.breakdown.per_rank) or analysis.world_size or 0
    tells = spec is not None and (spec.parts is not None or bool(spec.compares_ranks))
    if tells and 0 < len(finding.ranks) < every:
        yield f"Why only {ranks(finding.ranks)}", _why_only(analysis, finding)


def _longer(analysis: Analysis, finding: Finding) -> str:
    """Returns how much longer the line takes than on the other ranks; empty if it does not or if unknown."""
    place = finding.where
    if place is None or place.longer_ms is None or place.longer_ms <= 0 or not finding.ranks:
        return ""
    late = _extra_ms(analysis, finding)
    total = f" (of {number(late)} ms in total)" if late is not None and place.longer_ms < MOST * late else ""
    return (
        f", {number(place.longer_ms)} ms more per step than on {than_ranks(finding.ranks, analysis)}{total}"
    )


def data_waits(analysis: Analysis, finding: Finding) -> str:
    """Returns how long the only slow loader's rank waits for data, and the other ranks; empty otherwise."""
    if finding.kind != "data_loading" or len(finding.ranks) != 1:
        return ""
    waits = {row.rank: row.data_wait_ms for row in analysis.breakdown.per_rank}
    own, others = waits.pop(finding.ranks[0], None), [ms for ms in waits.values() if ms is not None]
    if own is None or not others or len(others) < len(waits):
        return ""
    most = number(max(others)) if len(others) == 1 else f"at most {number(max(others))}"
    than = than_ranks(finding.ranks, analysis)
    wait = "wait" if than == OTHERS else "waits"
    return f"per step, {ranks(finding.ranks)} waits {number(own)} ms for data and {than} {wait} {most} ms; "


def than_ranks(named: list[int], analysis: Analysis) -> str:
    """Returns the ranks with which the named ones are compared: `rank 0`, or `the other ranks`."""
    others = [row.rank for row in analysis.breakdown.per_rank if row.rank not in named]
    return rank_words(others) if len(others) == 1 else OTHERS


def _why_only(analysis: Analysis, finding: Finding) -> str:
    spec = FINDINGS.get(finding.kind)
    if finding.sub_cause_text and spec is not None and finding.sub_cause in spec.compares_ranks:
        return finding.sub_cause_text
    mistake = next((item for item in analysis.mistakes if set(item.ranks) == set(finding.ranks)), None)
    if mistake is not None:
        return f"{mistake.title} there"
    compare = next((action for action in finding.actions if action.startswith("compare ")), None)
    if compare is not None:
        return f"not known from this run. {compare[0].upper()}{compare[1:]}."
    return (
        f"not known from this run. Compare {ranks(finding.ranks)} with {than_ranks(finding.ranks, analysis)}."
    )


def _extra_ms(analysis: Analysis, finding: Finding) -> float | None:
    """Returns how much longer the own time of the named ranks is than that of the others, ms per step."""
    rows = analysis.breakdown.per_rank
    own = [own_ms(row) for row in rows if row.rank in finding.ranks]
    others = [own_ms(row) for row in rows if row.rank not in finding.ranks]
    return max(own) - sum(others) / len(others) if own and others else None
