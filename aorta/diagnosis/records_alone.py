"""Measurements of the step records alone, of which traces do not take the place."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from aorta.artefacts.measured import RankBreakdown
from aorta.artefacts.step_columns import StepColumns
from aorta.artefacts.step_names import Phase
from aorta.diagnosis.model import Modelled
from aorta.metrics.rare_steps import RareSteps, rare_steps
from aorta.metrics.recorded_calls import RecordedCalls, recorded_calls
from aorta.metrics.steady import Steady


class ObservedRecords(Struct, frozen=True):
    """Measurements of the step records alone."""

    steps: int
    """Steps that were timed part by part."""
    rows: list[RankBreakdown]
    """Breakdown of these steps."""
    model: Modelled | None = None
    """The replay of these steps."""
    rare: Mapping[Phase, Mapping[int, RareSteps]] = field(default_factory=dict)
    """Steps with a checkpoint or a validation, by rank."""
    calls: Mapping[int, RecordedCalls] = field(default_factory=dict)
    """Calls of collectives in a step, by rank."""


def records_alone(
    by_rank: Mapping[int, StepColumns], steady: Steady, rows: list[RankBreakdown], model: Modelled
) -> ObservedRecords:
    """Returns what the records say.

    Args:
        by_rank: all steps.
        steady: those that count.
        rows: breakdown of those that were timed part by part.
        model: of the same ones.
    """
    detailed = steady.detailed()
    return ObservedRecords(
        len(detailed), rows, model, rare_steps(by_rank, steady.numbers), recorded_calls(detailed.by_rank)
    )
