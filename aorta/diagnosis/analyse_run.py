"""Turns what one run left into an `Analysis`."""

from __future__ import annotations

from collections.abc import Sequence

from aorta.artefacts.analysis import Analysis
from aorta.config.thresholds import Thresholds
from aorta.diagnosis.analyse import AppliedThresholds, contradiction, with_notes
from aorta.diagnosis.from_records import from_records
from aorta.diagnosis.from_traces import with_traces
from aorta.diagnosis.observed_mistakes import with_observed
from aorta.readers.run import RunData
from aorta.readers.run_traces import RunTraces


def analyse(
    data: RunData,
    traces: RunTraces | None = None,
    others: Sequence[Analysis] = (),
    overrides: Sequence[str] = (),
) -> Analysis:
    """Returns metrics, findings and verdict of one run; whatever is missing, there is an answer.

    Args:
        data: what the run directory holds.
        traces: of the run's ranks. Where they cover all of them, breakdown, waits and verdict are theirs;
            throughput is always the records'.
        others: analyses of other runs; those that repeat this one say by how much runs of it differ.
        overrides: of thresholds, `thresholds.KEY=VALUE`, for this analysis alone.
    """
    config = data.account.config
    limits = AppliedThresholds.of(config.thresholds if config is not None else Thresholds(), overrides)
    seen = with_observed(from_records(data, others))
    if traces is None:
        return limits.judged(seen)
    joined = with_observed(with_traces(seen, traces, data, limits.policy(traced=True)))
    if joined.steps is seen.steps:
        return limits.judged(joined)
    made, alone = limits.judged(joined), limits.judged(seen).verdict
    whose = contradiction(made.verdict, alone)
    against = [f"the step records alone give {whose}"] if whose else []
    said = [f"sources contradict each other: {text}" for text in against]
    return with_notes(made, [*made.data_quality.notes, *said], against)
