"""Which steps keep their loss."""

from __future__ import annotations

import pytest
import torch

from aorta.inject.outcome import SCALARS_NS, Outcomes
from aorta.inject.parts import StepMarks
from aorta.instrument.opened import Step
from aorta.instrument.recorder import StepRecorder
from aorta.instrument.tape import Tape


@pytest.fixture
def recorder(tmp_path: object) -> StepRecorder:
    return StepRecorder(str(tmp_path), torch.device("cpu"), injected=True)


def kept(recorder: StepRecorder, starts: list[int], *, detailed: bool) -> list[bool]:
    outcomes, found = Outcomes(), []
    for number, start in enumerate(starts):
        step = Step(None, number, number, "steady", host_start_ns=start)
        step.tape = Tape(start, start) if detailed else None
        found.append(outcomes.keeps(StepMarks(recorder, step)))
    return found


def test_a_step_that_is_timed_as_a_whole_keeps_its_loss_every_quarter_of_a_second(
    recorder: StepRecorder,
) -> None:
    start, half = 10 * SCALARS_NS, SCALARS_NS // 2
    starts = [start + at * half for at in range(5)]
    assert kept(recorder, starts, detailed=False) == [True, False, True, False, True]


def test_a_long_step_and_one_that_is_timed_part_by_part_always_keep_it(recorder: StepRecorder) -> None:
    start = 10 * SCALARS_NS
    assert all(kept(recorder, [start + at * SCALARS_NS for at in range(3)], detailed=False))
    assert all(kept(recorder, [start, start + 1, start + 2], detailed=True))


def test_a_step_without_a_loss_still_says_its_rate_and_samples(recorder: StepRecorder) -> None:
    outcomes = Outcomes()
    parts = StepMarks(recorder, Step(None, 0, 0, "steady"))
    parameter = torch.nn.Parameter(torch.zeros(1))
    parts.came(torch.ones(3, 2))
    parts.keeps = False
    parts.lost(torch.ones(()))
    outcomes.complete(parts, torch.optim.SGD([parameter], lr=0.5))
    step = parts.step
    assert (step.samples, step.lr, step.results().values) == (3, 0.5, [None, None])
    parts.keeps = True
    parts.lost(torch.ones(()))
    outcomes.complete(parts, torch.optim.SGD([parameter], lr=0.5))
    assert parts.step.results().values == [1.0, None]


def test_samples_of_a_nested_tensor_are_its_parts(recorder: StepRecorder) -> None:
    parts, module = StepMarks(recorder, Step(None, 0, 0, "steady")), torch.nn.Linear(2, 1)
    parts.saw(module, ((torch.nested.nested_tensor([torch.ones(1, 2), torch.ones(3, 2)]),), {}))
    parts.saw(module, ((torch.ones(5, 2),), {}))
    assert parts.samples == 2 + 5
