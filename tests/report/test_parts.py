from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aorta.artefacts.measured import Blame, BreakdownTable, RankBreakdown
from aorta.artefacts.page import StepPart
from aorta.report.parts import heat_map, loading_words, shown_parts, spread, step_parts, worst_ranks
from tests.support.analyses import analysis, rank_row


def uncharged(rank: int) -> RankBreakdown:
    return msgspec.structs.replace(rank_row(rank), wait_ms=None, transfer_ms=None)


def test_exposed_communication_is_waits_by_cause_and_the_rest() -> None:
    # Ranks of 30 and 0 ms exposed, 30 of it charged to rank 1: 15 of the mean step, and nothing is left.
    parts = {part.key: part.ms for part in step_parts(analysis())}
    assert parts == {
        "compute": 40.0,
        "exposed_comm": 0.0,
        "wait_data_loading": 30.0 / 2,
        "exposed_copy": None,
        "data_wait": (10.0 + 40.0) / 2,
        "host": 10.0,
    }


@pytest.mark.parametrize(
    ("own", "parts"),
    [
        (None, {"wait_host": 12.0, "wait_compute": 3.0}),
        (0.0, {"wait_host": 12.0, "wait_compute": 3.0}),
        (20.0, {"wait_own_host": 10.0, "wait_host": 2.0, "wait_compute": 3.0}),
        (26.0, {"wait_own_host": 13.0, "wait_compute": 2.0}),
    ],
)
def test_what_own_hosts_take_of_waits_is_a_part_of_its_own(
    own: float | None, parts: dict[str, float]
) -> None:
    """Rank 0 waits 24 ms for rank 1's host and 6 for its compute: half of that of the mean step."""
    rows = [msgspec.structs.replace(rank_row(0), own_host_wait_ms=own), rank_row(1, comm_ms=0.0)]
    found = analysis(
        breakdown=BreakdownTable(steps=30, per_rank=rows),
        blame=[
            Blame(rank=1, cause="host", lost_ms_per_step=24.0),
            Blame(rank=1, cause="compute", lost_ms_per_step=6.0),
        ],
    )
    assert {part.key: part.ms for part in step_parts(found) if part.key.startswith("wait")} == pytest.approx(
        parts
    )
    chart = heat_map(found)
    assert chart is not None
    own = chart.groups[0]  # columns after these are waits of others for this rank's work
    names = [*chart.columns[:own], *(f"their wait for its {name}" for name in chart.columns[own:])]
    columns = {name: [row[place] for row in chart.values] for place, name in enumerate(names)}
    late = columns.get("wait, own work late too", [0.0])[0]
    assert late == pytest.approx(100 * 2 * parts.get("wait_own_host", 0.0) / 75)  # all of it is rank 0's
    assert columns["exposed comm"][0] == pytest.approx(100 * 30 / 75 - (late or 0.0))
    # Rank 1 costs the one other rank what is left of the charges: twice the mean over both.
    assert columns.get("their wait for its host work", [0.0, 0.0])[1] == pytest.approx(
        200 * parts.get("wait_host", 0.0) / 75
    )
    assert columns["their wait for its compute"][1] == pytest.approx(200 * parts["wait_compute"] / 75)


def test_without_charges_communication_stays_whole_and_is_not_called_transfer() -> None:
    whole = analysis(
        blame=[], breakdown=BreakdownTable(steps=30, per_rank=[uncharged(rank) for rank in range(2)])
    )
    (part,) = [part for part in step_parts(whole) if part.key == "exposed_comm"]
    assert (part.name, part.ms) == ("exposed communication", 30.0)
    charged = analysis(blame=[])
    assert "exposed transfer" in [part.name for part in step_parts(charged)]


@given(
    st.lists(
        st.tuples(st.floats(0, 100), st.floats(0, 100), st.one_of(st.none(), st.floats(0, 50))), min_size=1
    ),
    st.floats(0, 1),
)
def test_parts_sum_to_the_step(times: list[tuple[float, float, float | None]], share: float) -> None:
    rows = []
    for rank, (data, comm, copy) in enumerate(times):
        row = rank_row(rank, data_ms=data, comm_ms=comm)
        rows.append(msgspec.structs.replace(row, exposed_copy_ms=copy, step_ms=row.step_ms + (copy or 0.0)))
    lost = share * sum(row.exposed_comm_ms for row in rows)
    whole = analysis(
        breakdown=BreakdownTable(steps=1, per_rank=rows),
        blame=[Blame(rank=0, cause="host", lost_ms_per_step=lost)],
    )
    parts = step_parts(whole)
    step = sum(row.step_ms for row in rows) / len(rows)
    assert sum(part.ms or 0.0 for part in parts) == pytest.approx(step)
    assert sum(part.pct or 0.0 for part in parts) == pytest.approx(100.0)


def test_nothing_to_break_down_has_no_parts_and_no_map() -> None:
    empty = analysis(breakdown=BreakdownTable(steps=0, per_rank=[]), blame=[])
    assert step_parts(empty) == []
    assert heat_map(empty) is None
    assert worst_ranks(empty) == ([], 0)
    assert spread([]) == []


def test_the_map_shows_own_time_and_what_a_rank_costs_each_other() -> None:
    found = heat_map(analysis())
    assert found is not None
    # Nobody waits for compute or a host: those columns are empty and left out.
    assert found.columns == ["exposed comm", "data wait", "host work", "loader"]
    assert found.groups == [3, 1]
    assert found.rows == ["rank 0 · node1", "rank 1 · node2"]
    # Of a step of 90 ms; rank 1's loader costs the one other rank 30 ms.
    expected = [[30, 10, 10, 0], [0, 40, 10, 30]]
    for row, cells in zip(found.values, expected, strict=True):
        assert row == pytest.approx([100 * cell / 90 for cell in cells])


