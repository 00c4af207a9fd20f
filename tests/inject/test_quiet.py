"""Ends of whole steps that are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch

from aorta.inject.outcome import SCALARS_NS, Outcomes
from aorta.inject.parts import StepMarks
from aorta.inject.quiet import QuietSteps
from aorta.instrument.opened import Step
from aorta.instrument.recorder import StepRecorder
from aorta.instrument.streams import HostClock, Mark
from tests.support.injected import run_program


class Streams(HostClock):
    """Notes on which streams marks are asked for."""

    def __init__(self) -> None:
        self.asked: list[object] = []

    def mark(self, stream: torch.cuda.Stream | None = None) -> Mark:
        self.asked.append(stream)
        return super().mark(stream)


def test_the_end_of_a_step_lies_on_the_stream_that_is_current_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder, clock = StepRecorder(tmp_path, torch.device("cpu"), injected=True), Streams()
    monkeypatch.setattr(recorder, "_clock", clock)
    monkeypatch.setattr(recorder._now, "clock", clock)
    recorder._now.stream = stale = cast("Any", object())  # of the step that began the row
    recorder._steps.asked_until = 9
    step = Step(None, 0, 0, "steady", start=recorder.mark(), host_start_ns=1 << 62)
    quiet, parts = QuietSteps(Outcomes()), StepMarks(recorder, step)
    assert quiet.begin(recorder, parts)
    assert quiet.ended(parts, 0.5)
    assert clock.asked == [stale, None]


def test_one_step_of_a_row_keeps_its_loss_and_not_the_next_one_too(tmp_path: Path) -> None:
    recorder, outcomes = StepRecorder(tmp_path, torch.device("cpu"), injected=True), Outcomes()
    start = 10 * SCALARS_NS
    assert outcomes.keeps_at(start)  # as a row asks
    after = Step(None, 1, 1, "steady", host_start_ns=start + 1)
    assert not outcomes.keeps(StepMarks(recorder, after))


FAILS = """
import torch
from aorta.inject.callbacks import ACTIVE

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
for update in range(60):
    loss = model(torch.ones(3, 2)).sum()
    scaler.scale(loss * (float("inf") if update == 50 else 1.0)).backward()
    if update == 50:
        pending = ACTIVE[0].recorder._pending
        add, left = pending.add, [3]
        def fails(step):
            left[0] -= 1
            if not left[0]:
                raise torch.OutOfMemoryError("once")
            return add(step)
        pending.add = fails
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""


def test_no_step_is_recorded_twice_where_steps_could_not_be_handed_over(tmp_path: Path) -> None:
    """The scaler's hook hands over the steps before the update that it skips, and fails at the third."""
    capture = {"AORTA_CAPTURE": '{"warmup_steps": 2, "detail_interval": 2}'}
    ended = run_program(FAILS, tmp_path, variables=capture)
    assert (ended.codes, list(ended.status().hooks_off)) == ([0], ["scaler"]), ended.err
    records = ended.records()
    # 50 updates and the skipped one, of which two are learned from: of the others, step 34 failed, and what
    # was kept behind it is lost. Later updates open further steps.
    assert [record.global_step for record in records] == [*range(34), *range(35, 43)]
    ends = [0, *(record.mono_end_ns for record in records)]
    assert all(end <= record.mono_start_ns for end, record in zip(ends, records, strict=False))
