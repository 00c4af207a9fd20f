"""The collector's pauses in real steps: noted where parts are timed, and nowhere else."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from aorta.config.schema import CaptureConfig
from aorta.instrument import StepRecorder
from aorta.instrument.collector import SHORTEST_NS
from tests.instrument.test_recorder import VARIABLES
from tests.support.step_records import read_records

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def outside_a_job(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in VARIABLES.split():
        monkeypatch.delenv(name, raising=False)
    before = list(gc.callbacks)
    yield
    assert gc.callbacks == before


def collected(
    output: Path, *, every: int, capture: CaptureConfig | None = None, steps: int = 4
) -> list[list[float]]:
    """The pauses of each step in ms; in each `every`-th step a heap of 50,000 lists is collected."""
    gc.freeze()  # the rest of this process is not looked at
    gc.disable()
    heap = [[number] for number in range(50_000)]
    try:
        with StepRecorder(output, CPU, capture=capture) as recorder:
            for number in range(steps):
                with recorder.step(epoch=0, step=number) as step:
                    with recorder.forward():
                        if number % every == 0:
                            gc.collect()
                    step.result(samples=1, lr=1e-3)
                if number % every == 0:
                    gc.collect()  # between the steps: of no step
    finally:
        gc.enable()
        gc.unfreeze()
    del heap
    return [
        [
            item.end_ms - item.start_ms
            for item in (record.profile.ranges if record.profile else [])
            if (item.stream, item.tag) == ("host", "gc")
        ]
        for record in read_records(output)
    ]


def test_a_pause_is_noted_in_its_step_and_the_step_without_one_has_none(tmp_path: Path) -> None:
    pauses = collected(tmp_path, every=2)
    assert [len(mine) for mine in pauses] == [1, 0, 1, 0]
    assert all(ms * 1e6 >= SHORTEST_NS for mine in pauses for ms in mine)


def test_in_steps_that_are_timed_as_a_whole_nobody_is_called(tmp_path: Path) -> None:
    capture = CaptureConfig(warmup_steps=0, detail_interval=2)
    pauses = collected(tmp_path, every=1, capture=capture, steps=65)
    seen = [number for number, mine in enumerate(pauses) if mine]
    assert 0 < len(seen) < 65


def test_without_a_step_a_recorder_leaves_the_collector_alone(tmp_path: Path) -> None:
    before = list(gc.callbacks)
    recorder = StepRecorder(tmp_path, CPU)
    assert gc.callbacks == before
    recorder.close()
