"""Launches that have not started, also those from before the capture."""

from __future__ import annotations

import numpy as np

from aorta.artefacts.events import ABSENT, GpuEvents, build
from aorta.metrics.launch_queue import pending


def events(*start: int) -> GpuEvents:
    """Events of 10 ns."""
    begin = np.array(start, dtype=np.int64)
    return build(GpuEvents, len(start), start_ns=begin, end_ns=begin + 10)


def of(at: list[int], row: list[int], gpu: GpuEvents) -> list[int]:
    return pending(np.array(at), np.array(row), gpu).tolist()


def test_launches_wait_until_the_gpu_starts_them() -> None:
    # Each starts 5 ns behind its launch: nothing is ahead of the next one.
    assert of([0, 10, 20], [0, 1, ABSENT], events(0, 10)) == [0, 0, 0]
    # The first one runs while two more are launched.
    assert of([0, 1, 2, 3], [0, 1, 2, ABSENT], events(0, 10, 20)) == [0, 0, 1, 2]


def test_work_of_before_that_was_recorded_is_ahead() -> None:
    assert of([0, 1, 40], [1, 2, ABSENT], events(5, 15, 25))[:2] == [1, 2]


def test_work_of_before_that_was_not_recorded_is_told_by_the_first_start() -> None:
    # Kernels start every 10 ns, and the first one 50 ns behind its launch: five were ahead.
    assert of([0, 10, 70], [0, 1, ABSENT], events(50, 60))[:2] == [5, 5]
    assert of([0, 10, 70], [0, 1, ABSENT], events(0, 60))[:2] == [0, 0]


def test_a_line_without_gpu_work_has_no_queue() -> None:
    assert of([0, 10], [ABSENT, ABSENT], events()) == [0, 0]
