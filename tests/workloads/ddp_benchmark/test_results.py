"""From step samples to numbers."""

from __future__ import annotations

from typing import Any

import pytest

from aorta.artefacts.ddp_benchmark import PeakPoint
from aorta.instrument.steps import COMPUTE, HOST, TakenTimes, Timed
from aorta.workloads.ddp_benchmark import peak
from aorta.workloads.ddp_benchmark.options import BenchmarkOptions
from aorta.workloads.ddp_benchmark.results import ImplementationTimes, results_of, samples_per_second, spread
from aorta.workloads.ddp_benchmark.timing import StepSample, sample_of

MS = 1_000_000
OPTIONS = BenchmarkOptions(batch_size=3, context_length=10)


def sample(start: int, end: int, **given: Any) -> StepSample:
    """A step from `start` to `end` ms: 2 ms communication, 1 hidden, 8000 bytes."""
    values: dict[str, Any] = {
        "step": 0,
        "start": start * MS,
        "end": end * MS,
        "forward": 1 * MS,
        "backward": 2 * MS,
        "sync": 1 * MS,
        "optimizer": 1 * MS,
        "comm": 2 * MS,
        "hidden": 1 * MS,
        "exposed": 1 * MS,
        "collectives": 4,
        "bytes": 8000,
        "loss": 1.5,
    }
    return StepSample(**values | given)


def measured(name: str, *ranks: list[StepSample]) -> ImplementationTimes:
    return ImplementationTimes(name, ranks, ranks, True)


def test_a_step_is_cut_by_the_definitions_of_hidden_and_exposed() -> None:
    # Compute 0 to 10, sync 10 to 14; communication 6 to 9 (hidden 3), 8 to 13 (1 more hidden, 3 exposed).
    call = {"op": "all_reduce", "group": "default", "seq": 1, "bytes": 100}
    pieces = [
        Timed(COMPUTE, "forward_pass", 0, 4),
        Timed(COMPUTE, "backward", 4, 10),
        Timed("allreduce", "gradients", 6, 9, call),
        Timed("allreduce", "gradients", 8, 13, call),
        Timed(HOST, "gradient_sync", 10, 14),
        Timed(COMPUTE, "gradient_clipping_warmup", 14, 15),
        Timed(COMPUTE, "optimizer_step", 15, 20),
    ]
    found = sample_of(3, TakenTimes(0, 20, pieces), 2.5)
    assert (found.forward, found.backward, found.sync, found.optimizer) == (4, 6, 4, 1 + 5)
    assert (found.comm, found.hidden, found.exposed) == (13 - 6, 10 - 6, 13 - 10)
    assert (found.collectives, found.bytes, found.step, found.loss) == (2, 200, 3, 2.5)


def test_unobserved_communication_is_absent_and_none_at_all_is_zero() -> None:
    pieces = [Timed(COMPUTE, "forward_pass", 0, 4)]
    assert sample_of(0, TakenTimes(0, 5, pieces, communication_observed=False), None).comm is None
    assert sample_of(0, TakenTimes(0, 5, pieces), None).comm == 0


def test_a_spread_is_median_slow_end_and_middle_half() -> None:
    found = spread([value * MS for value in range(1, 22)])  # 1 to 21 ms
    assert (found.median_ms, found.p95_ms, found.iqr_ms) == (11.0, 20.0, 16.0 - 6.0)


def test_throughput_counts_all_ranks_over_the_slowest_one() -> None:
    ranks = [[sample(0, 10), sample(10, 20)], [sample(5, 10), sample(10, 30)]]
    # 2 ranks × 2 steps × 3 samples in 25 ms.
    assert samples_per_second(ranks, 3) == pytest.approx(12 / 0.025)


def test_an_implementation_in_numbers() -> None:
    slow = measured("ddp", [sample(0, 20)], [sample(0, 20, loss=2.5)])
    fast = measured("torch_ddp", [sample(0, 10)], [sample(0, 10)])
    points = [PeakPoint(bytes=1, time_ms=1.0, bus_bytes_per_s=rate) for rate in (8e6, 16e6)]
    first, second = results_of([slow, fast], OPTIONS, points)
    assert first.samples_per_s == pytest.approx(2 * 3 / 0.020)
    assert first.tokens_per_s == pytest.approx(2 * 3 * 10 / 0.020)
    assert first.throughput_over_torch_ddp == pytest.approx(10 / 20)
    assert second.throughput_over_torch_ddp == 1.0
    assert (first.comm_ms, first.hidden_comm_ms, first.exposed_comm_ms, first.overlap_ratio) == (2, 1, 1, 0.5)
    assert first.bus_bytes_per_s == pytest.approx(2 * (2 - 1) / 2 * 8000 / 0.002)
    assert first.bus_over_peak_ratio == pytest.approx(4e6 / 16e6)
    assert (first.steps, first.collectives_per_step, first.bytes_per_step) == (1, 4, 8000)
    assert (first.final_loss, first.communication_from) == ((1.5 + 2.5) / 2, "same_steps")


def test_parts_of_the_reference_come_from_its_own_run() -> None:
    plain = [[sample(0, 10, comm=None, hidden=None, exposed=None)]] * 2
    observed = [[sample(0, 40, forward=7 * MS)]] * 2
    (found,) = results_of([ImplementationTimes("torch_ddp", plain, observed, True)], OPTIONS, [])
    assert (found.total.median_ms, found.forward.median_ms, found.comm_ms) == (10, 7, 2)
    assert found.communication_from == "extra_steps"


def test_what_does_not_exist_is_absent() -> None:
    alone = sample(0, 10, comm=0, hidden=0, exposed=0, bytes=0, loss=None)
    (found,) = results_of([measured("ddp", [alone])], OPTIONS, [])
    assert (found.throughput_over_torch_ddp, found.overlap_ratio, found.final_loss) == (None, None, None)
    assert (found.bus_bytes_per_s, found.bus_over_peak_ratio) == (None, None)
    assert (found.comm_ms, found.exposed_comm_ms) == (0.0, 0.0)  # measured


def test_hidden_of_some_communication_may_be_zero() -> None:
    (found,) = results_of([measured("ddp", [sample(0, 9, hidden=0)], [sample(0, 9, hidden=0)])], OPTIONS, [])
    assert found.overlap_ratio == 0.0


def test_bus_bytes_are_the_volume_of_a_ring() -> None:
    assert [peak.bus_bytes(100, ranks) for ranks in (1, 2, 4)] == [0, 100, 150]


def test_peak_is_measured_up_to_the_size_of_the_gradients() -> None:
    mib = 1 << 20
    assert peak.sizes(10 * mib, "cpu") == [1 * mib, 4 * mib, 10 * mib]
    assert peak.sizes(1000, "cpu") == [mib]
    assert peak.sizes(1 << 40, "cpu")[-1] == 64 * mib
