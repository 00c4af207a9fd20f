"""Pauses of the collector per rank and step; a rank without a pause is not said to have none."""

from __future__ import annotations

from aorta.artefacts.step_columns import StepColumns
from aorta.artefacts.steps import StepRange
from aorta.metrics.collector_pauses import collector_pauses
from tests.support.steps import step


def paused(*ms: float, tag: str = "gc", stream: str = "host") -> StepColumns:
    """Steps of 100 ms with one pause each, 10 ms after their start; 0: none."""
    made = []
    for number, length in enumerate(ms):
        one = step(number, (100 * number, 100 * number + 100), compute=[(100 * number, 100 * number + 60)])
        assert one.profile is not None
        if length:
            one.profile.ranges.append(StepRange(stream=stream, tag=tag, start_ms=10.0, end_ms=10.0 + length))
        made.append(one)
    return StepColumns.of(made)


def test_the_mean_is_over_all_steps_of_the_rank() -> None:
    assert collector_pauses({0: paused(30.0, 0.0, 6.0), 1: paused(3.0)}) == {0: 12.0, 1: 3.0}


def test_ranks_and_runs_without_a_pause_are_left_out() -> None:
    assert collector_pauses({0: paused(0.0, 0.0), 1: paused(5.0, 0.0)}) == {1: 2.5}
    assert collector_pauses({0: StepColumns.of([])}) == {}
    assert collector_pauses({}) == {}


def test_other_host_time_is_no_pause() -> None:
    assert collector_pauses({0: paused(30.0, tag="data")}) == {}
    assert collector_pauses({0: paused(30.0, stream="compute")}) == {}
