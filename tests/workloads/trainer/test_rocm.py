"""ROCm's rules and sampler, with stand-ins: no AMD GPU is needed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from aorta.config.load import load_config
from aorta.config.schema import Config
from aorta.workloads.trainer import rocm
from aorta.workloads.trainer.rocm import SmiSampler, adapt, physical_device, sampled, smi_command

COMPILED = load_config(None, ["compile.enabled=true", "profiling.chrome_trace=true"])


def test_nothing_changes_without_rocm() -> None:
    assert adapt(COMPILED, hip=False, named=()) == (COMPILED, [])


def test_inductor_and_chrome_traces_are_replaced_with_the_reason() -> None:
    config, changed = adapt(COMPILED, hip=True, named=())
    assert config.compile.backend == "aot_eager"
    assert not config.profiling.chrome_trace
    assert ["aot_eager instead of inductor" in changed[0], "known to crash" in changed[1]] == [True, True]
    assert len(changed) == 2


def test_a_backend_that_was_named_stays() -> None:
    config, _ = adapt(COMPILED, hip=True, named=("compile.backend",))
    assert config.compile.backend == "inductor"
    config, _ = adapt(load_config(None, ["compile.backend=eager"]), hip=True, named=())
    assert config.compile.backend == "eager"


def test_what_is_off_anyway_is_not_reported() -> None:
    assert adapt(Config(), hip=True, named=())[1] == []


@pytest.mark.parametrize(
    ("local_rank", "environment", "device"),
    [
        (1, {}, "1"),
        (1, {"HIP_VISIBLE_DEVICES": "4,5"}, "5"),
        (1, {"CUDA_VISIBLE_DEVICES": "2,3"}, "3"),
        (1, {"HIP_VISIBLE_DEVICES": "0,2", "ROCR_VISIBLE_DEVICES": "4,5,6"}, "6"),
        (0, {"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "7"}, "1"),
        (0, {"ROCR_VISIBLE_DEVICES": "GPU-abc"}, None),
        (2, {"HIP_VISIBLE_DEVICES": "4,5"}, None),
    ],
)
def test_the_tools_count_other_devices_than_torch(
    local_rank: int, environment: dict[str, str], device: str | None
) -> None:
    assert physical_device(local_rank, environment) == device


def test_one_device_or_all() -> None:
    assert smi_command("rocm-smi", "3")[-2:] == ["-d", "3"]
    assert smi_command("amd-smi", "3")[-2:] == ["-g", "3"]
    assert smi_command("rocm-smi", None)[-1] == "--json"


@pytest.mark.parametrize(
    ("hip", "tool", "missing"),
    [
        (None, None, "this torch is not built for ROCm"),
        ("6.3", None, "neither amd-smi nor rocm-smi is installed here"),
        ("6.3", "/usr/bin/rocm-smi", None),
    ],
)
def test_what_is_missing(
    hip: str | None, tool: str | None, missing: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rocm.torch.version, "hip", hip)
    monkeypatch.setattr(rocm.shutil, "which", lambda name: tool)
    assert rocm.missing() == missing


def tool(folder: Path, body: str) -> Path:
    program = folder / "rocm-smi"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    return program


def wait_for(reached: object, limit_s: float = 20.0) -> None:
    deadline = time.monotonic() + limit_s
    while not reached():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_each_output_is_given_out_once(tmp_path: Path) -> None:
    sampler = SmiSampler([str(tool(tmp_path, "echo '{\"card0\": {}}'")), "--json"], interval_s=60)
    with sampler.running():
        found: list[str] = []
        wait_for(lambda: found.append(taken) if (taken := sampler.take()) else found)
        assert found == ['{"card0": {}}']
        assert sampler.take() is None


def test_a_tool_that_fails_is_said_once_and_gives_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sampler = SmiSampler([str(tool(tmp_path, "echo no permission >&2; exit 3"))], interval_s=0.001)
    with sampler.running():
        wait_for(lambda: caplog.messages)
        time.sleep(0.05)
    assert len(caplog.messages) == 1
    assert "no permission" in caplog.messages[0]
    assert sampler.take() is None


def test_the_flag_finds_the_tool_and_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(tmp_path, 'echo "$@"')
    monkeypatch.setattr(rocm.torch.version, "hip", "6.3")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/bin:/usr/bin")
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "6,7")
    with sampled(True, 1, 60) as sampler:
        assert sampler is not None
        found: list[str] = []
        wait_for(lambda: found.append(taken) if (taken := sampler.take()) else found)
    assert found[0].endswith("--json -d 7")
    with sampled(False, 1, 60) as nothing:
        assert nothing is None
