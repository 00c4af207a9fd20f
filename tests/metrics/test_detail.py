"""Steps timed part by part among steps timed as a whole: which count, and what the timing costs."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from aorta.artefacts.step_columns import StepColumns
from aorta.artefacts.steps import DecodedStep, StepRanges
from aorta.metrics.allocator import allocator_use
from aorta.metrics.blame import blame
from aorta.metrics.breakdown import breakdown_table
from aorta.metrics.detail_cost import detail_cost
from aorta.metrics.host_gaps import host_gaps
from aorta.metrics.lateness import lateness, pattern
from aorta.metrics.profiler_overhead import before_ms, profiler_overhead
from aorta.metrics.steady import steady_steps
from aorta.metrics.throughput import throughput
from aorta.metrics.whatif import Replays
from aorta.units import NS_PER_MS
from tests.support.exchanges import late_loader, matched
from tests.support.steps import step


def whole(item: DecodedStep) -> DecodedStep:
    """The same step, timed as a whole."""
    return msgspec.structs.replace(item, detailed=False, breakdown=None, profile=StepRanges(ranges=[]))


def train(lengths: Sequence[int], detailed: Sequence[int], rank: int = 0) -> list[DecodedStep]:
    """Steps one after another, in ms; `detailed` are the numbers of those that are."""
    ends = np.cumsum(lengths).tolist()
    steps = [
        step(number, (end - length, end), rank=rank, compute=[(end - length, end)])
        for number, (length, end) in enumerate(zip(lengths, ends, strict=True))
    ]
    return [item if item.global_step in detailed else whole(item) for item in steps]


def test_a_step_is_detailed_where_it_is_on_every_rank_and_whole_likewise() -> None:
    steady = steady_steps({0: train([10] * 5, [0, 1, 2]), 1: train([10] * 5, [0, 1, 3], rank=1)})
    assert steady.numbers == (0, 1, 2, 3, 4)
    assert steady.detailed().numbers == (0, 1)
    assert steady.whole().numbers == (4,)
    assert [item.global_step for item in steady.whole().by_rank[1]] == [4]


def test_where_every_step_is_detailed_nothing_is_picked() -> None:
    steady = steady_steps({0: train([10] * 5, range(5))})
    assert steady.detailed() is steady
    assert len(steady.whole()) == 0
    assert steady_steps({}).detailed().numbers == ()


def test_the_breakdown_is_of_detailed_steps_and_throughput_of_all() -> None:
    steady = steady_steps({0: train([20, 20, 10, 10, 10, 10], [0, 1])})
    (row,) = breakdown_table(steady.detailed()).per_rank
    assert (row.steps, row.step_ms, row.compute_ms) == (2, 20, 20)
    rate = throughput(steady)
    assert rate is not None
    assert rate.step_ms_median == 10
    assert rate.samples_per_s == pytest.approx(6 * 8 / 0.080)


def test_the_cost_of_detail_is_a_ratio_of_medians_by_the_slowest_rank() -> None:
    slow = train([12, 12, 12, 10, 10, 10, 10], [0, 1, 2])
    fast = train([11, 11, 11, 9, 9, 9, 9], [0, 1, 2], rank=1)
    found = detail_cost(steady_steps({0: slow, 1: fast}))
    assert found is not None
    assert (found.ratio, found.detailed_ms, found.whole_ms) == (12 / 10, 12, 10)
    assert (found.detailed_steps, found.whole_steps, found.reason) == (3, 3, None)
    assert (found.detailed_mean_ms, found.whole_mean_ms) == (12, 10)


def test_a_machine_that_drifts_is_no_cost_of_detail() -> None:
    # 3 detailed steps in the middle of 13 that each take 1 ms more than the one before; 5 lie farther off.
    found = detail_cost(steady_steps({0: train(range(10, 23), [5, 6, 7])}))
    assert found is not None
    assert found.whole_steps == 6
    assert found.ratio == pytest.approx(1.0)


def test_the_cost_of_detail_has_an_interval_of_ten_steps_or_more() -> None:
    same = detail_cost(steady_steps({0: train([12] * 10 + [10] * 10, range(10))}))
    assert same is not None
    assert same.ratio_interval is not None
    assert (same.ratio_interval.low, same.ratio_interval.high) == pytest.approx((1.2, 1.2))
    # Half of the steps of either kind take three times as long as the other half.
    noisy = detail_cost(steady_steps({0: train([10, 30, 30, 10] * 5, range(10))}))
    assert noisy is not None
    assert noisy.ratio_interval is not None
    assert noisy.ratio_interval.low < 1.0 < noisy.ratio_interval.high
    few = detail_cost(steady_steps({0: train([12] * 9 + [10] * 9, range(9))}))
    assert few is not None
    assert (few.ratio, few.ratio_interval) == (1.2, None)


def test_without_steps_timed_as_a_whole_nothing_is_said_and_with_few_the_reason() -> None:
    assert detail_cost(steady_steps({0: train([10] * 6, range(6))})) is None
    assert detail_cost(steady_steps({})) is None
    few = detail_cost(steady_steps({0: train([10] * 6, [0, 1])}))
    assert few is not None
    assert (few.ratio, few.reason) == (None, "2 steady steps timed part by part, but 3 are needed")
    many = detail_cost(steady_steps({0: train([10] * 6, range(4))}))
    assert many is not None
    said = "2 steady steps timed as a whole next to these steps, but 3 are needed"
    assert (many.ratio, many.reason) == (None, said)
    none = detail_cost(steady_steps({0: train([10] * 6, [])}))
    assert none is not None
    assert (none.ratio, none.detailed_ms, none.detailed_steps) == (None, None, 0)


def gap(*, between: bool) -> dict[int, list[DecodedStep]]:
    """Two exchanges, the first of which ends on rank 0 at 60 and on rank 1 at 90; the steps in the middle are
    detailed or not.

    In step 3 rank 1 loads for 30 ms longer.
    """
    first = [
        step(0, (0, 100), compute=[(0, 20)], collectives=[(20, 60)]),
        step(0, (0, 100), rank=1, compute=[(0, 20)], collectives=[(20, 90)]),
    ]
    last = [
        step(3, (300, 400), data=[(300, 305)], compute=[(305, 325)], collectives=[(325, 390)]),
        step(3, (300, 400), rank=1, data=[(300, 335)], compute=[(335, 355)], collectives=[(355, 390)]),
    ]
    ranks = {}
    for rank in (0, 1):
        middle = [step(number, (100 * number, 100 * number + 100), rank=rank) for number in (1, 2)]
        middle = middle if between else [whole(item) for item in middle]
        ranks[rank] = [first[rank], *middle, last[rank]]
    return ranks


@pytest.mark.parametrize(
    ("between", "charged"),
    [
        (False, {(1, "data_loading"): 30}),
        # Rank 1 also left the exchange before 30 ms later, which counts where the steps since then are known.
        (True, {(1, "data_loading"): 15, (1, "communication"): 15}),
    ],
)
def test_blame_does_not_reach_across_steps_of_which_nobody_knows(
    between: bool, charged: dict[tuple[int, str], int]
) -> None:
    assert blame(matched(gap(between=between)), [3]).charges[0] == {
        key: ms * NS_PER_MS for key, ms in charged.items()
    }


def test_stretches_end_where_no_rank_tells_of_a_step() -> None:
    assert matched(gap(between=False)).stretches() == {0: 0, 3: 1}
    assert matched(gap(between=True)).stretches() == {0: 0, 1: 0, 2: 0, 3: 0}


def test_lateness_on_both_sides_of_a_gap_is_no_one_off() -> None:
    late, stretch = np.zeros(100, dtype=np.bool_), np.zeros(100, dtype=np.int64)
    late[49:51] = True
    assert pattern(late, stretch) == ("one_off", 49)
    stretch[50:] = 1
    assert pattern(late, stretch) == ("intermittent", 49)


def test_late_steps_are_counted_among_detailed_ones() -> None:
    records: dict[int, list[DecodedStep]] = {0: [], 1: []}
    for number in range(40):
        for rank, steps in records.items():
            start, come = 100 * number, 20 + 30 * rank
            made = step(
                number, (start, start + 100), rank=rank, compute=[(start, start + come)],
                collectives=[(start + come, start + 90)],
            )  # fmt: skip
            steps.append(made if number % 20 < 5 else whole(made))
    detailed = steady_steps(records).detailed()
    table = lateness(matched(records), detailed.numbers, 100.0, {0: "a", 1: "a"})
    assert table is not None
    (row,) = table.ranks
    assert (table.steps, row.pattern, row.late_steps, row.since_step) == (10, "persistent", 10, 0)


def test_the_replay_is_of_blocks_of_detailed_steps() -> None:
    records = {
        rank: [item if item.global_step % 8 < 4 else whole(item) for item in steps]
        for rank, steps in late_loader(transfers=(10,) * 16).items()
    }
    detailed = steady_steps(records).detailed()
    found = Replays.of(matched(records), detailed.numbers)
    assert isinstance(found, Replays), found
    assert found.runs == [(0, 4), (4, 8)]
    # Loading 30, compute 20, transfer 10, host 5; without the loader of rank 1 the first does not count.
    assert found.measured_ms == found.modelled_ms == 65.0
    assert found.as_the_others(("data_loading",), [1]).step_ms == pytest.approx(35)


def test_gaps_and_memory_are_those_of_detailed_steps() -> None:
    known = step(0, (0, 100), compute=[(0, 60)])
    known = msgspec.structs.replace(known, memory_peak_bytes=50, memory_total_bytes=200)
    steady = steady_steps({0: [known, whole(step(1, (100, 200)))]})
    (only,) = host_gaps(steady.by_rank)
    assert (only.after, only.ms) == ("work", 40)
    use = allocator_use(steady.detailed())
    assert use is not None
    assert use.tensors_pct == 25


def test_the_profiler_is_compared_with_steps_timed_alike() -> None:
    # 0 to 5 outside, 6 to 11 inside the capture, which costs 3 ms; detail costs 5 in both.
    lengths = [15, 15, 15, 10, 10, 10, 18, 18, 18, 13, 13, 13]
    records = {0: train(lengths, [0, 1, 2, 6, 7, 8])}
    found = profiler_overhead(records, lambda number: number >= 6)
    assert (found.ratio, found.inside_steps, found.outside_steps) == (13 / 10, 3, 3)
    # Too few steps timed as a whole are captured: the others are compared.
    found = profiler_overhead(records, lambda number: 6 <= number < 10)
    assert (found.ratio, found.inside_steps) == (18 / 15, 3)


def test_a_capture_of_steps_that_no_other_is_timed_like_is_not_compared() -> None:
    records = {0: train([10] * 4 + [15] * 4, [4, 5, 6, 7])}
    found = profiler_overhead(records, lambda number: number >= 4)
    assert (found.ratio, found.inside_steps, found.outside_steps) == (None, 4, 0)
    assert found.reason == "outside of the capture: 0 steady steps of their kind, but 3 are needed"


def test_a_step_without_a_profiler_is_one_before_the_capture() -> None:
    lengths = [10, 11, 12, 50, 50, 20, 20, 20, 20]
    by_rank = {rank: StepColumns.of(train(lengths, [], rank=rank)) for rank in range(2)}
    assert before_ms(by_rank, 3) == 11
    assert before_ms(by_rank, 2) is None
    # Steps timed part by part count where the others are too few.
    mixed = {0: StepColumns.of(train(lengths, [0, 1]))}
    assert before_ms(mixed, 3) == 11
    assert before_ms({0: StepColumns.of(train([10, 10, 10, 30, 50], [3]))}, 4) == 10
