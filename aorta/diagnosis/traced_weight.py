"""The host lines of a capture, and the profiler's weight in its steps."""

from __future__ import annotations

from collections.abc import Sequence

from aorta.artefacts.reduction import TraceSummary
from aorta.artefacts.weight import ProfilerWeight
from aorta.errors import ArtefactError
from aorta.metrics.profiler_weight import Lines, weight


def host_lines(ranks: Sequence[TraceSummary], expected: int | None) -> Lines | None:
    """The lines of all ranks; None where a rank has none, is missing or shares no step with the others."""
    lines = {summary.rank: summary.line for summary in ranks if summary.line is not None}
    if not lines or len(lines) < max(len(ranks), expected or 0):
        return None
    try:
        return Lines.of(lines)
    except ArtefactError:
        return None


def profiler_weight(ranks: Sequence[TraceSummary], expected: int | None) -> ProfilerWeight | None:
    """The weight in the steps of a capture; None where it is not known."""
    lines = host_lines(ranks, expected)
    return None if lines is None else weight(lines)
