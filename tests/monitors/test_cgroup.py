"""The job's cgroup in trees laid out as the kernel, Slurm and container runtimes lay them out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aorta.monitors.cgroup import JobMemory, JobUsage, OpenFile, cpu_limit, find_group, memory_limit_bytes


class Machine:
    """A /proc/self and cgroup mounts below one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.proc = root / "proc"
        self.proc.mkdir()
        self.mounts: list[str] = ["22 1 0:21 / /proc rw - proc proc rw"]
        self.own("")

    def own(self, text: str) -> None:
        (self.proc / "cgroup").write_text(text)

    def v2(self, root: str = "/") -> Path:
        return self._mount("unified", root, "cgroup2", "rw")

    def v1(self, controllers: str, root: str = "/") -> Path:
        return self._mount(controllers, root, "cgroup", f"rw,{controllers}")

    def _mount(self, name: str, root: str, kind: str, options: str) -> Path:
        folder = self.root / "sys fs" / name  # mountinfo escapes the space
        folder.mkdir(parents=True)
        place = str(folder).replace(" ", "\\040")
        self.mounts.append(f"30 22 0:27 {root} {place} rw,nosuid shared:9 - {kind} {kind} {options}")
        (self.proc / "mountinfo").write_text("\n".join(self.mounts) + "\n")
        return folder


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def write(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        (folder / name.replace("__", ".")).write_text(f"{value}\n")


def test_v2_below_slurm_is_the_level_of_the_job(machine):
    mount = machine.v2()
    machine.own("0::/system.slice/slurmstepd.scope/job_12/step_0/user/task_0\n")
    job = mount / "system.slice/slurmstepd.scope/job_12"
    write(job / "step_0/user/task_0", memory__current=1)
    write(
        job, memory__current=5000, memory__stat="anon 1\ninactive_file 1500\nactive_file 9", memory__max=9000
    )
    write(job, cpu__stat="usage_usec 77\nuser_usec 1", cpu__max="150000 100000")
    group = find_group("memory", machine.proc)
    assert group is not None
    assert group.folder == job
    usage = JobUsage(group, find_group("cpuacct", machine.proc))
    assert usage.memory() == JobMemory(used_bytes=5000 - 1500, swap_bytes=None, limit_hits=None)
    assert usage.cpu_ns() == 77_000
    assert memory_limit_bytes(group) == 9000
    assert cpu_limit(find_group("cpu", machine.proc)) == 1.5
    write(job, memory__current=6000)
    assert usage.memory().used_bytes == 6000 - 1500  # the open file is read again
    write(job, memory__swap__current=0, memory__events="low 1\nmax 0", memory__pressure="some total=5")
    usage = JobUsage(group, None)
    assert usage.memory() == JobMemory(used_bytes=6000 - 1500, swap_bytes=0, limit_hits=0)
    assert usage.pressure() == "some total=5\n"
    usage.close()


def test_v1_below_slurm(machine):
    memory, cpu = machine.v1("memory"), machine.v1("cpu,cpuacct")
    machine.own(
        "4:memory:/slurm/uid_0/job_7/step_0/task_0\n3:cpu,cpuacct:/slurm/uid_0/job_7/step_0/task_0\n0::/\n"
    )
    write(memory / "slurm/uid_0/job_7/step_0/task_0")
    write(cpu / "slurm/uid_0/job_7/step_0/task_0")
    job = "slurm/uid_0/job_7"
    write(memory / job, memory__usage_in_bytes=100, memory__limit_in_bytes=400)
    write(
        memory / job, memory__stat="inactive_file 1\ntotal_inactive_file 30\ntotal_swap 7", memory__failcnt=2
    )
    write(cpu / job, cpuacct__usage=123456, cpu__cfs_quota_us=-1, cpu__cfs_period_us=100000)
    usage = JobUsage(find_group("memory", machine.proc), find_group("cpuacct", machine.proc))
    assert usage.memory() == JobMemory(used_bytes=100 - 30, swap_bytes=7, limit_hits=2)
    assert usage.pressure() is None
    assert usage.cpu_ns() == 123456
    assert memory_limit_bytes(find_group("memory", machine.proc)) == 400
    assert cpu_limit(find_group("cpu", machine.proc)) is None  # -1: no quota
    usage.close()


def test_the_smallest_limit_of_the_levels_binds(machine):
    mount = machine.v2()
    machine.own("0::/a/b\n")
    write(mount / "a/b", memory__max="max", cpu__max="max 100000")
    write(mount / "a", memory__max=700, cpu__max="300000 100000")
    assert memory_limit_bytes(find_group("memory", machine.proc)) == 700
    assert cpu_limit(find_group("cpu", machine.proc)) == 3
    write(mount / "a/b", memory__max=900, cpu__max="200000 100000")
    assert memory_limit_bytes(find_group("memory", machine.proc)) == 700
    assert cpu_limit(find_group("cpu", machine.proc)) == 2


def test_no_limit_is_none(machine):
    v1 = machine.v1("memory")
    machine.own("4:memory:/a\n")
    write(v1 / "a", memory__limit_in_bytes=9223372036854771712)
    assert memory_limit_bytes(find_group("memory", machine.proc)) is None
    assert memory_limit_bytes(None) is None
    assert cpu_limit(None) is None


def test_at_the_root_there_is_nothing_of_the_job_alone(machine):
    mount, v1 = machine.v2(), machine.v1("cpuacct")
    write(mount, cpu__stat="usage_usec 77")  # the root has it too: the whole machine's
    write(v1, cpuacct__usage=5)
    machine.own("3:cpuacct:/\n0::/\n")
    assert find_group("memory", machine.proc) is None
    assert find_group("cpuacct", machine.proc) is None
    usage = JobUsage(None, None)
    assert (usage.memory(), usage.pressure(), usage.cpu_ns()) == (JobMemory(), None, None)


def test_a_container_whose_group_is_the_mount_point(machine):
    mount = machine.v2()
    write(mount, memory__current=50, memory__stat="inactive_file 0")  # a true root has no memory.current
    machine.own("0::/\n")
    group = find_group("memory", machine.proc)
    assert group is not None
    assert JobUsage(group, None).memory().used_bytes == 50


def test_a_container_with_a_v1_mount_of_its_own_part(machine):
    v1 = machine.v1("memory", root="/docker/abc")
    write(v1, memory__usage_in_bytes=60, memory__stat="total_inactive_file 10")
    machine.own("4:memory:/docker/abc\n")
    assert JobUsage(find_group("memory", machine.proc), None).memory().used_bytes == 60 - 10


@pytest.mark.parametrize("own", ["", "0::/../other\n", "0::/gone\n"])
def test_a_group_that_cannot_be_seen_is_none(machine, own):
    machine.v2()
    machine.own(own)
    assert find_group("memory", machine.proc) is None


def test_no_procfs_no_group(tmp_path):
    assert find_group("memory", tmp_path / "proc") is None


def test_memory_of_zero_is_measured_and_a_missing_file_is_not(machine):
    mount = machine.v2()
    machine.own("0::/a\n")
    write(mount / "a", memory__current=10, memory__stat="inactive_file 10")
    assert JobUsage(find_group("memory", machine.proc), None).memory().used_bytes == 0
    (mount / "a/memory.stat").unlink()
    assert JobUsage(find_group("memory", machine.proc), None).memory().used_bytes is None


def test_a_table_longer_than_a_page_is_read_whole():
    file = OpenFile(Path("/proc/self/smaps"))
    text = file.read()
    file.close()
    assert text is not None
    assert len(text) > 2 * os.sysconf("SC_PAGE_SIZE")
    assert (
        text.splitlines()[-1].split(":")[0]
        == Path("/proc/self/smaps").read_text().splitlines()[-1].split(":")[0]
    )


def test_a_file_that_is_not_there(tmp_path):
    file = OpenFile(tmp_path / "none")
    assert file.read() is None
    file.close()
