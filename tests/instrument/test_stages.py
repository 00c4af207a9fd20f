"""Passes of microbatches on the tape."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from aorta.config.schema import CaptureConfig
from aorta.instrument import StepRecorder
from aorta.instrument.stages import _CLASS, _MODULE
from tests.support.step_records import read_records

CPU = torch.device("cpu")


def test_a_programs_own_marks_are_ranges(tmp_path: Path) -> None:
    with StepRecorder(tmp_path, CPU, capture=CaptureConfig(warmup_steps=0)) as recorder:
        with recorder.step(epoch=0, step=0) as step:
            with recorder.microbatch(3, stage=1):
                pass
            with recorder.microbatch(3, stage=1, kind="backward"):
                pass
            step.result(samples=1, lr=0.1)
        with recorder.microbatch(0, stage=0):
            pass  # outside of a step nothing is noted
    (record,) = read_records(tmp_path, 0)
    assert record.profile is not None
    assert [(one.stream, one.tag, one.metadata) for one in record.profile.ranges] == [
        ("compute", kind, {"op": kind, "stage": 1, "microbatch": 3}) for kind in ("forward", "backward")
    ]


def test_schedules_of_torch_are_followed_while_a_recorder_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.distributed.pipelining import stage

    class Stage:
        stage_index = 2

        def forward_one_chunk(self, microbatch: int, value: int) -> int:
            return microbatch + value

    monkeypatch.setattr(stage, _CLASS, Stage)
    assert stage.__name__ == _MODULE
    before, made = Stage.forward_one_chunk, Stage()
    with StepRecorder(tmp_path, CPU, capture=CaptureConfig(warmup_steps=0)) as recorder:
        with recorder.step(epoch=0, step=0) as step:
            assert made.forward_one_chunk(1, 4) == 5
            step.result(samples=1, lr=0.1)
        assert Stage.forward_one_chunk is not before
    assert Stage.forward_one_chunk is before
    (record,) = read_records(tmp_path, 0)
    assert record.profile is not None
    assert [one.metadata for one in record.profile.ranges] == [{"op": "forward", "stage": 2, "microbatch": 1}]
