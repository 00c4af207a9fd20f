"""What a node is: clocks, limits, packages, environment."""

from __future__ import annotations

import os
import time

import pytest

from aorta.artefacts.layout import Scenario
from aorta.artefacts.records import GpuInfo, ProfilerChoice
from aorta.runner import describe, limits
from aorta.runner.clock import read_clocks
from aorta.runner.gpus import Gpus
from aorta.runner.options import NodeOptions

CHOICE = ProfilerChoice(requested="none", resolved="none", reason="switched off")


def test_clocks_are_of_one_instant():
    before = time.time_ns(), time.monotonic_ns(), time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    clocks = read_clocks()
    after = time.time_ns(), time.monotonic_ns(), time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    read = clocks.realtime_ns, clocks.monotonic_ns, clocks.boottime_ns
    assert all(low <= value <= high for low, value, high in zip(before, read, after, strict=True))


def tree(tmp_path, files):
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


V2 = {"proc/self/cgroup": "0::/job_7/step_0\n"}
V1 = {"proc/self/cgroup": "4:memory:/job_7\n3:cpu,cpuacct:/job_7\n"}


def test_the_tightest_limit_of_the_ancestors_counts(tmp_path):
    root = tree(
        tmp_path,
        {
            **V2,
            "sys/fs/cgroup/job_7/step_0/memory.max": "max",
            "sys/fs/cgroup/job_7/memory.max": "4096",
            "sys/fs/cgroup/memory.max": "8192",
            "sys/fs/cgroup/job_7/cpu.max": "150000 100000",
            "sys/fs/cgroup/job_7/step_0/cpu.max": "max 100000",
        },
    )
    assert limits.memory_limit_bytes(root) == 4096
    assert limits.cpus_usable(root) == 1


def test_cgroup_v1(tmp_path):
    root = tree(
        tmp_path,
        {
            **V1,
            "sys/fs/cgroup/memory/job_7/memory.limit_in_bytes": "2048",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
            "sys/fs/cgroup/cpu,cpuacct/job_7/cpu.cfs_quota_us": "50000",
            "sys/fs/cgroup/cpu,cpuacct/job_7/cpu.cfs_period_us": "100000",
        },
    )
    assert limits.memory_limit_bytes(root) == 2048
    assert limits.cpus_usable(root) == 1


@pytest.mark.parametrize(
    "files", [{}, V2, {**V1, "sys/fs/cgroup/memory/memory.limit_in_bytes": str(1 << 63)}]
)
def test_no_limit_is_none_and_the_affinity_mask(tmp_path, files):
    root = tree(tmp_path, files)
    assert limits.memory_limit_bytes(root) is None
    assert limits.cpus_usable(root) == len(os.sched_getaffinity(0))


def test_a_limit_of_zero_is_a_limit(tmp_path):
    root = tree(tmp_path, {**V2, "sys/fs/cgroup/job_7/memory.max": "0"})
    assert limits.memory_limit_bytes(root) == 0


def test_only_listed_variables_are_recorded_and_no_secret():
    environ = {
        "NCCL_DEBUG": "INFO",
        "NCCL_AUTH_TOKEN": "hidden",
        "OMP_NUM_THREADS": "4",
        "HF_TOKEN": "hidden",
        "HOME": "/home/someone",
        "SLURM_JOB_ID": "7",
    }
    kept = describe.recorded_environment(environ)
    assert kept == {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "4", "SLURM_JOB_ID": "7"}


def test_packages_name_python_and_what_is_installed():
    found = describe.packages()
    assert found["python"].count(".") == 2
    assert "msgspec" in found
    assert "amdsmi-that-is-not-there" not in found


@pytest.mark.parametrize(("asked", "gpus", "expected"), [(None, 0, 1), (None, 3, 3), (2, 3, 2)])
def test_ranks_are_asked_for_or_one_a_gpu_or_one(tmp_path, asked, gpus, expected):
    options = NodeOptions(
        scenario=Scenario("1node"),
        results=tmp_path,
        config=None,
        procs_per_node=asked,
        executor="local",
        job_id="j",
        node_index=0,
        nodes=1,
    )
    found = Gpus(
        "nvidia" if gpus else None, [GpuInfo(index=i, uuid=f"GPU-{i}", name="x") for i in range(gpus)], "t"
    )
    info = describe.describe_node(options, found, CHOICE, {})
    assert info.processes == expected
    assert info.gpus == found.visible
    assert info.attempt == 0
