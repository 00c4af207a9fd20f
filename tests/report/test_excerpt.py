from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aorta.artefacts.page import Doing, Excerpt, ExcerptLane, StepTimeSeries
from aorta.artefacts.step_columns import StepColumns
from aorta.readers.run import RunData, read_run
from aorta.readers.run_identity import clocks
from aorta.report.excerpt import (
    MAX_LANES,
    ChosenStep,
    Piece,
    _drawable,
    chosen_steps,
    cut,
    excerpt,
    timed_steps,
)
from aorta.report.series import step_times
from tests.support.synthetic import RunSpec, write_run


def data_of(tmp_path: Path, spec: RunSpec) -> RunData:
    return read_run(write_run(tmp_path, spec), query_accounting=False)


def excerpt_of(data: RunData, named: list[int]) -> tuple[Excerpt | None, str]:
    by_rank = data.records.by_rank
    longest = next(iter(chosen_steps(timed_steps(step_times(by_rank)))), None)
    return excerpt(by_rank, clocks(data, by_rank), longest, named)


def total(lane: ExcerptLane, *doing: str) -> float:
    return sum(item.end_ms - item.start_ms for item in lane.segments if item.doing in doing)


def test_steady_steps_that_were_timed_part_by_part_are_asked() -> None:
    times = StepTimeSeries(
        global_step=[0, 1, 2, 3],
        ms=[99.0, 5.0, 8.0, 7.0],
        steady=[False, True, True, True],
        steps_a_point=1,
        whole=[False, False, False, True],
    )
    assert timed_steps(times) == {1: 5.0, 2: 8.0}
    assert timed_steps(msgspec.structs.replace(times, whole=[])) == {1: 5.0, 2: 8.0, 3: 7.0}
    assert timed_steps(None) == {}
    assert timed_steps(msgspec.structs.replace(times, steady=[False] * 4)) == {}


def test_the_longest_step_and_the_one_nearest_to_the_median_are_chosen() -> None:
    lengths = {1: 5.0, 2: 8.0, 3: 7.0, 4: 7.5, 5: 8.0}
    assert chosen_steps(lengths) == [
        ChosenStep(2, 8.0, 7.5, typical=False),
        ChosenStep(4, 7.5, 7.5, typical=True),
    ]
    assert chosen_steps({}) == []


def test_of_two_steps_the_shorter_one_is_typical_and_equal_steps_are_chosen_once() -> None:
    assert [step.number for step in chosen_steps({1: 6.0, 2: 5.0})] == [1, 2]
    assert chosen_steps({1: 6.0, 2: 6.0, 3: 6.0}) == [ChosenStep(1, 6.0, 6.0, typical=False)]


@given(st.dictionaries(st.integers(0, 99), st.floats(0.001, 1e6), min_size=1))
def test_no_step_is_longer_than_the_longest_or_nearer_to_the_median(lengths: dict[int, float]) -> None:
    longest, *typical = chosen_steps(lengths)
    assert longest.ms == max(lengths.values())
    for step in typical:
        assert step.ms == lengths[step.number] < longest.ms
        assert abs(step.ms - step.median_ms) == min(abs(ms - step.median_ms) for ms in lengths.values())


def test_an_excerpt_says_whether_all_steps_were_asked(tmp_path: Path) -> None:
    every, _ = excerpt_of(data_of(tmp_path / "a", RunSpec(steps=20)), [])
    some, _ = excerpt_of(data_of(tmp_path / "b", RunSpec(steps=20, detail=(3, 20), detail_ms=5.0)), [])
    assert every is not None
    assert some is not None
    assert (every.all_detailed, some.all_detailed) == (True, False)
    assert some.global_step in (10, 11, 12)
    assert some.step_ms == some.median_ms == pytest.approx(80)
    assert all(lane.segments for lane in some.lanes)
    none = excerpt_of(data_of(tmp_path / "c", RunSpec(steps=20, detail=(0, 20))), [])
    assert none == (None, "not measured: no steady step was timed part by part")


def test_a_lane_is_what_the_rank_did_on_one_clock(tmp_path: Path) -> None:
    # Node 1's clock is 5 s ahead; rank 1's loader takes 40 ms more, which rank 0 waits for.
    spec = RunSpec(nodes=2, ranks_per_node=1, extra_data_ms={1: 40.0}, clock_offset_ns={1: 5_000_000_000})
    found, absent = excerpt_of(data_of(tmp_path, spec), [1])
    assert absent == ""
    assert found is not None
    assert found.note == ""
    assert [lane.rank for lane in found.lanes] == [0, 1]
    waiting, late = found.lanes
    assert min(item.start_ms for lane in found.lanes for item in lane.segments) == pytest.approx(0.0)
    assert total(late, "data_wait") == pytest.approx(44.0)
    assert total(waiting, "data_wait") == pytest.approx(4.0)
    assert total(waiting, "wait") == pytest.approx(40.0)
    assert total(late, "wait") == 0.0
    assert {item.waits_for for item in waiting.segments if item.doing == "wait"} == {1}
    assert {item.waits_for for item in late.segments} == {None}
    for lane in found.lanes:
        assert total(lane, "compute") == pytest.approx(60.0)
        assert total(lane, "host") == pytest.approx(5.0)
        assert total(lane, "compute", "wait", "transfer", "data_wait", "host") == pytest.approx(
            4 + 60 + 5 + 6 + 40
        )


