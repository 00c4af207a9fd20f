"""Waits split and added up over many ranks at once, as one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import aorta.metrics.blame as blame_module
from aorta.artefacts.steps import DecodedStep
from aorta.metrics.apportion import apportion
from aorta.metrics.blame import blame
from aorta.metrics.chains import ChainMembers, Chains
from aorta.metrics.charges import MANY_RANKS, MOST_CULPRITS, Charges, split
from aorta.metrics.collectives import MatchedCollectives, match_collectives
from aorta.metrics.rows import rows_of
from tests.support.steps import step


@given(
    st.lists(
        st.tuples(st.integers(0, 10**9), st.lists(st.integers(0, 10**9), min_size=4, max_size=4)),
        min_size=1,
        max_size=20,
    )
)
def test_shares_are_those_of_each_wait_alone(rows: list[tuple[int, list[int]]]) -> None:
    found = split(np.array([lost for lost, _ in rows]), np.array([weights for _, weights in rows]))
    for shares, (lost, weights) in zip(found.tolist(), rows, strict=True):
        assert shares == apportion(lost, weights if any(weights) else [0, 0, 0, 1])


@given(st.integers(0, 2**48 - 1), st.lists(st.integers(0, 2**59), min_size=4, max_size=4))
def test_shares_sum_to_the_wait_where_products_would_not_fit(lost: int, weights: list[int]) -> None:
    (shares,) = split(np.array([lost]), np.array([weights])).tolist()
    assert sum(shares) == lost
    assert min(shares) >= 0


def test_charges_add_up_by_rank_culprit_and_cause() -> None:
    found = Charges(3)
    found.add(np.array([0, 2]), 1, np.array([[5, 0, 0, 1], [7, 0, 0, 0]]))
    found.add(np.array([0]), 1, np.array([[2, 0, 3, 0]]))
    found.add_one(1, 0, "compute", 4)
    assert found.by_rank([10, 11, 12]) == {
        10: {(11, "data_loading"): 7, (11, "communication"): 1, (11, "host"): 3},
        11: {(10, "compute"): 4},
        12: {(11, "data_loading"): 7},
    }
    assert Charges(2).by_rank([0, 1]) == {0: {}, 1: {}}


def test_of_very_many_culprits_the_costliest_are_told_apart_and_nothing_is_lost() -> None:
    many = MOST_CULPRITS + 6
    found = Charges(many)
    for culprit in range(1, many):
        found.add(np.array([0]), culprit, np.array([[0, culprit, 0, 0]]))
    charges = found.by_rank(range(many))[0]
    assert len(charges) == MOST_CULPRITS + 1
    assert charges[MANY_RANKS, "compute"] == sum(range(1, 6))
    assert sum(charges.values()) == sum(range(many))


def test_members_of_one_group_are_charged_alike_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    records: dict[int, list[DecodedStep]] = {}
    for rank in range(4):
        records[rank] = []
        for number in range(6):
            start = 200 * number
            data, work = rng.integers(1, 40, 2).tolist()
            at = start + data + work
            records[rank].append(
                step(
                    number,
                    (start, start + 200),
                    rank=rank,
                    data=[(start, start + data)],
                    compute=[(start + data, at)],
                    collectives=[(at, start + 100), (start + 100 + work, start + 180)],
                )
            )
    collectives = match_collectives(records, dict.fromkeys(records, "clock"))
    assert isinstance(collectives, MatchedCollectives)
    at_once = blame(collectives, range(6))
    # Told that the groups differ, each member's ledger is kept.
    groups = {rank: frozenset({"world", *(["own"] if rank == 3 else [])}) for rank in range(4)}
    monkeypatch.setattr(blame_module, "_groups", lambda *_: groups)
    one_by_one = blame(collectives, range(6))
    assert one_by_one == at_once
    assert any(at_once.charges.values())


def test_a_collective_of_a_step_that_does_not_count_is_in_the_ledger_alone() -> None:
    sums = Charges(2)
    chains = Chains({0: frozenset("a"), 1: frozenset("ab")}, {0: 0, 1: 1})
    part = ChainMembers(
        rank=np.array([0, 1]),
        weights=np.array([[9, 0, 0], [0, 0, 0]]),
        released=np.array([0, 0]),
        lost=np.array([9, 0]),
        transfer=np.array([1, 1]),
    )
    chains.add((0, "a"), 1, part, None)
    assert sums.by_rank([0, 1]) == {0: {}, 1: {}}
    chains.add((1, "a"), 1, part, sums)
    assert sums.by_rank([0, 1])[0] == {(1, "data_loading"): 9}


def test_rows_by_rank() -> None:
    found = rows_of(np.array([2, 0, 2, 0]), 4)
    assert [rows.tolist() for rows in found] == [[1, 3], [], [0, 2], []]
