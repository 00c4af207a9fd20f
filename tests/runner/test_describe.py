"""What a node is: clocks, limits, packages, environment."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from aorta.artefacts.layout import Scenario
from aorta.artefacts.records import GpuInfo, ProfilerChoice
from aorta.monitors.cgroup import CgroupFolder
from aorta.monitors.gpu import Gpus
from aorta.runner import describe, environment
from aorta.runner.clock import read_clocks
from aorta.runner.options import NodeOptions

CHOICE = ProfilerChoice(requested="none", resolved="none", reason="switched off")


def test_clocks_are_of_one_instant():
    before = time.time_ns(), time.monotonic_ns(), time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    clocks = read_clocks()
    after = time.time_ns(), time.monotonic_ns(), time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    read = clocks.realtime_ns, clocks.monotonic_ns, clocks.boottime_ns
    assert all(low <= value <= high for low, value, high in zip(before, read, after, strict=True))


def processes_folder(tmp_path, quota):
    """A stand-in for /proc/self of a process whose version 2 cgroup has this quota; None: no quota."""
    group = tmp_path / "cgroup/job_7"
    group.mkdir(parents=True)
    if quota is not None:
        (group / "cpu.max").write_text(quota)
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / "cgroup").write_text("0::/job_7\n")
    (proc / "mountinfo").write_text(f"30 1 0:26 / {tmp_path}/cgroup rw - cgroup2 cgroup2 rw\n")
    return proc


@pytest.mark.parametrize(
    ("quota", "expected"),
    [
        ("150000 100000", 1),
        ("50000 100000", 1),
        ("max 100000", None),
        (None, None),
        ("99900000 100000", None),
    ],
)
def test_a_quota_holds_the_cpus_below_the_affinity_mask(tmp_path, quota, expected):
    allowed = len(os.sched_getaffinity(0))
    proc = processes_folder(tmp_path, quota)
    assert describe.cpus_usable(proc) == (allowed if expected is None else expected)


def test_only_listed_variables_are_recorded_and_no_secret():
    environ = {
        "NCCL_DEBUG": "INFO",
        "NCCL_AUTH_TOKEN": "hidden",
        "OMP_NUM_THREADS": "4",
        "HF_TOKEN": "hidden",
        "HOME": "/home/someone",
        "SLURM_JOB_ID": "7",
    }
    kept = environment.recorded(environ)
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


@pytest.mark.parametrize(("hangs", "version"), [(0, "tool 3.1"), (1, "tool 3.1"), (2, None)])
def test_a_program_that_hangs_once_is_asked_again(tmp_path, monkeypatch, hangs, version):
    program = tmp_path / "tool"
    asked = tmp_path / "asked"
    program.write_text(
        f"#!/bin/bash\necho >> {asked}\n[ $(wc -l < {asked}) -gt {hangs} ] || exec sleep 60\necho tool 3.1\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(describe, "_TIMEOUTS_S", (1.0, 1.5))
    choice = ProfilerChoice(requested="nsys", resolved="nsys", reason="asked for", program=str(program))
    assert describe.with_version(choice).version == version


def test_the_commit_of_a_program_is_that_of_its_checkout(tmp_path):
    def git(*words):
        command = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    (tmp_path / "inner").mkdir()
    assert describe.program_commit(tmp_path / "inner") is None
    git("init", "-q")
    (tmp_path / "train.py").write_text("1\n")
    git("add", ".")
    git("commit", "-q", "-m", "one")
    commit = git("rev-parse", "--short=12", "HEAD")
    assert describe.program_commit(tmp_path / "inner") == commit
    (tmp_path / "train.py").write_text("2\n")
    assert describe.program_commit(tmp_path) == f"{commit}-dirty"


@pytest.mark.parametrize(
    ("folder", "of_job"),
    [
        ("/sys/fs/cgroup/memory/slurm/uid_0/job_77/step_0", True),
        ("/sys/fs/cgroup/system.slice/slurmstepd.scope/job_77", True),
        ("/sys/fs/cgroup/memory/slurm/uid_0/job_771/step_0", False),
        ("/sys/fs/cgroup/user.slice", False),
    ],
)
def test_a_cgroup_of_slurm_carries_the_jobs_id(folder, of_job):
    assert describe.memory_of_job("77", CgroupFolder(Path(folder), (), 2)) is of_job
    assert describe.memory_of_job("77", None) is False
