"""What a replay says, in words and in a table, with and without what it may lack."""

from __future__ import annotations

import msgspec
import pytest

from aorta.artefacts.analysis import Blame, BreakdownTable, Interval, Replay, WhatIf
from aorta.report.bare import bare_page
from aorta.report.evidence import replay_words, what_if_table, worst_table
from tests.support.analyses import analysis, data_loading_finding, rank_row

WHAT = WhatIf(
    kind="communication",
    removed="every transfer",
    ranks=[],
    step_ms=50.0,
    step_ms_interval=Interval(low=40.0, high=62.5),
    speedup=2.0,
    speedup_interval=Interval(low=1.6, high=2.5),
)
REPLAY = Replay(
    steps=40,
    measured_step_ms=100.0,
    modelled_step_ms=100.0,
    error_pct=1.25,
    ideal_network_step_ms=50.0,
    predictions=[WHAT],
)


def test_intervals_stand_behind_their_values_and_are_left_out_where_there_are_none() -> None:
    few = msgspec.structs.replace(WHAT, step_ms_interval=None, speedup_interval=None)
    bound = msgspec.structs.replace(few, bound=True)
    found = what_if_table(analysis(replay=msgspec.structs.replace(REPLAY, predictions=[WHAT, few, bound])))
    assert found is not None
    assert [row[2:] for row in found.rows] == [
        ("50.0 (40.0 to 62.5)", "2.00× (1.60× to 2.50×)"),
        ("50.0", "2.00×"),
        ("at least 50.0", "at most 2.00×"),
    ]


def test_the_check_is_said_with_its_error_and_what_it_was_made_on() -> None:
    words = replay_words(analysis(replay=REPLAY))
    assert "40 steps of 100 ms, from start to start, were replayed" in words
    assert "are 1.2 % off" in words
    none = msgspec.structs.replace(REPLAY, error_pct=None)
    assert "no collective on which the replay could be checked" in replay_words(analysis(replay=none))
    perfect = msgspec.structs.replace(REPLAY, error_pct=0.0)
    assert "are 0.0 % off" in replay_words(analysis(replay=perfect))
    withheld = msgspec.structs.replace(REPLAY, withheld="it misses by 9 %", predictions=[])
    assert replay_words(analysis(replay=withheld)) == "Predictions are withheld: it misses by 9 %."
    assert replay_words(analysis(replay=None)) == ""


@pytest.mark.parametrize("named", [[], [1]], ids=["by turns", "one rank"])
def test_ranks_that_are_late_by_turns_are_said_to_be_no_cause(named: list[int]) -> None:
    late = msgspec.structs.replace(data_loading_finding(), kind="straggler", ranks=named)
    found = analysis(findings=[late])
    table, note = worst_table(bare_page(found), found)
    assert table is not None
    assert ("by turns" in note) is (not named)


def test_what_own_hosts_take_is_that_of_ranks_beyond_the_table() -> None:
    """Ranks 0 and 1 cost time by turns, and rank 0 waits as well: what its host takes is not the others'."""
    rows = [
        msgspec.structs.replace(rank_row(rank), own_host_wait_ms=own)
        for rank, own in enumerate((30.0, 0.0, 10.0, 20.0))
    ]
    blamed = [Blame(rank=rank, cause="host", lost_ms_per_step=60.0) for rank in (0, 1)]
    found = analysis(breakdown=BreakdownTable(steps=30, per_rank=rows), blame=blamed)
    table, note = worst_table(bare_page(found), found)
    assert table is not None
    assert len(table.rows) == 2
    assert "their own hosts take 15.0 ms anyway" in note


@pytest.mark.parametrize(("own", "said"), [(None, False), (0.0, False), (20.0, True)])
def test_what_own_hosts_take_of_waits_for_the_worst_rank_is_said(own: float | None, said: bool) -> None:
    rows = [msgspec.structs.replace(rank_row(0), own_host_wait_ms=own), rank_row(1, comm_ms=0.0)]
    found = analysis(breakdown=BreakdownTable(steps=30, per_rank=rows))
    table, note = worst_table(bare_page(found), found)
    assert table is not None
    assert len(table.rows) == 1
    assert ("their own hosts take 20.0 ms anyway" in note) is said
