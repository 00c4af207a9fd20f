"""Closed steps on their way, on a clock whose marks pass when they are told to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
import torch

from aorta.instrument import pending
from aorta.instrument.opened import Step
from aorta.instrument.pending import BATCH_DETAILED, BATCH_NS, BATCH_STEPS, MAX_PENDING, PendingSteps
from aorta.instrument.scalars import Landing, Scalars
from aorta.instrument.streams import HostClock, Mark
from aorta.instrument.tape import Tape
from aorta.instrument.wire import StepMeasurement


class Clock(HostClock):
    """A mark has passed once `now` is beyond it."""

    def __init__(self) -> None:
        self.now = -1
        self.released: list[Mark] = []

    def passed(self, mark: Mark) -> bool:
        assert isinstance(mark, int)
        return mark <= self.now

    def wait(self, mark: Mark) -> None:
        assert isinstance(mark, int)
        self.now = max(self.now, mark)

    def release(self, marks: Iterable[Mark]) -> None:
        self.released += marks


class Channel:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []

    def send(self, steps: list[StepMeasurement]) -> None:
        self.calls.append([step.global_step for step in steps])


def closed(number: int, host_end_ns: int = BATCH_NS, detailed: bool = False) -> Step:
    """A step that ends at its number; the first one is due at once, as nothing was handed over before."""
    step = Step(0, number, number, "steady", Tape(number, number) if detailed else None, number, number)
    step.result(samples=1, lr=0.0, loss=float(number))
    step.end, step.host_end_ns = number, host_end_ns
    return step


@pytest.fixture
def clock() -> Clock:
    return Clock()


def queue(clock: Clock, together: bool = True) -> tuple[PendingSteps, Channel]:
    channel = Channel()
    made = PendingSteps(clock, channel, together)  # type: ignore[arg-type]
    made.add(closed(0))
    return made, channel


def test_steps_of_a_gpu_go_together(clock: Clock) -> None:
    steps, channel = queue(clock)
    clock.now = 10**9
    due = [steps.add(closed(number)) for number in range(1, BATCH_STEPS + 1)]
    assert due == [False] * (BATCH_STEPS - 1) + [True]
    assert channel.calls == [[0], list(range(1, BATCH_STEPS + 1))]


def test_steps_with_many_marks_go_a_few_at_a_time(clock: Clock) -> None:
    steps, channel = queue(clock)
    clock.now = 10**9
    due = [steps.add(closed(number, detailed=True)) for number in range(1, BATCH_DETAILED + 1)]
    assert due == [False] * (BATCH_DETAILED - 1) + [True]
    assert channel.calls == [[0], list(range(1, BATCH_DETAILED + 1))]


def test_long_steps_do_not_wait_for_others(clock: Clock) -> None:
    steps, channel = queue(clock)
    clock.now = 10**9
    assert not steps.add(closed(1, host_end_ns=2 * BATCH_NS - 1))
    assert steps.add(closed(2, host_end_ns=2 * BATCH_NS))
    assert channel.calls == [[0], [1, 2]]


def test_on_the_host_each_goes_at_once(clock: Clock) -> None:
    clock.now = 10**9
    steps, channel = queue(clock, together=False)
    assert steps.add(closed(1))
    assert channel.calls == [[0], [1]]


def test_nothing_waits_for_the_gpu_until_too_many_do(clock: Clock) -> None:
    steps, channel = queue(clock)
    for number in range(1, MAX_PENDING):
        steps.add(closed(number))
    assert (clock.now, channel.calls) == (-1, [])
    for number in range(MAX_PENDING, MAX_PENDING + BATCH_STEPS):
        steps.add(closed(number))
    assert (clock.now, channel.calls) == (0, [[0]])  # the oldest batch


def test_draining_waits_for_all_and_gives_every_mark_back(clock: Clock) -> None:
    steps, channel = queue(clock)
    steps.add(closed(1))
    steps.drain()
    assert channel.calls == [[0], [1]]
    assert set(clock.released) == {0, 1}


def test_of_a_gpu_that_hangs_the_steps_before_are_kept(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "LAST_WORDS_S", 0.02)
    steps, channel = queue(clock)
    for number in range(1, 6):
        steps.add(closed(number))
    clock.now = 3
    steps.last_words()
    assert [number for call in channel.calls for number in call] == [0, 1, 2, 3]


def test_a_run_that_fails_hands_over_what_has_passed(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "LAST_WORDS_S", 0.02)
    steps, channel = queue(clock)
    clock.now = 0
    steps.add(closed(5))  # the GPU never gets there
    steps.last_words()
    assert channel.calls == [[0]]


def test_a_program_that_ends_waits_for_no_gpu(clock: Clock) -> None:
    steps, channel = queue(clock)
    steps.waits = False
    for number in range(2 * MAX_PENDING):
        steps.add(closed(number))
    assert (clock.now, channel.calls) == (-1, [])  # the GPU has passed nothing
    steps.waits = True
    steps.add(closed(2 * MAX_PENDING, host_end_ns=BATCH_NS * 3))
    assert clock.now >= 0


@pytest.mark.parametrize("full", [False, True])
def test_steps_whose_losses_find_no_memory_are_handed_over_without_them(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    def landing(steps: Sequence[Scalars]) -> Landing:
        if full and any(step.values != [None, None] for step in steps):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return Landing(steps)

    sent: list[StepMeasurement] = []
    steps, channel = queue(clock)
    monkeypatch.setattr(pending, "Landing", landing)
    monkeypatch.setattr(channel, "send", sent.extend)
    steps.add(closed(3))
    steps.drain()
    assert (sent[-1].global_step, sent[-1].loss) == (3, None if full else 3.0)
