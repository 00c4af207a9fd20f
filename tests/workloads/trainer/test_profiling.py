from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from aorta.config.schema import CaptureConfig, Config, ProfilingConfig, TrainingConfig
from aorta.diagnosis import capture_window
from aorta.errors import ConfigError
from aorta.instrument import StepRecorder
from aorta.workloads.ranking import Ranking
from aorta.workloads.trainer import profiling
from aorta.workloads.trainer.loop import Loop
from aorta.workloads.trainer.profiling import LoopProfiler, check_profiling
from aorta.workloads.trainer.summary import Observer
from aorta.workloads.trainer.world import StopSignal, World
from tests.support.step_records import read_records
from tests.workloads.trainer.tiny import tiny


def follow(warmup_steps: int, folder: Path, **profiling: Any) -> LoopProfiler:
    """A profiler behind so many steps of warm-up of the run itself."""
    block = ProfilingConfig(enabled=True, **profiling)
    return LoopProfiler(Config(capture=CaptureConfig(warmup_steps=warmup_steps), profiling=block), folder)


def test_two_tracers_in_one_process_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AORTA_PROFILER", "nsys")
    check_profiling(Config(profiling=ProfilingConfig(enabled=False)))
    with pytest.raises(ConfigError, match="runs under nsys"):
        check_profiling(Config(profiling=ProfilingConfig(enabled=True)))
    monkeypatch.setenv("AORTA_PROFILER", "none")
    check_profiling(Config(profiling=ProfilingConfig(enabled=True)))


def test_a_profile_that_writes_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AORTA_PROFILER", raising=False)
    with pytest.raises(ConfigError, match=r"profiling\.tensorboard and profiling\.chrome_trace are false"):
        check_profiling(Config(profiling=ProfilingConfig(enabled=True, tensorboard=False)))


def test_one_torch_profiler_in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AORTA_PROFILER", raising=False)
    capture = CaptureConfig(kernel_interval=10)
    check_profiling(Config(capture=capture))
    with pytest.raises(ConfigError, match=r"capture\.kernel_interval is set"):
        check_profiling(Config(capture=capture, profiling=ProfilingConfig(enabled=True)))


def test_profiled_steps_do_not_count_as_usual(tmp_path: Path) -> None:
    profiler = follow(3, tmp_path, wait=2, warmup=1, active=2, repeat=1)
    phases = []
    for _ in range(9):
        phases.append(profiler.phase())
        profiler.after_step()
    assert phases == [None] * (3 + 2) + ["profiler"] * (1 + 2) + [None]
    off = LoopProfiler(Config(profiling=ProfilingConfig(enabled=False, wait=0)), tmp_path)
    assert off.phase() is None


@pytest.mark.parametrize("repeat", [0, 1, 2])
@pytest.mark.parametrize(("skipped", "wait", "warmup", "active"), [(0, 0, 1, 1), (3, 2, 1, 2), (10, 1, 0, 3)])
def test_the_analysis_knows_which_steps_are_recorded(
    tmp_path: Path, skipped: int, wait: int, warmup: int, active: int, repeat: int
) -> None:
    block = ProfilingConfig(enabled=True, wait=wait, warmup=warmup, active=active, repeat=repeat)
    profiler = LoopProfiler(Config(capture=CaptureConfig(warmup_steps=skipped), profiling=block), tmp_path)
    known = capture_window._by_torch(block, skipped)
    recorded = []
    for step in range(40):
        assert known(step) == profiler._recorded(step), step
        recorded += [step] if known(step) else []
    assert recorded[0] == skipped + wait + warmup
    assert repeat == 0 or len(recorded) == repeat * active


def trained(folder: Path, *overrides: str) -> None:
    """A run of one rank, as the trainer makes it."""
    config = tiny(folder, *overrides)
    world = World(0, 0, 1, 0, torch.device("cpu"), None)
    with StepRecorder(folder, world.device, capture=config.capture) as recorder:
        observer = Observer(world, 100, recorder.run.metrics_csv)
        recorder.listen(observer.see)
        Loop(config, Ranking(config), world, recorder, observer).run(StopSignal(world))


def test_the_traced_steps_are_steady_ones(tmp_path: Path) -> None:
    trained(tmp_path, "profiling.enabled=true", "capture.warmup_steps=3", "training.max_steps=9")
    records = read_records(tmp_path)
    phases = [record.phase for record in records]
    assert phases == ["warmup"] * 3 + ["steady"] + ["profiler"] * (1 + 2) + ["steady"] * 2
    (path,) = tmp_path.glob("torch_profiler/rank0/*.pt.trace.json")
    trace = json.loads(path.read_text())
    steps = {
        event["name"]: (trace["baseTimeNanoseconds"] + 1e3 * event["ts"], 1e3 * event["dur"])
        for event in trace["traceEvents"]
        if event.get("ph") == "X" and event["name"].startswith("ProfilerStep#")
    }
    assert sorted(steps) == ["ProfilerStep#5", "ProfilerStep#6"]
    # On the wall clock they are the records of the same numbers.
    for number in (5, 6):
        start, duration = steps[f"ProfilerStep#{number}"]
        middle = (records[number].wall_start_ns + records[number].wall_end_ns) / 2
        assert start < middle < start + duration


