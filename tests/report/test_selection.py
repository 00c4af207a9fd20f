from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from aorta.report.selection import own_ms, shown_ranks
from tests.support.analyses import rank_row


def test_own_time_is_the_step_without_exposed_communication() -> None:
    assert own_ms(rank_row(0, data_ms=10.0, comm_ms=30.0)) == 90.0 - 30.0


def test_few_ranks_are_all_shown_by_rank_without_a_note() -> None:
    rows = [rank_row(rank) for rank in (2, 0, 1)]
    shown, note = shown_ranks(rows, [1])
    assert [row.rank for row in shown] == [0, 1, 2]
    assert note == ""


def test_of_many_ranks_the_verdicts_and_the_extremes_are_shown() -> None:
    # Own time of rank r is 60 + r: rank 63 is the longest, rank 0 the shortest; 20 is the verdict's.
    rows = [rank_row(rank, data_ms=10.0 + rank, comm_ms=100.0 - rank) for rank in range(64)]
    shown, note = shown_ranks(rows, [20], limit=8)
    # One of the verdict; of the other 63: 2 each and 1 more of the longest, the middle at places 30 and 31.
    assert [row.rank for row in shown] == [0, 1, 20, 32, 33, 61, 62, 63]
    assert note == "8 of 64 ranks: the verdict's; longest, middle, shortest own time"


@given(st.integers(1, 300), st.sets(st.integers(0, 299)), st.integers(4, 40))
def test_never_more_than_the_limit_and_always_by_rank(count: int, named: set[int], limit: int) -> None:
    rows = [msgspec.structs.replace(rank_row(0), rank=rank) for rank in range(count)]
    shown, note = shown_ranks(rows, named, limit)
    ranks = [row.rank for row in shown]
    assert ranks == sorted(set(ranks))
    assert len(ranks) == min(count, limit)
    assert bool(note) == (count > limit)
