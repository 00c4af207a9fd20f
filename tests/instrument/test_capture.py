from __future__ import annotations

import pytest
import torch

from aorta.config.schema import Capture
from aorta.instrument.capture import ExternalCapture, phase_of

GPU = torch.device("cuda", 0)


def test_phases() -> None:
    capture = Capture(warmup_steps=2, start_step=3, steps=2)
    assert [phase_of(step, capture, external=True) for step in range(5)] == [
        "warmup",
        "warmup",
        "steady",
        "profiler",
        "steady",
    ]
    assert phase_of(3, capture, external=False) == "steady"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    made: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: made.append("synchronize"))
    monkeypatch.setattr(torch.cuda.profiler, "start", lambda: made.append("start"))
    monkeypatch.setattr(torch.cuda.profiler, "stop", lambda: made.append("stop"))
    return made


def drive(capture: ExternalCapture, steps: int, calls: list[str]) -> list[str]:
    for step in range(steps):
        capture.before_step(step)
        calls.append(str(step))
        capture.after_step(step)
    capture.close()
    return calls


def test_the_range_is_around_its_steps(calls: list[str]) -> None:
    capture = ExternalCapture(Capture(start_step=1, steps=2), GPU, {"AORTA_PROFILER": "nsys"})
    assert drive(capture, 4, calls) == ["0", "start", "1", "2", "synchronize", "stop", "3"]


def test_a_run_that_ends_inside_the_range_closes_it(calls: list[str]) -> None:
    capture = ExternalCapture(Capture(start_step=1, steps=9), GPU, {"AORTA_PROFILER": "nsys"})
    assert drive(capture, 2, calls) == ["0", "start", "1", "synchronize", "stop"]


@pytest.mark.parametrize(
    ("device", "tool"), [(GPU, "none"), (GPU, "rocprofv3"), (torch.device("cpu"), "nsys")]
)
def test_no_capture_without_nsys_and_a_gpu(device: torch.device, tool: str, calls: list[str]) -> None:
    capture = ExternalCapture(Capture(start_step=0, steps=1), device, {"AORTA_PROFILER": tool})
    assert drive(capture, 2, calls) == ["0", "1"]