def test_many_ranks_are_chosen_from_and_the_note_says_so(tmp_path: Path) -> None:
    data = data_of(tmp_path, RunSpec(nodes=4, ranks_per_node=8, steps=12, extra_compute_ms={21: 30.0}))
    whole, _ = excerpt_of(data, [21])
    assert whole is not None
    assert [lane.rank for lane in whole.lanes] == list(range(32))
    found = cut(whole, [21])
    assert len(found.lanes) == MAX_LANES
    assert cut(found, [21]) is found
    assert 21 in [lane.rank for lane in found.lanes]
    assert found.note.startswith("12 of 32 ranks: the verdict's")


def test_a_single_rank_needs_no_alignment(tmp_path: Path) -> None:
    found, _ = excerpt_of(data_of(tmp_path, RunSpec(ranks_per_node=1, steps=12)), [])
    assert found is not None
    assert found.note == ""
    assert {item.doing for item in found.lanes[0].segments} == {"compute", "data_wait", "host"}


def test_clocks_that_nothing_aligns_are_said(tmp_path: Path) -> None:
    spec = RunSpec(nodes=2, ranks_per_node=1, steps=12, hidden_comm_ms=0.0, exposed_comm_ms=0.0)
    found, _ = excerpt_of(data_of(tmp_path, spec), [])
    assert found is not None
    assert found.note.startswith("each rank from its own start: ")
    assert [min(item.start_ms for item in lane.segments) for lane in found.lanes] == [0.0, 0.0]


def test_records_without_ranges_have_no_excerpt(tmp_path: Path) -> None:
    data = data_of(tmp_path, RunSpec(steps=12))
    bare = {
        rank: StepColumns.of([msgspec.structs.replace(step, profile=None) for step in steps])
        for rank, steps in data.records.by_rank.items()
    }
    found, absent = excerpt(bare, clocks(data, bare), ChosenStep(11, 80.0, 79.0, typical=False), [])
    assert found is None
    assert absent == "not measured: the records of step 11 contain no ranges"
    assert excerpt(bare, {}, None, []) == (None, "not measured: no steady step")


@pytest.mark.parametrize(
    ("pieces", "drawn"),
    [
        # Longer than 10: as they are.
        ([(0, 20, "host"), (20, 40, "compute")], [(0, 20, "host"), (20, 40, "compute")]),
        # A short one alone goes to the piece before it, or to that behind where there is none.
        ([(0, 20, "host"), (20, 25, "compute"), (25, 60, "host")], [(0, 60, "host")]),
        ([(0, 5, "compute"), (5, 60, "host"), (60, 62, "wait")], [(0, 60 + 2, "host")]),
        # Several in a row: 4 + 5 of compute and 3 of the host's are longer than 10, and compute.
        (
            [(0, 20, "wait"), (20, 24, "compute"), (24, 27, "host"), (27, 32, "compute"), (32, 60, "wait")],
            [(0, 20, "wait"), (20, 32, "compute"), (32, 60, "wait")],
        ),
        ([(0, 4, "host")], []),
        ([], []),
    ],
)
def test_pieces_too_short_to_be_seen_leave_no_hole(pieces: list[Piece], drawn: list[Piece]) -> None:
    assert _drawable(pieces, 10) == drawn


@given(st.lists(st.tuples(st.integers(1, 40), st.sampled_from(["compute", "wait", "host"])), min_size=1))
def test_what_is_drawn_covers_the_step(lengths: list[tuple[int, Doing]]) -> None:
    pieces: list[Piece] = []
    for length, doing in lengths:
        start = pieces[-1][1] if pieces else 0
        pieces.append((start, start + length, doing))
    drawn = _drawable(pieces, 10)
    if pieces[-1][1] > 10:
        assert (drawn[0][0], drawn[-1][1]) == (0, pieces[-1][1])
    assert all(one[1] == other[0] and one[2] != other[2] for one, other in pairwise(drawn))
    assert sum(end - start for start, end, _ in drawn) in (0, pieces[-1][1])
