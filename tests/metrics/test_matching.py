"""Calls of ranks joined over columns, against the rule written plainly."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aorta.metrics.collectives import match_collectives
from tests.support.steps import step

GROUPS = ["a", "b"]
CALLS = st.lists(st.tuples(st.sampled_from(GROUPS), st.integers(0, 2)), max_size=4, unique=True)
RANKS = st.lists(st.lists(CALLS, min_size=2, max_size=2), min_size=2, max_size=4)


def plainly(ranks: list[list[list[tuple[str, int]]]]) -> tuple[set[tuple[int, str, int]], int]:
    """The keys that all members of a group of several have, in steps where each has as many; and the rest.

    Numbers count from the lowest one that a rank has in the step and group.
    """
    members: dict[str, set[int]] = defaultdict(set)
    holders: dict[tuple[int, str, int], set[int]] = defaultdict(set)
    counts: Counter[tuple[int, int, str]] = Counter()
    for rank, steps in enumerate(ranks):
        for number, calls in enumerate(steps):
            for group, place in relative(calls):
                members[group].add(rank)
                holders[number, group, place].add(rank)
                counts[rank, number, group] += 1
    found, unmatched = set(), 0
    for (number, group, place), those in holders.items():
        as_many = len({counts[rank, number, group] for rank in members[group]}) == 1
        if as_many and those == members[group] and len(those) > 1:
            found.add((number, group, place))
        elif len(members[group]) > 1:
            unmatched += len(those)
    return found, unmatched


def relative(calls: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Each call's group and number, from 0 in each group."""
    lowest = {group: min(place for name, place in calls if name == group) for group, _ in calls}
    return [(group, place - lowest[group]) for group, place in calls]


@given(RANKS)
def test_the_same_keys_match_as_by_the_rule(ranks: list[list[list[tuple[str, int]]]]) -> None:
    records = {
        rank: [
            step(
                number,
                (100 * number, 100 * number + 90),
                rank=rank,
                collectives=[
                    (100 * number + 10 * at, 100 * number + 10 * at + 5, *call)
                    for at, call in enumerate(calls)
                ],
            )
            for number, calls in enumerate(steps)
        ]
        for rank, steps in enumerate(ranks)
    }
    keys, unmatched = plainly(ranks)
    found = match_collectives(records, dict.fromkeys(records, "clock"))
    if isinstance(found, str):
        assert not keys
        return
    assert {item.key for item in found.matched} == keys
    assert found.unmatched == unmatched
    for item in found.matched:
        number, group, place = item.key
        begun = [
            100 * number + 10 * relative(ranks[rank][number]).index((group, place)) for rank in item.ranks
        ]
        assert item.entry.tolist() == [ms * 1_000_000 for ms in begun]


def test_a_chain_of_groups_joins_three_clocks() -> None:
    ahead = {0: 0, 1: 40, 2: -7}
    spans = {0: [(10, 20, "a")], 1: [(12, 20, "a"), (30, 50, "b", 0)], 2: [(33, 50, "b", 0)]}
    records = {
        rank: [step(0, (0, 60), rank=rank, collectives=calls, ahead_ms=ahead[rank])]
        for rank, calls in spans.items()
    }
    found = match_collectives(records, {0: "x", 1: "y", 2: "z"})
    assert not isinstance(found, str)
    assert [line.starts[0] for line in found.timelines.values()] == [0, 0, 0]
    assert [(item.key[1], item.entry.tolist()) for item in found.matched] == [
        ("a", [10_000_000, 12_000_000]),
        ("b", [30_000_000, 33_000_000]),
    ]


def test_clocks_of_ranks_that_are_not_looked_at_need_no_place() -> None:
    ranks = {rank: [step(0, (0, 10), collectives=[(1 + rank, 9)])] for rank in (0, 1)}
    found = match_collectives(ranks, {0: "a", 1: "b", 2: "c"})
    assert not isinstance(found, str)
    assert list(found.lines) == [1]


@pytest.mark.parametrize("shift", [-2, -1, 0, 1, 2, 1000])
def test_a_rank_that_counted_other_steps_as_well_is_matched_with_the_right_partners(shift: int) -> None:
    # Three collectives a step; rank 1 comes to the first, second, third 1, 2, 3 ms after rank 0. Its numbers
    # are shifted: it timed another step on top, or it began to count later.
    records = {
        rank: [
            step(
                number,
                (100 * number, 100 * number + 90),
                rank=rank,
                collectives=[
                    (
                        100 * number + 20 * place + rank * (place + 1),
                        100 * number + 20 * place + 15,
                        "a",
                        10 + 3 * number + place + shift * rank,
                    )
                    for place in range(3)
                ],
            )
            for number in range(2)
        ]
        for rank in (0, 1)
    }
    found = match_collectives(records, dict.fromkeys(records, "clock"))
    assert not isinstance(found, str)
    assert found.unmatched == 0
    late_ms = [int(item.entry[1] - item.entry[0]) // 1_000_000 for item in found.matched]
    assert late_ms == [1, 2, 3] * 2


def test_a_step_that_one_rank_alone_timed_is_matched_with_nothing() -> None:
    calls = [(10, 20, "a"), (30, 40, "a")]
    records = {
        0: [step(0, (0, 90), collectives=calls), step(1, (100, 190), collectives=[])],
        1: [
            step(0, (0, 90), rank=1, collectives=calls),
            step(1, (100, 190), rank=1, collectives=[(110, 120, "a"), (130, 140, "a")]),
        ],
    }
    found = match_collectives(records, dict.fromkeys(records, "clock"))
    assert not isinstance(found, str)
    assert [item.key for item in found.matched] == [(0, "a", 0), (0, "a", 1)]
    assert found.unmatched == 2
