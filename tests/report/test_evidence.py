"""What a replay says, in words and in a table, with and without what it may lack."""

from __future__ import annotations

import msgspec
import pytest

from aorta.artefacts.measured import Blame, BreakdownTable, Interval
from aorta.artefacts.replayed import Replay, WhatIf
from aorta.report.bare import bare_page
from aorta.report.blocks import Heading
from aorta.report.evidence import replay_words, what_if_table, worst_table
from aorta.report.sections import details
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
    assert "aorta replayed 40 steps without removing anything" in words
    assert "within 1.2 %" in words
    none = msgspec.structs.replace(REPLAY, error_pct=None)
    assert "no collective that could check the replay" in replay_words(analysis(replay=none))
    perfect = msgspec.structs.replace(REPLAY, error_pct=0.0)
    assert "within 0.1 %" in replay_words(analysis(replay=perfect))
    withheld = msgspec.structs.replace(REPLAY, withheld="it misses by 9 %", predictions=[])
    assert replay_words(analysis(replay=withheld)) == "No prediction: it misses by 9 %."
    assert replay_words(analysis(replay=None)) == ""


@pytest.mark.parametrize("named", [[], [1]], ids=["by turns", "one rank"])
def test_ranks_that_are_late_by_turns_are_said_to_be_no_cause(named: list[int]) -> None:
    late = msgspec.structs.replace(data_loading_finding(), kind="straggler", ranks=named)
    found = analysis(findings=[late])
    table, note = worst_table(bare_page(found), found)
    assert table is not None
    assert ("no single rank is the cause" in note) is (not named)


@pytest.mark.parametrize(("own", "charged"), [(None, [10.0]), (0.0, [10.0]), (4.0, [6.0]), (10.0, [])])
def test_a_rank_costs_only_what_would_not_remain_without_it(own: float | None, charged: list[float]) -> None:
    """Rank 0 waits 10 ms for the host of rank 1; its own host needs `own` of that anyway."""
    rows = [msgspec.structs.replace(rank_row(0), own_host_wait_ms=own), rank_row(1, comm_ms=0.0)]
    blamed = [Blame(rank=1, cause="host", lost_ms_per_step=10.0)]
    found = analysis(breakdown=BreakdownTable(steps=30, per_rank=rows), blame=blamed)
    assert [item.charged_ms for item in bare_page(found).worst_ranks] == pytest.approx(charged)


@pytest.mark.parametrize(
    ("blamed", "head"),
    [
        # Rank 1's own step takes 30 ms longer than rank 0's.
        ((1,), "excess over rank 0, ms"),
        ((0,), "excess over the faster rank, ms"),
        ((0, 1), "excess over the faster rank, ms"),
    ],
)
def test_of_two_ranks_only_the_slower_one_is_longer_than_the_other(
    blamed: tuple[int, ...], head: str
) -> None:
    blame = [Blame(rank=rank, cause="host", lost_ms_per_step=9.0 - rank) for rank in blamed]
    found = analysis(blame=blame)
    table, _ = worst_table(bare_page(found), found)
    assert table is not None
    assert table.header[3] == f">{head}"
    assert [row[3] for row in table.rows] == [{0: "0", 1: "30.0"}[rank] for rank in blamed]


@pytest.mark.parametrize(
    ("waits", "why"), [(30.0, "no rank waits for it"), (None, "its own time is not longer")]
)
def test_a_rank_is_left_out_for_a_reason_that_was_measured(waits: float | None, why: str) -> None:
    rows = [msgspec.structs.replace(row, wait_ms=waits) for row in analysis().breakdown.per_rank]
    found = analysis(
        breakdown=BreakdownTable(steps=30, per_rank=rows),
        blame=[] if waits is None else analysis().blame,
    )
    page = bare_page(found)
    assert worst_table(page, found)[1].startswith(f"Rank 0 is not shown, because {why}. ")
    titles = [item.text for item in details(found, page, charts=False) if isinstance(item, Heading)]
    assert ("Ranks that the others wait for" in titles) == (waits is not None)
    assert ("Ranks with the longest own time" in titles) == (waits is None)
