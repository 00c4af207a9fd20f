"""Mistakes and the profiler's weight, in words."""

from __future__ import annotations

from collections.abc import Iterator

from aorta.artefacts.analysis import Analysis
from aorta.artefacts.mistakes import Mistake, MistakePlace
from aorta.artefacts.weight import Estimate
from aorta.report.blocks import Code, Line

SHOWN = 3
_NO_GAIN = 1.02


def advice(analysis: Analysis) -> Iterator[tuple[str, Line]]:
    """The step without the profiler, and the mistakes with the best gain."""
    found = analysis.profiler_weight
    if found is not None:
        about = found.step_ms_without
        without = f"{about.value:.1f} ms ({about.low:.1f} to {about.high:.1f}, by the {found.basis})"
        yield "Step without the profiler", f"{without}; {found.step_ms:.1f} ms with it"
    for mistake in analysis.mistakes[:SHOWN]:
        yield "Mistake", (f"{_words(mistake)} More: ", Code(f"aorta explain {mistake.id}"))
    together = analysis.mistakes_together
    if together is not None:
        yield "All of these fixed", f"{_gain(together.gain)} ({', '.join(together.ids)})"


def _words(mistake: Mistake) -> str:
    ranks = f" on rank {', '.join(map(str, mistake.ranks))}" if mistake.ranks else ""
    gain = "intended" if mistake.intended else _gain(mistake.gain)
    return f"{mistake.title}{ranks}, {_where(mistake.where)}: {gain}."


def _where(place: MistakePlace | None) -> str:
    if place is None:
        return "where is not known"
    if place.file is None:
        return f"in {place.function}"
    return f"in {place.function} ({place.file}, line {place.line})"


def _gain(found: Estimate) -> str:
    if found.value < _NO_GAIN:
        return "fixing it gains nothing now, something else limits the step"
    return f"{found.value:.2f}× faster without it ({found.low:.2f} to {found.high:.2f})"
