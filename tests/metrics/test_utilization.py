"""Monitor samples: only the steady window, weighted by time, absent never zero."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import pytest

from aorta.metrics.utilization import in_windows, sampled, utilization
from aorta.units import NS_PER_S


def table(values: list[Any], column: str, seconds: list[float] | None = None, **more: Any) -> pd.DataFrame:
    times = seconds or [float(index) for index in range(len(values))]
    columns = {
        "utilization_gpu": None,
        "memory_used_mb": None,
        "memory_total_mb": None,
        "power_draw_w": None,
        "cpu_percent": None,
        "job_cpu_percent": None,
        "memory_percent": None,
        "job_memory_used_bytes": None,
        "job_memory_limit_bytes": None,
    }
    frame = pd.DataFrame(
        {
            "hostname": "node1",
            "node_index": 0,
            "gpu_uuid": "GPU-0",
            "gpu_id": 0,
            "wall_ns": [round(at * NS_PER_S) for at in times],
            **columns,
            **more,
        }
    )
    frame[column] = values
    numeric = [name for name in columns if name in frame]
    frame[numeric] = frame[numeric].apply(pd.to_numeric)
    return frame


def window(start: float, end: float) -> dict[str, tuple[int, int]]:
    return {"node1": (round(start * NS_PER_S), round(end * NS_PER_S))}


def test_power_is_that_of_the_steady_steps() -> None:
    """120 W for 60 s of start-up, 720 W under load, 300 W after: 720, not the mean over the job."""
    watts = [120.0] * 60 + [720.0] * 40 + [300.0] * 20
    whole = sum(watts) / len(watts)
    found = utilization(sampled(window(60, 100), table(watts, "power_draw_w"), None), None)
    assert found.gpu_power_w == 720.0
    assert whole == pytest.approx(350.0)
    assert found.samples == 40


def test_a_sample_weighs_the_time_nearest_to_it() -> None:
    """Samples at 1, 2 and 9 s of a window of 10 s stand for 1.5, 4 and 4.5 s."""
    seen = sampled(window(0, 10), table([10.0, 20.0, 90.0], "utilization_gpu", [1.0, 2.0, 9.0]), None)
    found = utilization(seen, None)
    assert found.gpu_util_pct == pytest.approx((1.5 * 10 + 4.0 * 20 + 4.5 * 90) / 10)


@pytest.mark.parametrize(("values", "mean"), [([None, None], None), ([0.0, 0.0], 0.0), ([None, 40.0], 40.0)])
def test_absent_is_none_and_measured_zero_is_zero(values: list[float | None], mean: float | None) -> None:
    assert (
        utilization(sampled(window(0, 2), table(values, "utilization_gpu"), None), None).gpu_util_pct == mean
    )


def test_samples_outside_of_the_window_or_of_other_hosts_do_not_count() -> None:
    samples = table([50.0, 70.0], "cpu_percent")
    assert utilization(sampled(window(5, 9), None, samples), None).cpu_pct is None
    other = {"node9": (0, 10 * NS_PER_S)}
    assert utilization(sampled(other, None, samples), None).samples == 0


def test_means_are_per_gpu_first() -> None:
    """One GPU with three samples at 30 and one with a single sample at 90: 60, not 45."""
    gpus = pd.concat(
        [
            table([30.0] * 3, "utilization_gpu"),
            table([90.0], "utilization_gpu", gpu_uuid="GPU-1", gpu_id=1),
        ]
    )
    assert utilization(sampled(window(0, 3), gpus, None), None).gpu_util_pct == pytest.approx((30 + 90) / 2)


def test_memory_is_the_peak_share_of_any_gpu() -> None:
    first = table([50.0, 95.0], "memory_used_mb", memory_total_mb=100.0)
    second = table([150.0, 120.0], "memory_used_mb", gpu_uuid="GPU-1", gpu_id=1, memory_total_mb=200.0)
    found = utilization(sampled(window(0, 2), pd.concat([first, second]), None), None)
    assert found.gpu_memory_used_pct == pytest.approx(95.0)


@pytest.mark.parametrize(("limit", "share"), [(None, None), (0.0, None), (8.0, 25.0)])
def test_memory_without_a_limit_has_no_share(limit: float | None, share: float | None) -> None:
    hosts = table([2.0, 1.0], "job_memory_used_bytes", job_memory_limit_bytes=limit)
    assert utilization(sampled(window(0, 2), None, hosts), None).job_memory_used_pct == share


def test_groups_are_of_equal_keys_wherever_their_rows_lie() -> None:
    samples = pd.DataFrame(
        {
            "hostname": pd.Categorical(["b", "b", "a", "b", "a", "a"]),
            "gpu_id": [0.0, math.nan, 1.0, 0.0, math.nan, 1.0],
            "wall_ns": [1, 2, 3, 4, 5, 6],
        }
    )
    found = in_windows(samples, ["hostname", "gpu_id"], {"a": (0, 10), "b": (0, 10)})
    assert [(item.host, item.wall_ns.tolist()) for item in found] == [
        ("a", [3, 6]),
        ("a", [5]),
        ("b", [1, 4]),
        ("b", [2]),
    ]


def test_energy_per_sample_is_the_power_of_all_gpus_over_the_rate() -> None:
    gpus = pd.concat(
        [table([300.0, 300.0], "power_draw_w"), table([100.0], "power_draw_w", gpu_uuid="GPU-1", gpu_id=1)]
    )
    seen = sampled(window(0, 2), gpus, None)
    assert utilization(seen, None, samples_per_s=50.0).energy_per_sample_j == pytest.approx((300 + 100) / 50)
    assert utilization(seen, None).energy_per_sample_j is None


@pytest.mark.parametrize(("watts", "joules"), [(None, None), (0.0, 0.0)])
def test_a_gpu_without_power_makes_energy_absent_and_a_measured_zero_is_zero(
    watts: float | None, joules: float | None
) -> None:
    seen = sampled(window(0, 2), table([watts], "power_draw_w"), None)
    assert utilization(seen, None, samples_per_s=10.0).energy_per_sample_j == joules
