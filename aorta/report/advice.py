"""Mistakes and the profiler's weight, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from aorta.artefacts.analysis import Analysis, Finding
from aorta.artefacts.mistakes import Mistake, MistakePlace
from aorta.artefacts.weight import Estimate
from aorta.diagnosis.mistakes import CATALOGUE
from aorta.report.blocks import Code, Line, coded
from aorta.report.text import between, listing, ranks

SHOWN = 3
_NO_GAIN = 1.02


def remedy(analysis: Analysis, finding: Finding) -> str | None:
    """Returns what to do against the mistake that explains a finding. None if no mistake does."""
    for mistake in analysis.mistakes[:SHOWN]:
        if _explains(mistake, finding) and (plugin := CATALOGUE.get(mistake.id)) is not None:
            return _first_sentence(plugin.page.remedy)
    return None


def _first_sentence(remedy_words: str) -> str:
    return remedy_words.split(". ", maxsplit=1)[0].rstrip(".")


def likely_reasons(
    analysis: Analysis, finding: Finding | None, told: str | None = None
) -> Iterator[tuple[str, Line]]:
    """The mistakes with the best gain, a line each: reason, place, what to do unless `told`, and gain."""
    hosts = {row.rank: row.host for row in analysis.breakdown.per_rank}
    for mistake in analysis.mistakes[:SHOWN]:
        name = "Likely reason" if _explains(mistake, finding) else "Also found"
        page = CATALOGUE[mistake.id].page if mistake.id in CATALOGUE else None
        to_do = _first_sentence(page.remedy) if page is not None else ""
        to_do = f" {to_do}." if to_do and to_do != told else ""
        title = mistake.title + _place(mistake, hosts)
        said = coded(f"{to_do} {_effect(mistake)} More: ")
        yield name, (f"{title}.", *said, Code(f"aorta explain {mistake.id}"))
    together = analysis.mistakes_together
    if together is not None:
        all_gain = _gain(together.gain)
        yield "All of these fixed", f"{all_gain[:1].upper()}{all_gain[1:]} ({', '.join(together.ids)})"


def profiler_weight(analysis: Analysis) -> Iterator[tuple[str, Line]]:
    """The step without the profiler, where its weight is known."""
    found = analysis.profiler_weight
    if found is not None:
        about = found.step_ms_without
        span = f"{about.low:.1f} to {about.high:.1f}"
        if about.value < found.step_ms:
            said = f"{about.value:.1f} ms ({span}, by the {found.basis}); {found.step_ms:.1f} ms with it"
        else:
            said = f"no shorter, judging by the {found.basis}: {span} ms; {found.step_ms:.1f} ms with it"
        yield "Step without the profiler", said


def _explains(mistake: Mistake, finding: Finding | None) -> bool:
    """True if a mistake gains something and is on the finding's own ranks, or is its sub-cause."""
    if finding is None or mistake.intended or mistake.gain.value < _NO_GAIN:
        return False
    return mistake.id == finding.sub_cause or (
        bool(finding.ranks) and set(mistake.ranks) == set(finding.ranks)
    )


def _place(mistake: Mistake, hosts: Mapping[int, str | None]) -> str:
    """` (rank 2 on node1, in train (train.py, line 4))`: what is known of where it is; empty for nothing."""
    pieces = []
    if mistake.ranks:
        names = sorted({name for rank in mistake.ranks if (name := hosts.get(rank))})
        pieces.append(ranks(mistake.ranks) + (f" on {listing(names)}" if names else ""))
    if mistake.where is not None:
        pieces.append(_where(mistake.where))
    return f" ({'; '.join(pieces)})" if pieces else ""


def _where(place: MistakePlace) -> str:
    if place.file is None:
        return f"in {place.function}"
    return f"in {place.function}, {place.file} line {place.line}"


def _effect(mistake: Mistake) -> str:
    if mistake.intended:
        return "The program declares this as intended."
    alone = (
        ", according to the traces of only some ranks" if "ranks_without_traces" in mistake.evidence else ""
    )
    said = _gain(mistake.gain) + alone
    return f"{said[:1].upper()}{said[1:]}."


def _gain(found: Estimate) -> str:
    if found.value < _NO_GAIN:
        return "fixing this gains nothing now: something else limits the step"
    return f"without it {between(found.low, found.high)} faster"
