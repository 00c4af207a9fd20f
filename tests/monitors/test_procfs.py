"""Procfs texts to numbers."""

from __future__ import annotations

import pytest

from aorta.monitors.procfs import (
    CpuTicks,
    MachineMemory,
    busy_percent,
    cpu_ticks,
    disk_bytes,
    memory,
    network_bytes,
    stall_ms,
    swap_bytes,
)


def test_cpu_ticks_count_neither_idle_nor_iowait_as_busy():
    stat = "cpu  10 20 30 400 50 6 7 8 900 90\ncpu0 1 1 1 1 1 1 1 1 0 0\nintr 5\n"
    busy = 10 + 20 + 30 + 6 + 7 + 8  # user nice system irq softirq steal; guest is in user already
    assert cpu_ticks(stat) == CpuTicks(busy, busy + 400 + 50)


@pytest.mark.parametrize("text", [None, "", "intr 5\n", "cpu  1 2\n"])
def test_no_cpu_line_no_ticks(text):
    assert cpu_ticks(text) is None


def test_busy_percent():
    assert busy_percent(CpuTicks(100, 1000), CpuTicks(125, 1100)) == 100 * 25 / 100
    assert busy_percent(CpuTicks(100, 1000), CpuTicks(100, 1100)) == 0


def test_busy_percent_without_a_time_between_is_absent():
    assert busy_percent(None, CpuTicks(1, 2)) is None
    assert busy_percent(CpuTicks(1, 2), None) is None
    assert busy_percent(CpuTicks(1, 2), CpuTicks(1, 2)) is None


def test_iowait_that_runs_backwards_does_not_leave_the_scale():
    assert busy_percent(CpuTicks(100, 1000), CpuTicks(112, 1010)) == 100


MEMINFO = """\
MemTotal:        1000 kB
MemFree: 5 kB
MemAvailable:     600 kB
SwapTotal:    50 kB
SwapFree:   20 kB
HugePages_Total: 3
"""


def test_memory_in_use_is_what_is_not_available():
    assert memory(MEMINFO) == MachineMemory(used=400 * 1024, total=1000 * 1024, swap_used=30 * 1024)


def test_memory_that_is_not_told_is_absent_and_no_swap_in_use_is_zero():
    assert memory(None) == MachineMemory(None, None, None)
    found = memory("MemTotal: 8 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n")
    assert found == MachineMemory(used=None, total=8 * 1024, swap_used=0)


def test_pages_to_and_from_swap_are_counted_in_bytes():
    vmstat = "nr_free_pages 5\npswpin 3\npswpout 2\npswpin_other 9\n"
    assert swap_bytes(vmstat, 4096) == (3 * 4096, 2 * 4096)
    assert swap_bytes("pswpin 0\npswpout 0\n", 4096) == (0, 0)
    assert swap_bytes("pgpgin 7\n", 4096) == swap_bytes(None, 4096) == (None, None)


def test_the_time_in_which_processes_waited():
    pressure = "some avg10=1.00 avg60=0.00 avg300=0.00 total=2500\nfull avg10=0.00 total=9\n"
    assert stall_ms(pressure) == 2.5
    assert stall_ms("some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n") == 0.0
    assert stall_ms("full avg10=0.00 total=9\n") is None
    assert stall_ms(None) is None


DISKS = """\
 259 0 nvme0n1 11 0 100 5 22 0 40 6 0 7 8 0 0 0 0
 259 1 nvme0n1p1 11 0 99 5 22 0 39 6 0 7 8 0 0 0 0
 253 0 dm-0 11 0 98 5 22 0 38 6 0 7 8 0 0 0 0
 8 0 sda 1 0 8 5 2 0 0 6 0 7 8
"""


def test_partitions_and_volumes_are_not_counted_twice():
    assert disk_bytes(DISKS, {"nvme0n1", "sda"}) == (512 * (100 + 8), 512 * (40 + 0))
    assert disk_bytes(DISKS, {"sda"}) == (512 * 8, 0)


@pytest.mark.parametrize(("text", "disks"), [(None, {"sda"}), (DISKS, set()), ("", {"sda"})])
def test_no_disk_no_bytes(text, disks):
    assert disk_bytes(text, disks) == (None, None)


NET = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop
    lo: 900 1 0 0 0 0 0 0 900 1 0 0 0 0 0 0
  eth0: 70 1 0 0 0 0 0 0 30 1 0 0 0 0 0 0
ib0:5 1 0 0 0 0 0 0 2 1 0 0 0 0 0 0
eth0:1: 0 1 0 0 0 0 0 0 0 1 0 0 0 0 0 0
"""


def test_network_is_sent_then_received_without_loopback():
    assert network_bytes(NET, {"lo"}) == (30 + 2 + 0, 70 + 5 + 0)
    assert network_bytes(NET, {"lo", "eth0", "ib0"}) == (0, 0)


def test_no_interface_no_bytes():
    assert network_bytes(None, {"lo"}) == (None, None)
    assert network_bytes("lo: 900 1 0 0 0 0 0 0 900 1 0 0 0 0 0 0\n", {"lo"}) == (None, None)
