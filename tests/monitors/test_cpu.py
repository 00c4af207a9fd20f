"""The CPU sampler on a small made-up machine, and once on this one."""

from __future__ import annotations

import os
import time
from pathlib import Path

from aorta.artefacts.columns import CPU_COLUMNS
from aorta.monitors.cpu import CpuSampler

GIB_KB = 1 << 20


def machine(root: Path) -> tuple[Path, Path, Path]:
    proc, sysfs, group = root / "proc", root / "sys", root / "cgroup/job_3"
    for folder in (
        proc / "self/net",
        sysfs / "block/sda/device",
        sysfs / "block/dm-0",
        sysfs / "class/net/br0/bridge",
        group,
    ):
        folder.mkdir(parents=True)
    (sysfs / "class/net/eth0").mkdir()
    ticks(proc, busy=100, idle=900)
    (proc / "meminfo").write_text(
        f"MemTotal: {8 * GIB_KB} kB\nMemAvailable: {6 * GIB_KB} kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n"
    )
    (proc / "diskstats").write_text(" 8 0 sda 1 0 4 5 2 0 6 6 0 7 8\n 253 0 dm-0 1 0 4 5 2 0 6 6 0 7 8\n")
    zeros = " 0" * 7
    (proc / "self/net/dev").write_text(
        f"lo: 5{zeros} 5{zeros}\neth0: 30{zeros} 20{zeros}\nbr0: 30{zeros} 20{zeros}\n"
    )
    (proc / "self/cgroup").write_text("0::/job_3\n")
    (proc / "self/mountinfo").write_text(f"30 22 0:27 / {group.parent} rw - cgroup2 cgroup2 rw\n")
    (group / "memory.current").write_text("700\n")
    (group / "memory.stat").write_text("inactive_file 200\n")
    (group / "memory.max").write_text("1000\n")
    (proc / "vmstat").write_text("pswpin 3\npswpout 0\n")
    (proc / "pressure").mkdir()
    (proc / "pressure/memory").write_text("some avg10=0.00 total=9000\n")
    (group / "memory.swap.current").write_text("0\n")
    (group / "memory.events").write_text("low 0\nhigh 0\nmax 4\noom 0\noom_kill 0\n")
    (group / "memory.pressure").write_text("some avg10=0.00 total=1500\n")
    (group / "cpu.stat").write_text("usage_usec 1000000\n")
    (group / "cpu.max").write_text("50000 100000\n")
    return proc, sysfs, group


def ticks(proc: Path, busy: int, idle: int) -> None:
    (proc / "stat").write_text(f"cpu  {busy} 0 0 {idle} 0 0 0 0 0 0\n")


def row(sampler: CpuSampler, mono_ns: int) -> dict[str, object]:
    return dict(sampler.sample(mono_ns))


def test_the_cells_of_two_samples(tmp_path):
    proc, sysfs, group = machine(tmp_path)
    sampler = CpuSampler(proc, sysfs)
    first = row(sampler, 10**9)
    assert first == {
        "cpu_percent": None,
        "memory_percent": 100 * 2 / 8,
        "memory_used_gb": 2,
        "memory_total_gb": 8,
        "job_cpu_percent": None,
        "job_memory_used_bytes": 700 - 200,
        "job_memory_limit_bytes": 1000,
        "cpus_usable": 0.5,
        "disk_read_bytes": 4 * 512,
        "disk_write_bytes": 6 * 512,
        "net_sent_bytes": 20,
        "net_recv_bytes": 30,
        "swap_used_bytes": 0,
        "swap_in_bytes": 3 * os.sysconf("SC_PAGE_SIZE"),
        "swap_out_bytes": 0,
        "job_swap_used_bytes": 0,
        "job_memory_limit_hits": 4,
        "memory_stall_ms": 1.5,
        "ib_sent_bytes": None,
        "ib_recv_bytes": None,
    }
    ticks(proc, busy=130, idle=970)
    (group / "cpu.stat").write_text("usage_usec 1500000\n")
    second = row(sampler, 3 * 10**9)
    assert second["cpu_percent"] == 100 * 30 / (30 + 70)
    assert second["job_cpu_percent"] == 100 * 0.5 / 2  # half a second of CPU in two
    sampler.close()


def test_an_idle_job_is_zero_and_a_job_without_a_cgroup_is_absent(tmp_path):
    proc, sysfs, _ = machine(tmp_path)
    sampler = CpuSampler(proc, sysfs)
    row(sampler, 10**9)
    assert row(sampler, 2 * 10**9)["job_cpu_percent"] == 0
    (proc / "self/cgroup").write_text("0::/\n")
    sampler = CpuSampler(proc, sysfs)
    row(sampler, 10**9)
    found = row(sampler, 2 * 10**9)
    job = [key for key in CPU_COLUMNS if key.startswith("job_")]
    assert [found[key] for key in job] == [None] * 5
    assert found["memory_stall_ms"] == 9  # the machine's
    assert found["cpus_usable"] == len(os.sched_getaffinity(0))


def test_samples_within_one_clock_tick_leave_their_time_to_the_next(tmp_path):
    proc, sysfs, _ = machine(tmp_path)
    sampler = CpuSampler(proc, sysfs)
    row(sampler, 1)
    assert row(sampler, 2)["cpu_percent"] is None
    ticks(proc, busy=101, idle=903)
    assert row(sampler, 3)["cpu_percent"] == 25


def test_a_machine_that_tells_nothing_gives_empty_cells(tmp_path):
    found = dict(CpuSampler(tmp_path / "proc", tmp_path / "sys").sample(1))
    assert found.pop("cpus_usable") == len(os.sched_getaffinity(0))
    assert set(found.values()) == {None}


def test_this_machine():
    sampler = CpuSampler()
    row(sampler, time.monotonic_ns())
    busy = time.process_time() + 0.05
    while time.process_time() < busy:
        pass
    found = row(sampler, time.monotonic_ns())
    sampler.close()
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < found["cpu_percent"] <= 100
    assert abs(found["memory_total_gb"] * 2**30 / total - 1) < 0.01
    assert 0 < found["memory_used_gb"] < found["memory_total_gb"]