def test_a_copy_that_only_one_rank_timed_is_absent_on_the_other() -> None:
    rows = [rank_row(0), msgspec.structs.replace(rank_row(1), exposed_copy_ms=9.0)]
    found = heat_map(analysis(breakdown=BreakdownTable(steps=30, per_rank=rows)))
    assert found is not None
    column = found.columns.index("exposed copy")
    assert [row[column] for row in found.values] == [None, pytest.approx(10.0)]  # 9 of 90 ms


def test_without_charges_the_map_has_only_own_time() -> None:
    whole = analysis(
        blame=[], breakdown=BreakdownTable(steps=30, per_rank=[uncharged(rank) for rank in range(2)])
    )
    found = heat_map(whole)
    assert found is not None
    assert found.groups == [3, 0]


def test_many_ranks_are_binned_and_the_worst_of_a_bin_is_seen() -> None:
    rows = [
        rank_row(rank, host=f"n{rank // 4}", data_ms=80.0 if rank == 37 else 10.0, comm_ms=30.0)
        for rank in range(64)
    ]
    found = heat_map(analysis(blame=[], breakdown=BreakdownTable(steps=30, per_rank=rows)))
    assert found is not None
    assert found.rows == [f"n{node}" for node in range(16)]
    assert found.ranks_a_row == 4
    assert found.note == "64 ranks: each cell shows the worst rank of a node"
    step = (63 * 90.0 + 160.0) / 64
    column = found.columns.index("data wait")
    assert [row[column] for row in found.values] == pytest.approx(
        [100 * (80.0 if node == 9 else 10.0) / step for node in range(16)]
    )


def test_many_ranks_of_one_machine_are_binned_by_rank() -> None:
    rows = [rank_row(rank, host="localhost") for rank in range(65)]
    found = heat_map(analysis(blame=[], breakdown=BreakdownTable(steps=30, per_rank=rows)))
    assert found is not None
    assert found.rows[:2] == ["ranks 0–2", "ranks 3–5"]
    assert found.rows[-1] == "ranks 63–64"


def test_worst_ranks_are_those_that_the_others_wait_for() -> None:
    worst, costly = worst_ranks(analysis())
    assert costly == 1
    assert [item.rank for item in worst] == [1]
    assert worst[0].own_ms == 90.0
    assert worst[0].above_median_ms == 90.0 - 60.0  # of two ranks, the median one is the other
    assert worst[0].charged_ms == 30.0
    assert worst[0].mostly == "data loading"


def test_of_many_costly_ranks_the_number_is_kept() -> None:
    blame = [Blame(rank=rank, cause="host", lost_ms_per_step=float(rank)) for rank in range(20)]
    rows = [rank_row(rank) for rank in range(20)]
    worst, costly = worst_ranks(analysis(blame=blame, breakdown=BreakdownTable(steps=30, per_rank=rows)))
    assert [item.rank for item in worst] == [19, 18, 17, 16, 15, 14]
    assert costly == 19  # rank 0 costs nothing; rank 1 costs 1/19 = 0.053 ms
    assert worst[0].charged_ms == pytest.approx(19.0 / 19)


def test_without_charges_the_longest_own_time_counts() -> None:
    rows = [uncharged(0), uncharged(1), msgspec.structs.replace(uncharged(2), compute_ms=55.0, step_ms=105.0)]
    worst, costly = worst_ranks(analysis(blame=[], breakdown=BreakdownTable(steps=30, per_rank=rows)))
    assert costly == 1
    assert (worst[0].rank, worst[0].charged_ms, worst[0].mostly) == (2, None, "compute")


def test_the_spread_is_over_all_ranks() -> None:
    rows = [rank_row(rank, data_ms=float(rank), comm_ms=30.0) for rank in range(101)]
    found = dict(spread(rows))
    assert found["data wait"] == [0.0, 5.0, 50.0, 95.0, 100.0]
    assert found["own time"] == [50.0, 55.0, 100.0, 145.0, 150.0]


def test_small_parts_are_shown_together_and_unmeasured_ones_not_at_all() -> None:
    def part(key: str, ms: float | None) -> StepPart:
        return StepPart(key=key, name=key, ms=ms, pct=ms)  # of a step of 100 ms

    shown = shown_parts([part("compute", 99.1), part("a", 0.49), part("b", 0.3), part("copy", None)])
    assert [(item.key, item.ms) for item in shown] == [("compute", 99.1), ("other", pytest.approx(0.79))]
    assert [item.key for item in shown_parts([part("compute", 99.5), part("data_wait", 0.5)])] == [
        "compute",
        "data_wait",
    ]
    assert [item.key for item in shown_parts([part("compute", 100.0), part("data_wait", 0.0)])] == ["compute"]


def test_the_parts_of_data_loading_add_up_as_they_are_said() -> None:
    parts = [
        StepPart(key="data_wait", name="data wait", ms=29.6, pct=29.6),
        StepPart(key="wait_data_loading", name="waits", ms=14.8, pct=14.8),
    ]
    assert loading_words(parts).startswith("data loading costs 45 % in total: 30 % data wait + 15 % waiting")
    assert loading_words(parts[:1]) == ""