@pytest.mark.parametrize(("max_steps", "refused"), [(12, True), (13, False), (0, False)])
def test_a_run_that_ends_before_the_recording_is_refused(
    monkeypatch: pytest.MonkeyPatch, max_steps: int, refused: bool
) -> None:
    monkeypatch.delenv("AORTA_PROFILER", raising=False)
    config = Config(
        training=TrainingConfig(max_steps=max_steps),
        capture=CaptureConfig(warmup_steps=10),
        profiling=ProfilingConfig(enabled=True, wait=1, warmup=1, active=2),
    )
    if refused:
        with pytest.raises(ConfigError, match=r"would be number 12, .*\n.*max_steps to 14 or more"):
            check_profiling(config)
    else:
        check_profiling(config)


@pytest.mark.parametrize(("steps", "says"), [(2, True), (3, False)])
def test_a_dataset_that_ends_before_the_recording_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, steps: int, says: bool
) -> None:
    profiler = follow(1, tmp_path / "rank0", wait=0, warmup=1, active=2)
    with profiler.running():
        for _ in range(steps):
            profiler.after_step()
    assert (tmp_path / "rank0").exists() is not says
    said = [message for message in caplog.messages if "recorded nothing" in message]
    assert said == (
        ["torch.profiler recorded nothing: it begins with step 2, and the run had 2 steps"] * says
    )


def test_each_cycle_leaves_its_traces(tmp_path: Path) -> None:
    folder = tmp_path / "rank3"
    profiler = follow(
        0, folder, wait=0, warmup=1, active=1, repeat=2, chrome_trace=True, trace_filename="t.json"
    )
    with profiler.running():
        for _ in range(5):
            profiler.after_step()
    assert sorted(path.name for path in folder.iterdir()) == [
        "rank3.0.pt.trace.json",
        "rank3.1.pt.trace.json",
        "t.json",
        "t_1.json",
    ]
    assert "traceEvents" in json.loads((folder / "t_1.json").read_text())


def test_a_chrome_trace_alone(tmp_path: Path) -> None:
    folder = tmp_path / "rank0"
    profiler = follow(0, folder, wait=0, warmup=1, active=1, tensorboard=False, chrome_trace=True)
    with profiler.running():
        profiler.after_step()
        profiler.after_step()
    assert [path.name for path in folder.iterdir()] == ["trace.json"]


def contents(folder: Path, *overrides: str) -> set[str]:
    """Categories of a one-step trace's events, and the names of their arguments."""
    always = ["profiling.enabled=true", "profiling.wait=0", "profiling.active=1", "capture.warmup_steps=0"]
    trained(folder, *always, "training.max_steps=2", *overrides)
    (path,) = folder.glob("torch_profiler/rank0/*.json")
    events = json.loads(path.read_text())["traceEvents"]
    return {name for event in events for name in (event.get("cat"), *(event.get("args") or ()))}


def test_what_a_trace_holds_is_chosen(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    usual = contents(tmp_path / "usual")
    assert {"cpu_op", "Input Dims", "Total Allocated"} <= usual
    assert "python_function" not in usual
    assert "Input Dims" not in contents(tmp_path / "shapes", "profiling.record_shapes=false")
    assert "Total Allocated" not in contents(tmp_path / "memory", "profiling.profile_memory=false")
    assert "python_function" in contents(tmp_path / "stack", "profiling.with_stack=true")


class Counted:
    """As much of a finished profile as is asked for its operations."""

    def __init__(self, **flops: int) -> None:
        self._flops = flops

    def key_averages(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(key=name, flops=number) for name, number in self._flops.items()]


def test_operations_are_counted_by_operator(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert profiling._operations(Counted(mm=3_000_000_000, add=500_000_000, view=0)) == (  # type: ignore[arg-type]
        "3.5 G (mm 3 G, add 0.5 G)"
    )
    assert profiling._operations(Counted(view=0)).startswith("none")  # type: ignore[arg-type]
    with caplog.at_level("INFO", logger="aorta.workloads.trainer.profiling"):
        contents(tmp_path / "off")
        assert "floating-point" not in caplog.text
        contents(tmp_path / "on", "profiling.with_flops=true")
        assert "aten::addmm" in caplog.text.partition("floating-point operations in this trace")[2]
