"""Steady steps, breakdown, throughput: tiny integer steps."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aorta.artefacts.step_columns import StepColumns
from aorta.artefacts.step_names import Phase
from aorta.artefacts.steps import DecodedStep
from aorta.metrics.breakdown import breakdown_table
from aorta.metrics.steady import Steady, consecutive, steady_steps
from aorta.metrics.throughput import throughput
from aorta.units import NS_PER_MS, ms_to_ns
from tests.support.steps import step


def train(
    rank: int, lengths: list[int], phases: list[Phase] | None = None, samples: int = 8
) -> list[DecodedStep]:
    steps, now = [], 0
    for number, length in enumerate(lengths):
        phase: Phase = phases[number] if phases else "steady"
        steps.append(
            step(
                number, (now, now + length), rank=rank, compute=[(now, now + 5)], phase=phase, samples=samples
            )
        )
        now += length
    return steps


def test_a_step_counts_where_it_is_steady_on_every_rank() -> None:
    found = steady_steps(
        {
            1: train(1, [10] * 5, ["warmup", "steady", "steady", "checkpoint", "steady"]),
            0: train(0, [10] * 6, ["warmup", "warmup", "steady", "steady", "steady", "steady"]),
        }
    )
    assert found.numbers == (2, 4)
    assert found.ranks == [0, 1]
    assert [item.global_step for item in found.by_rank[0]] == [2, 4]


def test_no_ranks_have_no_steady_steps() -> None:
    assert len(steady_steps({})) == 0
    assert breakdown_table(steady_steps({})).per_rank == []
    assert throughput(steady_steps({})) is None


def test_no_rate_without_counted_samples_and_a_rate_of_none() -> None:
    counts = {0: [4] * 12, 1: [None] * 12}
    made = {
        rank: StepColumns.of(
            [
                msgspec.structs.replace(step, samples=count)
                for step, count in zip(train(rank, [41] * 12), of, strict=True)
            ]
        )
        for rank, of in counts.items()
    }
    assert throughput(steady_steps(made)) is None
    nothing = {0: StepColumns.of([msgspec.structs.replace(step, samples=0) for step in train(0, [41] * 12)])}
    found = throughput(steady_steps(nothing))
    assert found is not None
    assert found.samples_per_s == 0


@pytest.mark.parametrize(
    ("numbers", "runs"), [([], []), ([5], [(0, 1)]), ([3, 4, 7], [(0, 2), (2, 3)]), ([1, 2, 3], [(0, 3)])]
)
def test_runs_of_consecutive_steps(numbers: list[int], runs: list[tuple[int, int]]) -> None:
    assert consecutive(numbers) == runs


def test_breakdown_is_the_mean_over_steps() -> None:
    steps = [
        step(0, (0, 100), data=[(0, 20)], compute=[(20, 70)], collectives=[(60, 85)]),
        step(1, (100, 220), data=[(100, 110)], compute=[(110, 180)], collectives=[(160, 195)]),
    ]
    (row,) = breakdown_table(steady_steps({0: steps})).per_rank
    assert row.step_ms == (100 + 120) / 2
    assert row.compute_ms == (50 + 70) / 2
    assert row.exposed_comm_ms == ((85 - 70) + (195 - 180)) / 2
    assert row.data_wait_ms == (20 + 10) / 2
    assert row.host_ms == ((100 - 85) + (220 - 195)) / 2
    assert row.comm_ms == (25 + 35) / 2
    assert row.overlap_ratio == ((70 - 60) + (180 - 160)) / (25 + 35)
    assert row.exposed_copy_ms is None
    assert (row.wait_ms, row.transfer_ms) == (None, None)


def test_wait_and_transfer_are_the_whole_communication() -> None:
    steady = steady_steps({0: [step(0, (0, 100), compute=[(0, 50)], collectives=[(40, 90)])]})
    (row,) = breakdown_table(steady, {0: 30 * NS_PER_MS}).per_rank
    assert (row.wait_ms, row.transfer_ms) == (30, 50 - 30)


def test_without_communication_the_ratio_is_absent_not_zero() -> None:
    alone = step(0, (0, 100), compute=[(0, 50)])
    exposed = step(0, (0, 100), compute=[(0, 50)], collectives=[(50, 60)])
    assert breakdown_table(steady_steps({0: [alone]})).per_rank[0].overlap_ratio is None
    assert breakdown_table(steady_steps({0: [exposed]})).per_rank[0].overlap_ratio == 0.0


def test_a_rank_without_a_breakdown_is_left_out() -> None:
    known = step(0, (0, 100), compute=[(0, 50)])
    unknown = msgspec.structs.replace(known, rank=1, breakdown=None)
    assert [row.rank for row in breakdown_table(steady_steps({0: [known], 1: [unknown]})).per_rank] == [0]


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(1, 50)), min_size=1, max_size=9)
)
def test_the_parts_sum_to_the_step_to_the_nanosecond(parts: list[tuple[int, int, int]]) -> None:
    steps, now = [], 0
    for number, (data, compute, host) in enumerate(parts):
        end = now + data + compute + host
        steps.append(
            step(number, (now, end), data=[(now, now + data)], compute=[(now + data, now + data + compute)])
        )
        now = end
    (row,) = breakdown_table(Steady(tuple(range(len(steps))), {0: StepColumns.of(steps)})).per_rank
    total = sum(
        ms_to_ns(value) for value in (row.compute_ms, row.exposed_comm_ms, row.data_wait_ms, row.host_ms)
    )
    assert total == ms_to_ns(row.step_ms)


def test_rates_of_ranks_add_up_and_agree_with_batch_over_latency() -> None:
    """16 ranks that each do about 194 samples/s are one job of 16 × 194, as batch / latency says."""
    found = throughput(steady_steps({rank: train(rank, [41] * 12) for rank in range(16)}))
    assert found is not None
    assert found.global_batch == 16 * 8
    assert found.per_rank_batch == 8
    assert found.samples_per_s == pytest.approx(16 * 8 / 0.041)
    assert found.samples_per_s / 16 == pytest.approx(195.1, abs=0.1)
    assert found.cross_check_ratio == pytest.approx(1.0)


def test_time_between_steps_counts_and_shows_in_the_cross_check() -> None:
    steps = [step(n, (20 * n, 20 * n + 10), compute=[(20 * n, 20 * n + 5)]) for n in range(3)]
    found = throughput(steady_steps({0: steps}))
    assert found is not None
    assert found.samples_per_s == pytest.approx(3 * 8 / 0.050)
    assert found.cross_check_ratio == pytest.approx(3 * 10 / 50)


def test_time_of_other_steps_does_not_count() -> None:
    phases: list[Phase] = ["warmup", "steady", "validation", "steady", "steady"]
    found = throughput(steady_steps({0: train(0, [500, 10, 900, 10, 10], phases)}))
    assert found is not None
    assert found.samples_per_s == pytest.approx(3 * 8 / 0.030)


def test_latency_is_of_the_mean_over_ranks_and_of_the_slowest() -> None:
    found = throughput(steady_steps({0: train(0, [10, 10, 30]), 1: train(1, [30, 10, 10])}))
    assert found is not None
    assert found.step_ms_median == (10 + 30) / 2
    assert found.slowest_rank_ms_median == 30


def test_a_rank_without_samples_is_measured_as_zero() -> None:
    found = throughput(steady_steps({0: train(0, [10] * 3, samples=0)}))
    assert found is not None
    assert found.samples_per_s == 0.0
    assert found.cross_check_ratio is None
