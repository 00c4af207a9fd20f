"""Load, reading, swapping and throttling in the steady window; absent is never zero."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from aorta.metrics import node_load
from aorta.metrics.node_load import driver_busy, node_loads, throttling
from aorta.units import NS_PER_S

WINDOW = {"node1": (10 * NS_PER_S, 20 * NS_PER_S)}


def table(**columns: Any) -> pd.DataFrame:
    """Samples at 5, 11, 13, 15, 17 and 25 s."""
    times = [5, 11, 13, 15, 17, 25]
    return pd.DataFrame(
        {"hostname": "node1", "node_index": 0, "wall_ns": [at * NS_PER_S for at in times], **columns}
    )


def cpu(**columns: Any) -> pd.DataFrame:
    empty = dict.fromkeys(("cpu_percent", "job_cpu_percent", "cpus_usable"), [None] * 6)
    frame = table(**{**empty, **columns})
    return frame.astype(dict.fromkeys([*empty, *columns], float))


def test_counters_become_rates_inside_the_window() -> None:
    found = node_loads(
        cpu(disk_read_bytes=[0, 1e6, 2e6, 3e6, 61e6, 9e9], cpu_percent=[0, 40, 40, 40, 40, 0]), WINDOW
    )
    assert found["node1"].read_mb_per_s == pytest.approx(60 / 6)
    assert found["node1"].cpu_pct == pytest.approx(40)
    assert found["node1"].job_cpu_pct is None


def test_swap_grows_from_the_first_to_the_last_sample() -> None:
    found = node_loads(cpu(swap_used_bytes=[0, 10, 20, 15, 40, 90]), WINDOW)["node1"]
    assert (found.swap_growth_bytes, found.swap_used_bytes) == (30, 40)
    still = node_loads(cpu(swap_used_bytes=[7] * 6), WINDOW)["node1"]
    assert (still.swap_growth_bytes, still.swap_used_bytes) == (0, 7)
    without = node_loads(cpu(), WINDOW)["node1"]
    assert (without.swap_growth_bytes, without.swap_used_bytes, without.read_mb_per_s) == (None, None, None)


def test_throttling_counts_the_bits_of_each_gpu() -> None:
    reasons = [0x20, 0x20, 0x40, 0x1, 0x4, 0x20]
    found = throttling(table(gpu_uuid="GPU-1", gpu_id=0, clock_event_reasons=reasons), WINDOW)
    assert (found["GPU-1"].thermal, found["GPU-1"].power, found["GPU-1"].samples) == (0.5, 0.25, 4)


def test_a_gpu_without_reasons_is_not_said_to_run_free() -> None:
    assert throttling(table(gpu_uuid="GPU-1", gpu_id=0, clock_event_reasons=[None] * 6), WINDOW) == {}
    free = throttling(table(gpu_uuid="GPU-1", gpu_id=0, clock_event_reasons=[0] * 6), WINDOW)
    assert free["GPU-1"].thermal == 0.0
    assert throttling(None, WINDOW) == {}
    assert node_loads(None, WINDOW) == {}


@pytest.mark.parametrize("busy", [0.0, 40.0])
def test_the_drivers_counter_needs_samples_enough(monkeypatch: pytest.MonkeyPatch, busy: float) -> None:
    samples = table(gpu_uuid="GPU-1", gpu_id=0, utilization_gpu=[busy] * 6)  # four of them in the window
    assert driver_busy(samples, WINDOW) == {}
    monkeypatch.setattr(node_load, "MIN_BUSY_SAMPLES", 4)
    assert driver_busy(samples, WINDOW) == {"GPU-1": busy}
    assert driver_busy(table(gpu_uuid="GPU-1", gpu_id=0, utilization_gpu=[None] * 6), WINDOW) == {}
    assert driver_busy(None, WINDOW) == {}
