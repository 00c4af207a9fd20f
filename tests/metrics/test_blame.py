"""Blame, in tiny integer steps: who is late, why, and that nothing is lost or invented."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aorta.metrics.apportion import apportion
from aorta.metrics.blame import BlameTable, blame, within_idle
from aorta.metrics.collectives import match_collectives
from aorta.units import NS_PER_MS
from tests.support.exchanges import Records, late_loader, matched, simulated
from tests.support.steps import step
from tests.support.synthetic import RunSpec


def table(records: Records, clocks: dict[int, str] | None = None) -> BlameTable:
    numbers = [item.global_step for item in next(iter(records.values())) if item.phase == "steady"]
    return blame(matched(records, clocks), numbers)


def in_ms(found: BlameTable) -> dict[int, dict[tuple[int, str], float]]:
    return {
        rank: {key: ns / NS_PER_MS for key, ns in charges.items()} for rank, charges in found.charges.items()
    }


def test_a_slow_loader_is_blamed_though_its_rank_computes_while_the_others_wait() -> None:
    records = {
        0: [step(0, (0, 120), data=[(0, 5)], compute=[(5, 65)], collectives=[(65, 120)])],
        1: [step(0, (0, 120), rank=1, data=[(0, 50)], compute=[(50, 110)], collectives=[(110, 120)])],
    }
    found = table(records)
    # Rank 0 waits from 65 until rank 1 comes at 110; the rest, 120 - 110, is transfer on both.
    assert in_ms(found) == {0: {(1, "data_loading"): 110 - 65}, 1: {}}
    assert found.exposed_wait_ns == {0: 45 * NS_PER_MS, 1: 0}


def test_longer_compute_and_longer_host_work_share_the_wait_in_proportion() -> None:
    records = {
        0: [step(0, (0, 100), compute=[(0, 20)], collectives=[(20, 100)])],
        1: [step(0, (0, 100), rank=1, compute=[(0, 50)], collectives=[(80, 100)])],
    }
    # Rank 1: 50 of compute against 20, 80 - 50 = 30 of host time against 0: half of the 60 each.
    assert in_ms(table(records))[0] == {(1, "compute"): 30, (1, "host"): 30}


def test_only_the_exposed_part_of_a_wait_is_charged() -> None:
    records = {
        0: [step(0, (0, 100), compute=[(0, 20), (20, 45)], collectives=[(20, 100)])],
        1: [step(0, (0, 100), rank=1, data=[(0, 70)], compute=[(70, 90)], collectives=[(90, 100)])],
    }
    found = table(records)
    assert found.wait_ns[0] == (90 - 20) * NS_PER_MS
    assert found.exposed_wait_ns[0] == (90 - 45) * NS_PER_MS
    assert in_ms(found)[0] == {(1, "data_loading"): 45}


def test_two_buckets_blame_the_one_slow_loader_not_the_compute_behind_it() -> None:
    records = {
        0: [
            step(0, (0, 145), data=[(0, 5)], compute=[(5, 65), (65, 85)], collectives=[(65, 120), (85, 140)])
        ],
        1: [
            step(
                0,
                (0, 145),
                rank=1,
                data=[(0, 55)],
                compute=[(55, 115), (115, 135)],
                collectives=[(115, 120), (135, 140)],
            )
        ],
    }
    # Bucket 0: rank 0 waits 65..115, 65..85 of it hidden. Bucket 1 can begin at 120; rank 1 comes at 135.
    assert in_ms(table(records))[0] == {(1, "data_loading"): (115 - 85) + (135 - 120)}


def test_work_after_the_last_collective_counts_in_the_next_step() -> None:
    """Rank 1 is slow on the host after the exchange of step 0: it starts step 1 late, and is fast in it."""
    records = {
        0: [
            step(0, (0, 30), compute=[(0, 10)], collectives=[(10, 20)], phase="warmup"),
            step(1, (30, 100), compute=[(30, 40)], collectives=[(40, 90)]),
        ],
        1: [
            step(0, (0, 70), rank=1, compute=[(0, 10)], collectives=[(10, 20)], phase="warmup"),
            step(1, (70, 100), rank=1, compute=[(70, 80)], collectives=[(80, 90)]),
        ],
    }
    assert in_ms(table(records))[0] == {(1, "host"): 80 - 40}


def test_the_chain_leads_to_the_rank_behind_a_rank_that_was_held_up() -> None:
    """Ranks 0 and 1 exchange, then rank 0 with rank 2: rank 1's loader makes rank 2 wait."""
    records = {
        0: [step(0, (0, 100), compute=[(0, 10)], collectives=[(10, 60, "inside"), (60, 70, "across")])],
        1: [step(0, (0, 100), rank=1, data=[(0, 40)], compute=[(40, 50)], collectives=[(50, 60, "inside")])],
        2: [step(0, (0, 100), rank=2, compute=[(0, 10)], collectives=[(10, 70, "across", 1)])],
    }
    found = in_ms(table(records))
    assert found[0] == {(1, "data_loading"): 50 - 10}
    # Rank 2 waits 60 - 10 for rank 0, which had lost 40 to rank 1's loader and 10 to the exchange with it.
    assert found[2] == {(1, "data_loading"): 40, (0, "communication"): 10}


