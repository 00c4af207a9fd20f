"""Evaluations between steps are no training, however long they take; data that a policy collects is."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest
import torch

from aorta.inject.outcome import Outcomes
from aorta.inject.parts import StepMarks
from aorta.instrument.opened import Step
from aorta.instrument.recorder import StepRecorder
from tests.support.injected import run_program

EVALUATES = """
import time
import torch
from torch.utils.data import DataLoader, TensorDataset
from aorta.inject.callbacks import validates

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train = DataLoader(TensorDataset(torch.ones(400, 4)), batch_size=2)
held_out = DataLoader(TensorDataset(torch.ones(4, 4)), batch_size=2)
x = torch.ones(2, 4)

def in_evaluation_mode():
    model.eval()
    model(x)
    model.train()

def on_another_loader():
    for (batch,) in held_out:
        model(batch)

def as_the_program_says():
    validates()

ways = [in_evaluation_mode, on_another_loader, as_the_program_says]
for number, (batch,) in enumerate(train):
    model(batch).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if number % 10 == 9:
        with torch.no_grad():
            ways[number // 10 % 3]()
            time.sleep(0.02)
"""


def test_evaluations_that_take_most_of_the_time_are_validation(tmp_path: Path) -> None:
    """200 updates; the first two are learned from. An evaluation behind each tenth, but for the last one."""
    ended = run_program(EVALUATES, tmp_path)
    assert ended.codes == [0], ended.err
    validated = [record.global_step for record in ended.records() if record.phase == "validation"]
    assert validated == [update - 2 for update in range(10, 200, 10)]


@pytest.mark.parametrize(("evaluates", "validations"), [(True, 6), (False, 3)])
def test_only_time_without_an_evaluation_makes_rare_passes_training(
    tmp_path: Path, *, evaluates: bool, validations: int
) -> None:
    """Each tenth of 60 steps takes 100 s, all others nothing. The first three times tell nothing yet."""
    outcomes = Outcomes()
    recorder = StepRecorder(str(tmp_path), torch.device("cpu"), injected=True)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    phases: Counter[str] = Counter()
    began = time.monotonic_ns() - 100 * 10**9
    for number in range(60):
        rare = number % 10 == 9
        start = began if rare or not number else time.monotonic_ns()
        parts = StepMarks(recorder, Step(None, number, number, "steady", host_start_ns=start))
        outcomes.keeps(parts)
        parts.no_grad = rare
        outcomes.evaluates = rare and evaluates
        outcomes.complete(parts, optimizer)
        phases[parts.step.phase] += 1
    assert phases == {"steady": 60 - validations, "validation": validations}
