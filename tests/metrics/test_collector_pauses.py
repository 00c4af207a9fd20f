"""Pauses of the collector per rank and step; a rank without a pause is not said to have none."""

from __future__ import annotations

from aorta.artefacts.step_columns import StepColumns
from aorta.artefacts.steps import StepRange
from aorta.metrics.collector_pauses import Pauses, collector_pauses
from tests.support.steps import step


def paused(*ms: float, tag: str = "gc", stream: str = "host", at: float = 80.0) -> StepColumns:
    """Steps of 100 ms, 60 of them compute, with one pause each, `at` ms after their start; 0: none."""
    made = []
    for number, length in enumerate(ms):
        one = step(number, (100 * number, 100 * number + 100), compute=[(100 * number, 100 * number + 60)])
        assert one.profile is not None
        if length:
            one.profile.ranges.append(StepRange(stream=stream, tag=tag, start_ms=at, end_ms=at + length))
        made.append(one)
    return StepColumns.of(made)


def test_the_mean_is_over_all_steps_of_the_rank() -> None:
    found = collector_pauses({0: paused(18.0, 0.0, 6.0), 1: paused(3.0)})
    assert found == {0: Pauses(8.0, 8.0), 1: Pauses(3.0, 3.0)}


def test_what_lies_within_compute_is_told_apart() -> None:
    assert collector_pauses({0: paused(20.0, 10.0, at=50.0)}) == {0: Pauses(15.0, 5.0)}
    assert collector_pauses({0: paused(20.0, at=10.0)}) == {0: Pauses(20.0, 0.0)}


def test_ranks_and_runs_without_a_pause_are_left_out() -> None:
    assert collector_pauses({0: paused(0.0, 0.0), 1: paused(5.0, 0.0)}) == {1: Pauses(2.5, 2.5)}
    assert collector_pauses({0: StepColumns.of([])}) == {}
    assert collector_pauses({}) == {}


def test_other_host_time_is_no_pause() -> None:
    assert collector_pauses({0: paused(15.0, tag="data")}) == {}
    assert collector_pauses({0: paused(15.0, stream="compute")}) == {}