def test_ranks_that_come_together_blame_nobody() -> None:
    both = {rank: [step(0, (0, 40), rank=rank, compute=[(0, 20)], collectives=[(20, 40)])] for rank in (0, 1)}
    found = table(both)
    assert in_ms(found) == {0: {}, 1: {}}
    assert found.wait_ns == {0: 0, 1: 0}


def test_a_late_start_is_host_time() -> None:
    late = {
        0: [step(0, (0, 60), compute=[(0, 20)], collectives=[(20, 55)])],
        1: [step(0, (30, 60), rank=1, compute=[(30, 50)], collectives=[(50, 55)])],
    }
    assert in_ms(table(late))[0] == {(1, "host"): 50 - 20}


def test_a_rank_released_late_from_the_previous_collective_is_communication() -> None:
    """Both come to the second collective at 40; the first one ends at 45 on rank 0 and at 50 on rank 1."""
    records = {
        0: [step(0, (0, 70), compute=[(0, 30)], collectives=[(30, 45), (40, 60)])],
        1: [step(0, (0, 70), rank=1, compute=[(0, 30)], collectives=[(30, 50), (40, 60)])],
    }
    assert in_ms(table(records))[0] == {(1, "communication"): 50 - 45}


def test_different_numbers_of_calls_in_a_step_are_not_matched() -> None:
    records = {
        0: [step(0, (0, 60), compute=[(0, 20)], collectives=[(20, 55)])],
        1: [step(0, (0, 60), rank=1, compute=[(0, 20)], collectives=[(20, 55), (55, 56)])],
    }
    assert match_collectives(records, {0: "a", 1: "a"}) == "no collective could be matched across ranks"


def test_clocks_of_two_machines_are_aligned_on_the_ends_of_collectives() -> None:
    clocks = {0: "node1", 1: "node2"}
    expected = in_ms(table(late_loader(load=60), clocks))
    assert expected[0] == {(1, "data_loading"): 3 * 60}
    for ahead in (5_000, -7_000):
        assert in_ms(table(late_loader(load=60, ahead_ms=ahead), clocks)) == expected


def test_machines_without_a_common_collective_are_not_compared() -> None:
    records = {
        rank: [step(0, (0, 40), rank=rank, compute=[(0, 20)], collectives=[(20, 40, f"pair{rank // 2}")])]
        for rank in range(4)
    }
    found = match_collectives(records, {0: "node1", 1: "node1", 2: "node2", 3: "node2"})
    assert found == "no collective in common aligns the clock of node2 with the other clocks"


def test_clocks_are_joined_through_a_third_machine() -> None:
    """Ranks 0 and 2 share no group; rank 1, whose clock is 3000 ms ahead, is in a group with each."""

    def records(ahead: int) -> Records:
        return {
            0: [step(0, (0, 90), compute=[(0, 20)], collectives=[(20, 40, "a")])],
            1: [step(0, (0, 90), rank=1, collectives=[(30, 40, "a"), (45, 90, "b", 0)], ahead_ms=3_000)],
            2: [
                step(0, (0, 90), rank=2, compute=[(0, 80)], collectives=[(80, 90, "b")], ahead_ms=ahead),
            ],
        }

    clocks = {0: "x", 1: "y", 2: "z"}
    expected = in_ms(table(records(0), clocks))
    assert expected[1] == {(2, "compute"): 80 - 45}
    assert in_ms(table(records(9_000), clocks)) == expected


def test_records_without_collectives_say_so() -> None:
    records = {rank: [step(0, (0, 40), rank=rank, compute=[(0, 20)])] for rank in (0, 1)}
    assert match_collectives(records, {0: "a", 1: "a"}) == "the records contain no collectives"


