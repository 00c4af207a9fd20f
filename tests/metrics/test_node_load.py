"""Load, reading, swapping and throttling in the steady window; absent is never zero."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from aorta.metrics import node_load
from aorta.metrics.node_load import driver_busy, node_loads, throttling
from aorta.metrics.utilization import SampleSeries, sampled
from aorta.units import NS_PER_S

WINDOW = {"node1": (10 * NS_PER_S, 20 * NS_PER_S)}


def table(**columns: Any) -> pd.DataFrame:
    """Samples at 5, 11, 13, 15, 17 and 25 s."""
    times = [5, 11, 13, 15, 17, 25]
    return pd.DataFrame(
        {"hostname": "node1", "node_index": 0, "wall_ns": [at * NS_PER_S for at in times], **columns}
    )


def gpus(**columns: Any) -> list[SampleSeries]:
    return sampled(WINDOW, table(gpu_uuid="GPU-1", gpu_id=0, **columns), None).gpus


def cpu(**columns: Any) -> list[SampleSeries]:
    empty = dict.fromkeys(("cpu_percent", "job_cpu_percent", "cpus_usable"), [None] * 6)
    frame = table(**{**empty, **columns})
    return sampled(WINDOW, None, frame.astype(dict.fromkeys([*empty, *columns], float))).hosts


def test_counters_become_rates_inside_the_window() -> None:
    found = node_loads(cpu(disk_read_bytes=[0, 1e6, 2e6, 3e6, 61e6, 9e9], cpu_percent=[0, 40, 40, 40, 40, 0]))
    assert found["node1"].read_mb_per_s == pytest.approx(60 / 6)
    assert found["node1"].cpu_pct == pytest.approx(40)
    assert found["node1"].job_cpu_pct is None


def test_samples_of_one_moment_give_no_rate() -> None:
    frame = pd.DataFrame(
        {
            "hostname": "node1",
            "node_index": 0,
            "wall_ns": [12 * NS_PER_S] * 2,
            "disk_read_bytes": [0.0, 1e6],
            **dict.fromkeys(("cpu_percent", "job_cpu_percent", "cpus_usable"), [1.0] * 2),
        }
    )
    assert node_loads(sampled(WINDOW, None, frame).hosts)["node1"].read_mb_per_s is None


def test_what_a_node_swaps_and_how_long_processes_wait_for_it() -> None:
    """12 MB in and 6 MB out in the 6 s from 11 to 17 s; processes wait for 3 of them."""
    found = node_loads(
        cpu(
            swap_in_bytes=[0, 1e6, 5e6, 9e6, 13e6, 9e9],
            swap_out_bytes=[0, 0, 0, 0, 6e6, 9e9],
            swap_used_bytes=[90, 10, 20, 15, 40, 90],
            job_swap_used_bytes=[0, 0, 8, 2, 0, 9],
            job_memory_limit_hits=[0, 5, 5, 7, 9, 40],
            memory_stall_ms=[0, 100, 1100, 2100, 3100, 9000],
        )
    )["node1"]
    assert (found.swap_in_mb_per_s, found.swap_out_mb_per_s) == (2.0, 1.0)
    assert (found.swap_used_bytes, found.job_swap_bytes, found.limit_hits) == (40, 8, 4)
    assert found.stall_share == 0.5


def test_a_node_that_does_not_swap_is_zero_and_one_that_was_not_asked_is_absent() -> None:
    names = ("swap_in_bytes", "swap_out_bytes", "job_swap_used_bytes", "job_memory_limit_hits")
    still = node_loads(cpu(**dict.fromkeys((*names, "memory_stall_ms"), [7] * 6)))["node1"]
    assert (still.swap_in_mb_per_s, still.swap_out_mb_per_s, still.job_swap_bytes) == (0, 0, 7)
    assert (still.limit_hits, still.stall_share) == (0, 0)
    without = node_loads(cpu())["node1"]
    assert (without.swap_in_mb_per_s, without.swap_out_mb_per_s, without.job_swap_bytes) == (None, None, None)
    assert (without.limit_hits, without.stall_share, without.read_mb_per_s) == (None, None, None)


def test_processes_wait_for_no_more_than_all_of_the_time() -> None:
    """The kernel and the monitor read their clocks a little apart."""
    stalled = cpu(memory_stall_ms=[0, 0, 2005, 4009, 6004, 9000])
    assert node_loads(stalled)["node1"].stall_share == 1.0


def test_throttling_counts_the_bits_of_each_gpu() -> None:
    reasons = [0x20, 0x20, 0x40, 0x1, 0x4, 0x20]
    found = throttling(gpus(clock_event_reasons=reasons))
    assert (found["GPU-1"].thermal, found["GPU-1"].power, found["GPU-1"].samples) == (0.5, 0.25, 4)
    assert found["GPU-1"].clock_mhz is None  # its clock was not sampled


@pytest.mark.parametrize("clock", [0.0, 1980.0])
def test_the_clock_is_the_mean_of_the_window(clock: float) -> None:
    found = throttling(gpus(clock_event_reasons=[0] * 6, sm_clock_mhz=[345, *[clock] * 4, 345]))
    assert found["GPU-1"].clock_mhz == clock


def test_a_gpu_without_reasons_is_not_said_to_run_free() -> None:
    assert throttling(gpus(clock_event_reasons=[None] * 6)) == {}
    free = throttling(gpus(clock_event_reasons=[0] * 6))
    assert free["GPU-1"].thermal == 0.0
    assert throttling(sampled(WINDOW, None, None).gpus) == {}
    assert node_loads([]) == {}


@pytest.mark.parametrize("busy", [0.0, 40.0])
def test_the_drivers_counter_needs_samples_enough(monkeypatch: pytest.MonkeyPatch, busy: float) -> None:
    samples = gpus(utilization_gpu=[busy] * 6)  # four of them in the window
    assert driver_busy(samples) == {}
    monkeypatch.setattr(node_load, "MIN_BUSY_SAMPLES", 4)
    assert driver_busy(samples) == {"GPU-1": busy}
    assert driver_busy(gpus(utilization_gpu=[None] * 6)) == {}
    assert driver_busy([]) == {}
