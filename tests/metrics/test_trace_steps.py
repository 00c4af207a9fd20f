"""Step windows of traces."""

from __future__ import annotations

from msgspec.structs import replace

from aorta.artefacts.events import ABSENT, Kind, RangeRole, TraceRanges, build
from aorta.metrics.trace_steps import steps_of
from tests.support.traces import trace

BUSY = [(0, 1000, Kind.COMPUTE)]


def windows(made: object) -> tuple[list[int], list[list[int]]]:
    steps = steps_of(made)  # type: ignore[arg-type]
    return steps.number.tolist(), steps.windows.tolist()


def test_a_window_reaches_to_the_next_start() -> None:
    """The gaps of 1 in 1000 belong to the profiler: the last step ends with its range."""
    steps = [(0, 999, "ProfilerStep#1"), (1000, 1999, "ProfilerStep#2"), (2000, 2999, "ProfilerStep#3")]
    assert windows(trace(BUSY, steps=steps)) == ([1, 2, 3], [[0, 1000], [1000, 2000], [2000, 2999]])


def test_time_between_ranges_counts_and_the_last_step_does_not() -> None:
    steps = [(0, 60, "step 1"), (100, 160, "step 2"), (200, 260, "step 3")]
    assert windows(trace(BUSY, steps=steps)) == ([1, 2], [[0, 100], [100, 200]])


def test_a_step_that_the_capture_cut_short_is_left_out() -> None:
    whole = [(0, 100, "step 1"), (100, 200, "step 2")]
    assert windows(trace(BUSY, steps=[*whole, (200, 240, "step 3")]))[0] == [1, 2]
    assert windows(trace(BUSY, steps=[*whole, (200, 260, "step 3")]))[0] == [1, 2, 3]


def test_steps_that_were_not_recorded_are_not_in_a_window() -> None:
    steps = [(0, 100, "ProfilerStep#1"), (100, 200, "ProfilerStep#2"), (900, 1000, "ProfilerStep#9")]
    assert windows(trace(BUSY, steps=steps)) == ([1, 2, 9], [[0, 100], [100, 200], [900, 1000]])


def test_numbers_that_begin_again_in_each_epoch_go_on() -> None:
    names = [3, 4, 0, 1, 5, 0]
    steps = [(100 * at, 100 * at + 100, f"iteration {number}") for at, number in enumerate(names)]
    number, spans = windows(trace(BUSY, steps=steps))
    assert number == [3, 4, 4 + 1, 6, 6 + 4, 11]
    # Between 1 and 5 nothing was recorded: the window of 1 ends with its range.
    assert spans == [[100 * at, 100 * at + 100] for at in range(6)]


def test_a_number_over_64_bits_is_no_number_of_a_step() -> None:
    most = 10**18 - 1
    steps = [(0, 100, f"step {most - 1}"), (100, 200, f"step {most}"), (200, 300, f"step {10**22}")]
    assert windows(trace(BUSY, steps=steps)) == (
        [most - 1, most, ABSENT],
        [[0, 100], [100, 200], [200, 300]],
    )


def test_marks_of_two_kinds_count_once() -> None:
    steps = [
        (0, 100, "ProfilerStep#7"),
        (10, 90, "step 7"),
        (100, 200, "ProfilerStep#8"),
        (110, 190, "step 8"),
    ]
    assert windows(trace(BUSY, steps=steps)) == ([7, 8], [[0, 100], [100, 200]])


def test_steps_on_the_gpu_only_where_the_host_has_none() -> None:
    projected = build(
        TraceRanges, 1, start_ns=[40], end_ns=[80], role=[int(RangeRole.STEP)], lane=7, name=[2]
    )
    both = replace(trace(BUSY, steps=[(0, 100, "ProfilerStep#1")]), gpu_ranges=projected)
    assert windows(both) == ([1], [[0, 100]])
    bare = replace(both, host=build(TraceRanges, 0))
    assert windows(bare) == ([1], [[40, 80]])


def test_without_steps_the_whole_capture() -> None:
    assert windows(trace([(5, 9, Kind.COPY), (20, 30, Kind.COMPUTE)])) == ([0], [[5, 30]])
    assert windows(trace([])) == ([], [])
