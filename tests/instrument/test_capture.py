from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest
import torch

from aorta.config.schema import CaptureConfig
from aorta.instrument import capture as module
from aorta.instrument.capture import DETAIL_STEPS, GPU_INTERVAL, ExternalCapture, StepSchedule
from aorta.instrument.nvtx import ranges_for

GPU = torch.device("cuda", 0)
CPU = torch.device("cpu")


def phases(plan: StepSchedule, steps: int) -> list[str]:
    return [plan.of(step)[0] for step in range(steps)]


def detailed(plan: StepSchedule, steps: int) -> list[int]:
    return [step for step in range(steps) if plan.of(step)[1]]


def test_phases() -> None:
    capture = CaptureConfig(warmup_steps=2, start_step=3, steps=2, detail_interval=1000)
    plan = StepSchedule(capture, GPU, external=True, sampled=None)
    assert phases(plan, 7) == [
        "warmup",
        "warmup",
        "steady",
        "profiler",
        "steady",
        "profiler",  # nsys makes its report beside it
        "steady",
    ]
    assert (
        phases(StepSchedule(capture, GPU, external=False, sampled=None), 7) == ["warmup"] * 2 + ["steady"] * 5
    )


def test_steps_whose_kernels_are_sampled_are_the_profilers_and_timed_part_by_part() -> None:
    capture = CaptureConfig(warmup_steps=2, detail_interval=1000)
    plan = StepSchedule(capture, GPU, external=False, sampled=lambda step: step in (1, 40))
    assert phases(plan, 41) == ["warmup"] * 2 + ["steady"] * 38 + ["profiler"]
    assert detailed(plan, 42) == [*range(2 + DETAIL_STEPS), 40]


def test_blocks_that_are_timed_part_by_part() -> None:
    plan = StepSchedule(CaptureConfig(warmup_steps=3, detail_interval=2), GPU, external=False, sampled=None)
    # Warm-up and the first block; the third block begins after it and two of 30 steps.
    assert detailed(plan, 130) == [*range(3 + 30), *range(3 + 60, 3 + 90), *range(3 + 120, 130)]


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("sampled", [None, lambda step: step % 50 >= 48])
@pytest.mark.parametrize("warmup", [0, 7])
def test_until_the_step_that_is_named_all_are_of_the_same_kind(
    external: bool, sampled: Callable[[int], bool] | None, warmup: int
) -> None:
    capture = CaptureConfig(warmup_steps=warmup, start_step=40, steps=10, detail_interval=3)
    plan = StepSchedule(capture, GPU, external=external, sampled=sampled)
    for step in range(300):
        phase, parts, until = plan.of(step)
        assert until > step
        assert {plan.of(later)[:2] for later in range(step, until)} == {(phase, parts)}
    if not external and sampled is None:
        assert plan.of(warmup)[2] == warmup + DETAIL_STEPS  # and is not asked in every step


def test_on_a_cpu_every_step_and_on_a_gpu_one_block_of_many() -> None:
    steps = 2 * GPU_INTERVAL * DETAIL_STEPS
    plans = {
        device: StepSchedule(CaptureConfig(warmup_steps=0), device, external=False, sampled=None)
        for device in (CPU, GPU)
    }
    assert len(detailed(plans[CPU], steps)) == steps
    assert len(detailed(plans[GPU], steps)) == 2 * DETAIL_STEPS


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
    capture = ExternalCapture(CaptureConfig(start_step=1, steps=2), GPU, {"AORTA_PROFILER": "nsys"})
    assert drive(capture, 4, calls) == ["0", "start", "1", "2", "synchronize", "stop", "3"]


def test_a_run_that_ends_inside_the_range_closes_it(calls: list[str]) -> None:
    capture = ExternalCapture(CaptureConfig(start_step=1, steps=9), GPU, {"AORTA_PROFILER": "nsys"})
    assert drive(capture, 2, calls) == ["0", "start", "1", "synchronize", "stop"]


@pytest.mark.parametrize(("device", "tool"), [(GPU, "none"), (GPU, "rocprofv3"), (CPU, "none")])
def test_no_capture_without_nsys(device: torch.device, tool: str, calls: list[str]) -> None:
    capture = ExternalCapture(CaptureConfig(start_step=0, steps=1), device, {"AORTA_PROFILER": tool})
    assert drive(capture, 2, calls) == ["0", "1"]


def test_rocprofv3_is_told_by_roctx(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "roctx", calls.append)
    environment = {"AORTA_PROFILER": "rocprofv3", "AORTA_ROCTX_REGIONS": "1"}
    capture = ExternalCapture(CaptureConfig(start_step=1, steps=1), GPU, environment)
    told = ["0", "synchronize", "roctxProfilerResume", "1", "synchronize", "roctxProfilerPause", "2"]
    assert drive(capture, 3, calls) == told


def test_the_function_of_roctx_is_called_for_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    class Function:
        def __call__(self, thread: int) -> int:
            asked.append(thread)
            return 0

    class Library:
        def __init__(self, name: str | None) -> None:
            asked.append(name)
            if name is not None:
                self.roctxProfilerPause = Function()

    monkeypatch.setattr(module.ctypes, "CDLL", Library)
    module.roctx("roctxProfilerPause")
    assert asked == [None, "librocprofiler-sdk-roctx.so.1", 0]


def test_without_roctx_the_rank_says_that_nothing_is_recorded(caplog: pytest.LogCaptureFixture) -> None:
    module.roctx("roctxProfilerThatNobodyHas")
    assert "rocprofv3 does not know which steps to record" in caplog.text


class FakeNvtx(ModuleType):
    """Notes the ranges."""

    def __init__(self, calls: list[str]) -> None:
        super().__init__("nvtx")
        self.start_range = lambda name: calls.append(f"start {name}") or 7
        self.end_range = lambda handle: calls.append(f"end {handle}")
        self.push_range = calls.append
        self.pop_range = lambda: calls.append("pop")
        self.__spec__ = ModuleSpec("nvtx", None)


def test_without_a_gpu_an_nvtx_range_is_the_capture(
    calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "nvtx", FakeNvtx(calls))
    capture = ExternalCapture(CaptureConfig(start_step=1, steps=1), CPU, {"AORTA_PROFILER": "nsys"})
    assert drive(capture, 3, calls) == ["0", "start aorta.capture", "1", "end 7", "2"]
    ranges = ranges_for(CPU, {"AORTA_PROFILER": "nsys"})
    assert ranges is not None
    ranges.push("aorta.step")
    ranges.pop()
    assert calls[-2:] == ["aorta.step", "pop"]
    assert ranges_for(CPU, {}) is None


def test_ranges_of_a_gpu_are_made_where_somebody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ranges_for(GPU, {}) is None
    assert ranges_for(GPU, {"NVTX_INJECTION64_PATH": "/opt/libToolsInjection64.so"}) is not None
    monkeypatch.setattr(torch.version, "hip", "6.2")
    assert ranges_for(GPU, {}) is not None  # roctx says nothing of its listeners


def test_without_the_package_nothing_is_captured(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvtx", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    capture = ExternalCapture(CaptureConfig(start_step=0, steps=1), CPU, {"AORTA_PROFILER": "nsys"})
    assert drive(capture, 2, calls) == ["0", "1"]
