"""A GPU that fell off the bus costs itself, and is named."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from aorta.monitors import cgroup, tools
from aorta.monitors import vendor_library as library
from tests.monitors.fakes import FakeNvml, NVMLError_GpuIsLost

GPUS = [(f"GPU-{letter * 8}-0000-0000-0000-000000000000", "NVIDIA H100") for letter in "abcd"]


class Losing(FakeNvml):
    NVMLError_GpuIsLost = NVMLError_GpuIsLost
    lost = True

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        if self.lost and index == 2:
            raise NVMLError_GpuIsLost("GPU is lost")
        return super().nvmlDeviceGetHandleByIndex(index)

    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any:
        if self.lost and handle == GPUS[2][0]:
            raise NVMLError_GpuIsLost("GPU is lost")
        return super().nvmlDeviceGetUtilizationRates(handle)


@pytest.mark.parametrize(
    ("wanted", "numbers"), [([], [0, 1, 2]), ([gpu[0] for gpu in GPUS], [0, 1, 3]), ([GPUS[3][0]], [0])]
)
def test_the_others_are_sampled_and_the_lost_one_is_named(wanted: list[str], numbers: list[int]) -> None:
    source = library.LibrarySource(library.nvml_library(Losing(*GPUS)), wanted, {}).open()
    assert [reading.gpu_id for reading in source.sample()] == numbers
    assert "GPU 2 does not answer: GPU is lost" in source.errors


def test_a_gpu_that_is_lost_meanwhile_keeps_its_number() -> None:
    nvml = Losing(*GPUS)
    nvml.lost, nvml.busy = False, 50
    source = library.LibrarySource(library.nvml_library(nvml), [], {}).open()
    assert [reading.sample.utilization_gpu for reading in source.sample()] == [50] * 4
    nvml.lost = True
    for _ in range(2):
        readings = source.sample()
        assert [(reading.gpu_id, reading.sample.utilization_gpu) for reading in readings] == [
            (0, 50), (1, 50), (2, None), (3, 50)
        ]  # fmt: skip


def test_nvidia_smi_that_fails_for_one_gpu_lists_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = "\n".join(f"{index}, {uuid}, {name}, 81559 MiB" for index, (uuid, name) in enumerate(GPUS[:2]))
    lost = "Unable to determine the device handle for GPU2: 0000:8A:00.0: Unknown Error"
    program = tmp_path / "nvidia-smi"
    program.write_text(
        f"#!/bin/sh\ncat <<END\nindex, uuid, name, memory.total [MiB]\n{rows}\n{lost}\nEND\nexit 255\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert [device.uuid for device in tools.list_nvidia_smi()] == [uuid for uuid, _ in GPUS[:2]]


@pytest.mark.parametrize(
    ("path", "level"),
    [
        ("system.slice/slurmstepd.scope/job_4749/step_0/user/task_0", "job_4749"),
        ("system.slice/slurmstepd.scope/s5K1KKYAYG5D00/step_0/user/task_0", "s5K1KKYAYG5D00"),
        ("system.slice/slurmstepd.scope/s5K1KKYAYG5D00/step_batch/user/task_0", "s5K1KKYAYG5D00"),
        ("user.slice/session-3.scope", "session-3.scope"),
    ],
)
def test_the_level_of_the_job(tmp_path: Path, path: str, level: str) -> None:
    proc, mount = tmp_path / "proc", tmp_path / "fs"
    (mount / path).mkdir(parents=True)
    proc.mkdir()
    (proc / "cgroup").write_text(f"0::/{path}\n")
    (proc / "mountinfo").write_text(f"34 24 0:29 / {mount} rw - cgroup2 cgroup2 rw\n")
    found = cgroup.find_group("memory", proc)
    assert found is not None
    assert found.folder.name == level


@pytest.mark.parametrize(
    ("environment", "limit"),
    [
        ({"SLURM_MEM_PER_NODE": "16000"}, 16000 << 20),
        ({"SLURM_MEM_PER_CPU": "2000", "SLURM_CPUS_ON_NODE": "4"}, 8000 << 20),
        ({"SLURM_MEM_PER_NODE": "0"}, None),
        ({}, None),
    ],
)
def test_what_slurm_gave_the_job_counts_where_no_limit_shows(
    environment: dict[str, str], limit: int | None
) -> None:
    assert cgroup.memory_limit_bytes(None, environment) == limit
