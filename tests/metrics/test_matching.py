"""Calls of ranks joined over columns, against the rule written plainly."""

from __future__ import annotations

from collections import Counter, defaultdict

from hypothesis import given
from hypothesis import strategies as st

from aorta.metrics.collectives import match_collectives
from tests.support.steps import step

GROUPS = ["a", "b"]
CALLS = st.lists(st.tuples(st.sampled_from(GROUPS), st.integers(0, 2)), max_size=4, unique=True)
RANKS = st.lists(st.lists(CALLS, min_size=2, max_size=2), min_size=2, max_size=4)


def plainly(ranks: list[list[list[tuple[str, int]]]]) -> tuple[set[tuple[int, str, int]], int]:
    """The keys that all members of a group of several have, in steps where each has as many; and the rest."""
    members: dict[str, set[int]] = defaultdict(set)
    holders: dict[tuple[int, str, int], set[int]] = defaultdict(set)
    counts: Counter[tuple[int, int, str]] = Counter()
    for rank, steps in enumerate(ranks):
        for number, calls in enumerate(steps):
            for group, place in calls:
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
        begun = [100 * number + 10 * ranks[rank][number].index((group, place)) for rank in item.ranks]
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
