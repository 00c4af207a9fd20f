from __future__ import annotations

import json
from pathlib import Path

import pytest

from aorta.config.schema import Capture, Config, Profiling
from aorta.errors import ConfigError
from aorta.train.profiling import LoopProfiler, check_profiling


def test_two_tracers_in_one_process_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AORTA_PROFILER", "nsys")
    check_profiling(Config(profiling=Profiling(enabled=False)))
    with pytest.raises(ConfigError, match="runs under nsys"):
        check_profiling(Config(profiling=Profiling(enabled=True)))
    monkeypatch.setenv("AORTA_PROFILER", "none")
    check_profiling(Config(profiling=Profiling(enabled=True)))


def test_a_profile_that_writes_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AORTA_PROFILER", raising=False)
    with pytest.raises(ConfigError, match=r"neither profiling\.tensorboard nor"):
        check_profiling(Config(profiling=Profiling(enabled=True, tensorboard=False)))


def test_one_torch_profiler_in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AORTA_PROFILER", raising=False)
    capture = Capture(kernel_interval=10)
    check_profiling(Config(capture=capture))
    with pytest.raises(ConfigError, match=r"capture\.kernel_interval is set"):
        check_profiling(Config(capture=capture, profiling=Profiling(enabled=True)))


def test_profiled_steps_do_not_count_as_usual(tmp_path: Path) -> None:
    profiler = LoopProfiler(Profiling(enabled=True, wait=2, warmup=1, active=2, repeat=1), tmp_path)
    phases = []
    for _ in range(6):
        phases.append(profiler.phase())
        profiler.after_step()
    assert phases == [None, None, "profiler", "profiler", "profiler", None]
    assert LoopProfiler(Profiling(enabled=False, wait=0), tmp_path).phase() is None


def test_each_cycle_leaves_its_traces(tmp_path: Path) -> None:
    folder = tmp_path / "rank3"
    config = Profiling(
        enabled=True, wait=0, warmup=1, active=1, repeat=2, chrome_trace=True, trace_filename="t.json"
    )
    profiler = LoopProfiler(config, folder)
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
    config = Profiling(enabled=True, wait=0, warmup=1, active=1, tensorboard=False, chrome_trace=True)
    profiler = LoopProfiler(config, folder)
    with profiler.running():
        profiler.after_step()
        profiler.after_step()
    assert [path.name for path in folder.iterdir()] == ["trace.json"]
