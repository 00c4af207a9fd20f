"""The arithmetic of one step: tiny integer timelines, expectations as arithmetic."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aorta.instrument.steps import (
    COMMUNICATION_STREAMS,
    COMPUTE,
    COPY,
    DATA,
    HOST,
    StreamWait,
    TakenTimes,
    Timed,
    describe,
    without_waits,
)
from aorta.intervals import as_intervals, clip, intersection, length, subtract, union
from aorta.units import NS_PER_MS, ms_to_ns

MS = NS_PER_MS


def timed(stream: str, tag: str, start: int, end: int) -> Timed:
    return Timed(stream, tag, start * MS, end * MS)


def step(*pieces: Timed, end: int = 100, **options: bool) -> TakenTimes:
    return TakenTimes(0, end * MS, pieces, **options)


FULL = step(
    timed(HOST, DATA, 0, 10),
    timed(COMPUTE, "forward", 12, 40),
    timed(COMPUTE, "backward", 40, 70),
    timed("allreduce", "gradients", 55, 65),
    timed("allreduce", "gradients", 65, 90),
    timed(HOST, "gradient_wait", 70, 91),
    timed(COMPUTE, "optimizer", 91, 98),
)


def test_parts_of_a_full_step() -> None:
    breakdown, profile = describe(FULL, 7)
    assert breakdown is not None
    assert breakdown.compute_ns == (40 - 12 + 70 - 40 + 98 - 91) * MS
    assert breakdown.comm_ns == (90 - 55) * MS
    assert breakdown.hidden_comm_ns == (70 - 55) * MS
    assert breakdown.exposed_comm_ns == (90 - 70) * MS
    assert breakdown.data_wait_ns == 10 * MS
    assert breakdown.exposed_copy_ns is None
    # before forward, between the last bucket and the optimizer, after the optimizer
    assert breakdown.host_ns == (2 + 1 + 2) * MS
    assert (profile.index, profile.total_ms) == (7, 100.0)


def test_overlap_of_a_full_step() -> None:
    overlap = describe(FULL, 0)[1].overlap
    assert overlap.per_stream_ms == {
        "compute": 65.0,
        "allreduce": 35.0,
        "reducescatter": 0.0,
        "allgather": 0.0,
    }
    assert overlap.overlap_ms == {
        "compute_allreduce": 15.0,
        "compute_reducescatter": 0.0,
        "compute_allgather": 0.0,
        "compute_comm": 15.0,
        "idle": 100.0 - (90 - 12) - (98 - 91),
    }
    assert overlap.overlap_ratio == 15 / 35  # over communication, not over compute
    assert overlap.utilization == 65 / 100


def test_segments_tile_the_step_with_the_idle_tail() -> None:
    segments = describe(FULL, 0)[1].overlap.active_segments
    assert [(s["start_ms"], s["end_ms"], s["active_streams"]) for s in segments] == [
        (0, 12, []),
        (12, 55, ["compute"]),
        (55, 70, ["compute", "allreduce"]),
        (70, 90, ["allreduce"]),
        (90, 91, []),
        (91, 98, ["compute"]),
        (98, 100, []),
    ]


def test_without_communication_the_ratio_is_null() -> None:
    breakdown, profile = describe(step(timed(COMPUTE, "forward", 0, 60)), 0)
    assert breakdown is not None
    assert breakdown.comm_ns == 0
    assert profile.overlap.overlap_ratio is None


def test_with_serial_communication_the_ratio_is_a_measured_zero() -> None:
    serial = step(timed(COMPUTE, "forward", 0, 60), timed("allreduce", "gradients", 60, 80))
    breakdown, profile = describe(serial, 0)
    assert breakdown is not None
    assert breakdown.exposed_comm_ns == 20 * MS
    assert profile.overlap.overlap_ratio == 0.0


def test_unobserved_communication_gives_ranges_only() -> None:
    blind = step(timed(COMPUTE, "backward", 0, 60), communication_observed=False)
    breakdown, profile = describe(blind, 0)
    assert breakdown is None
    assert [item.tag for item in profile.ranges] == ["backward"]
    assert profile.overlap.utilization is None
    assert profile.overlap.per_stream_ms == {}


@pytest.mark.parametrize(
    ("copies_timed", "copy_ns", "host_ns"), [(True, 10 * MS, 30 * MS), (False, None, 40 * MS)]
)
def test_copies_are_a_part_only_where_they_are_timed(
    copies_timed: bool, copy_ns: int | None, host_ns: int
) -> None:
    times = step(timed(COPY, "h2d", 0, 20), timed(COMPUTE, "forward", 10, 70), copies_timed=copies_timed)
    breakdown, profile = describe(times, 0)
    assert breakdown is not None
    assert breakdown.exposed_copy_ns == copy_ns
    assert breakdown.host_ns == host_ns
    assert ("aux" in profile.overlap.per_stream_ms) is copies_timed


def test_a_timed_step_without_copies_has_a_measured_zero() -> None:
    breakdown, _ = describe(step(timed(COMPUTE, "forward", 0, 70), copies_timed=True), 0)
    assert breakdown is not None
    assert breakdown.exposed_copy_ns == 0


def test_loader_time_under_compute_is_not_data_wait() -> None:
    breakdown, _ = describe(step(timed(HOST, DATA, 0, 50), timed(COMPUTE, "forward", 20, 100)), 0)
    assert breakdown is not None
    assert breakdown.data_wait_ns == 20 * MS


def test_pieces_outside_the_step_do_not_count() -> None:
    times = TakenTimes(10 * MS, 20 * MS, [timed(COMPUTE, "forward", 0, 15), timed(HOST, DATA, 18, 40)])
    breakdown, profile = describe(times, 0)
    assert breakdown is not None
    assert (breakdown.compute_ns, breakdown.data_wait_ns, breakdown.host_ns) == (5 * MS, 2 * MS, 3 * MS)
    assert profile.ranges[0].start_ms == -10.0


def test_compute_stands_still_until_the_collective_that_it_waits_for_is_done() -> None:
    pieces = [
        timed(COMPUTE, "forward", 0, 50),
        timed("allgather", "fsdp", 5, 22),
        timed("allgather", "fsdp", 22, 60),
    ]
    waits = [StreamWait("allgather", 20 * MS, 25 * MS), StreamWait("allgather", 40 * MS, 42 * MS)]
    breakdown, _ = describe(step(*without_waits(pieces, waits), end=60), 0)
    assert breakdown is not None
    # The first stretch waits for the gather that ended at 22; in the second none ended: there was no wait.
    assert breakdown.compute_ns == (50 - (22 - 20)) * MS
    assert breakdown.exposed_comm_ns == (22 - 20 + 60 - 50) * MS


def test_a_wait_is_for_collectives_of_its_own_stream() -> None:
    pieces = [timed(COMPUTE, "backward", 0, 50), timed("reducescatter", "fsdp", 5, 22)]
    assert without_waits(pieces, [StreamWait("allgather", 20 * MS, 25 * MS)]) == pieces


def test_waits_at_the_edges_of_a_piece_and_beyond_it() -> None:
    pieces = [
        timed(COMPUTE, "forward", 10, 20),
        timed("allgather", "a", 0, 12),
        timed("allgather", "b", 12, 25),
    ]
    kept = without_waits(
        pieces, [StreamWait("allgather", 5 * MS, 13 * MS), StreamWait("allgather", 18 * MS, 30 * MS)]
    )
    assert [(p.start // MS, p.end // MS) for p in kept if p.stream == COMPUTE] == [(12, 18)]
    assert [(p.tag, p.start // MS, p.end // MS) for p in kept if p.stream == HOST] == [
        ("allgather_wait", 5, 12),
        ("allgather_wait", 18, 25),
    ]


PIECES = st.lists(
    st.builds(
        lambda kind, start, size: Timed(*kind, start, start + size),
        st.sampled_from(
            [
                (COMPUTE, "x"),
                *((c, "x") for c in COMMUNICATION_STREAMS),
                (COPY, "h2d"),
                (HOST, DATA),
                (HOST, "x"),
            ]
        ),
        st.integers(-20, 120),
        st.integers(0, 60),
    ),
    max_size=12,
)


@given(PIECES, st.booleans())
def test_the_sweep_equals_the_interval_algebra(pieces: list[Timed], copies_timed: bool) -> None:
    times = TakenTimes(0, 100, pieces, copies_timed=copies_timed)

    def cover(*streams: str, tag: str | None = None) -> np.ndarray:
        chosen = [p for p in pieces if p.stream in streams and tag in (None, p.tag)]
        return clip(as_intervals((p.start, p.end) for p in chosen), 0, 100)

    compute, comm, copies = cover(COMPUTE), cover(*COMMUNICATION_STREAMS), cover(COPY)
    busy = union(np.concatenate((compute, comm)))
    covered = union(np.concatenate((busy, copies))) if copies_timed else busy
    breakdown, profile = describe(times, 0)
    assert breakdown is not None
    assert breakdown.compute_ns == length(compute)
    assert breakdown.comm_ns == length(comm)
    assert breakdown.hidden_comm_ns == length(intersection(compute, comm))
    assert breakdown.exposed_comm_ns == length(subtract(comm, compute))
    assert breakdown.exposed_copy_ns == (length(subtract(copies, busy)) if copies_timed else None)
    assert breakdown.data_wait_ns == length(subtract(cover(HOST, tag=DATA), covered))
    segments = profile.overlap.active_segments
    assert ms_to_ns(segments[0]["start_ms"]) == 0
    assert ms_to_ns(segments[-1]["end_ms"]) == 100
    for before, after in pairwise(segments):
        assert before["end_ms"] == after["start_ms"]
        assert before["active_streams"] != after["active_streams"]
    for stream, busy_ms in profile.overlap.per_stream_ms.items():
        inside = [s for s in segments if stream in s["active_streams"]]
        assert ms_to_ns(busy_ms) == length(cover(stream))
        assert ms_to_ns(busy_ms) == sum(ms_to_ns(s["end_ms"]) - ms_to_ns(s["start_ms"]) for s in inside)


@given(PIECES, st.booleans())
def test_the_parts_sum_to_the_step(pieces: list[Timed], copies_timed: bool) -> None:
    breakdown, _ = describe(TakenTimes(0, 100, pieces, copies_timed=copies_timed), 0)
    assert breakdown is not None
    parts = [breakdown.compute_ns, breakdown.exposed_comm_ns, breakdown.exposed_copy_ns or 0]
    assert sum(parts) + breakdown.data_wait_ns + breakdown.host_ns == 100
    assert min(parts) >= 0