def test_calls_without_numbers_match_by_order_where_counts_agree() -> None:
    records = {
        rank: [
            step(
                0,
                (0, 40),
                rank=rank,
                compute=[(0, 20)],
                collectives=[(20, 30, "world", None), (30, 40, "world", None)],
            )
        ]
        for rank in (0, 1)
    }
    assert len(matched(records).matched) == 2


def test_unmatched_calls_are_counted_not_blamed() -> None:
    records = {
        0: [
            step(0, (0, 40), compute=[(0, 20)], collectives=[(20, 30)]),
            step(1, (40, 80), compute=[(40, 60)], collectives=[(60, 70), (70, 80)]),
        ],
        1: [
            step(0, (0, 40), rank=1, compute=[(0, 20)], collectives=[(20, 30)]),
            step(1, (40, 80), rank=1, compute=[(40, 60)], collectives=[(60, 80)]),
        ],
    }
    found = matched(records)
    assert [item.key[0] for item in found.matched] == [0]
    assert found.unmatched == 3
    assert in_ms(table(records)) == {0: {}, 1: {}}


@settings(max_examples=60, deadline=None)
@given(
    ranks=st.integers(2, 5),
    seed=st.integers(0, 10_000),
    loader=st.dictionaries(st.integers(0, 4), st.integers(0, 90), max_size=3),
    compute=st.dictionaries(st.integers(0, 4), st.integers(0, 90), max_size=3),
    host=st.dictionaries(st.integers(0, 4), st.integers(0, 90), max_size=3),
)
def test_charges_sum_to_the_exposed_waits(
    ranks: int, seed: int, loader: dict[int, int], compute: dict[int, int], host: dict[int, int]
) -> None:
    spec = RunSpec(
        ranks_per_node=ranks,
        steps=4,
        jitter_ms=20,
        seed=seed,
        extra_data_ms={rank: float(ms) for rank, ms in loader.items()},
        extra_compute_ms={rank: float(ms) for rank, ms in compute.items()},
        extra_host_ms={rank: float(ms) for rank, ms in host.items()},
    )
    records = simulated(spec)
    found = table(records)
    for rank in range(ranks):
        charged = found.charges[rank]
        assert sum(charged.values()) == found.exposed_wait_ns[rank] <= found.wait_ns[rank]
        assert all(lost > 0 for lost in charged.values())
        assert all(culprit != rank for culprit, _ in charged)
        exposed = sum(item.breakdown.exposed_comm_ns for item in records[rank] if item.breakdown)
        assert found.exposed_wait_ns[rank] <= exposed


@given(st.integers(0, 10**12), st.lists(st.integers(0, 10**9), min_size=1, max_size=8))
def test_shares_sum_to_the_total_and_are_proportional(total: int, weights: list[int]) -> None:
    if not any(weights):
        weights[0] = 1
    shares = apportion(total, weights)
    assert sum(shares) == total
    whole = sum(weights)
    assert all(
        abs(share - total * weight / whole) <= 1.001 for share, weight in zip(shares, weights, strict=True)
    )


def test_shares_of_nothing() -> None:
    assert apportion(0, [0, 0]) == [0, 0]
    with pytest.raises(ValueError, match="nothing to split"):
        apportion(1, [0, 0])
    with pytest.raises(ValueError, match="negative"):
        apportion(1, [2, -1])


def test_the_order_of_ranks_does_not_matter() -> None:
    rng = random.Random(3)
    spans = [(rng.randrange(5, 40), rng.randrange(5, 40)) for _ in range(4)]
    last = max(a + b for a, b in spans)
    records = {
        rank: [
            step(
                0,
                (0, last + 10),
                rank=rank,
                data=[(0, a)],
                compute=[(a, a + b)],
                collectives=[(a + b, last + 10)],
            )
        ]
        for rank, (a, b) in enumerate(spans)
    }
    turned = dict(reversed(records.items()))
    assert in_ms(table(turned)) == in_ms(table(records))


@pytest.mark.parametrize(("idle", "host", "compute"), [(0, 0, 12), (4, 4, 8), (9, 9, 3), (20, 9, 3)])
def test_a_host_is_charged_with_no_more_than_its_gpu_is_idle(idle: int, host: int, compute: int) -> None:
    charges = {0: {(1, "host"): 9, (1, "compute"): 3, (1, "communication"): 5}, 1: {(0, "host"): 7}}
    waits = BlameTable(1, {0: 17, 1: 7}, {0: 17, 1: 7}, charges, 0)
    found = within_idle(waits, {1: idle}).charges
    assert found[0] == {(1, "host"): host, (1, "compute"): compute, (1, "communication"): 5}
    assert found[1] == charges[1]  # nothing is known of rank 0
