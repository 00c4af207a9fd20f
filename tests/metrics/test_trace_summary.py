"""A rank's trace to its summary and back: nothing that the analysis uses is lost or rounded."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from aorta.artefacts.events import ABSENT, Kind, RangeRole
from aorta.artefacts.packed import Packed, pack, unpack, unpack_intervals
from aorta.artefacts.reduction import TraceSummary
from aorta.errors import ArtefactError
from aorta.metrics.trace_summary import breakdown_row, latest, rank_trace, summarise, work_of
from aorta.metrics.trace_work import gpu_work, timelines
from tests.support.traces import trace

MADE = trace(
    [(0, 40, Kind.COMPUTE), (30, 60, Kind.COMMUNICATION), (100, 150, Kind.COMPUTE)],
    [(60, 70, RangeRole.LOADER), (160, 170, RangeRole.SYNC)],
    steps=[(0, 100, "step 1"), (100, 200, "step 2")],
    rank=3,
)


def stored(summary: TraceSummary) -> TraceSummary:
    return msgspec.json.decode(msgspec.json.encode(summary), type=TraceSummary)


def test_means_of_the_breakdown_and_of_the_idle_time() -> None:
    summary = stored(summarise(replace(MADE, host_name="n1")))
    row = breakdown_row(summary, [1, 2])
    assert row is not None
    assert (row.rank, row.host, row.steps) == (3, "n1", 2)
    assert row.compute_ms == pytest.approx((40 + 50) / 2 / 1e6)
    assert row.exposed_comm_ms == pytest.approx((60 - 40) / 2 / 1e6)
    assert row.overlap_ratio == pytest.approx((40 - 30) / (60 - 30))
    assert row.exposed_copy_ms is not None
    assert row.unclassified_ms is not None
    total = row.compute_ms + row.exposed_comm_ms + row.exposed_copy_ms + row.unclassified_ms
    assert total + row.data_wait_ms + row.host_ms == pytest.approx(row.step_ms)
    idle = rank_trace(summary, [1, 2])
    assert idle is not None
    assert idle.idle_loader_ms == pytest.approx(10 / 2 / 1e6)
    assert idle.idle_sync_ms == pytest.approx(10 / 2 / 1e6)
    # 40 of step 1 and 50 of step 2 are idle: in the loader, synchronising, and the rest elsewhere.
    assert idle.idle_elsewhere_ms == pytest.approx((30 + 40) / 2 / 1e6)
    assert idle.idle_launch_ms == 0.0
    assert idle.contention is None


def test_only_the_steps_that_are_asked_for_count() -> None:
    row = breakdown_row(summarise(MADE), [2])
    assert row is not None
    assert (row.steps, row.compute_ms, row.overlap_ratio) == (1, pytest.approx(50 / 1e6), None)


def test_collectives_that_nothing_shows_give_no_row() -> None:
    made = trace([(0, 10, Kind.COMPUTE)], [(2, 4, RangeRole.COLLECTIVE)], steps=[(0, 20, "step 1")])
    assert breakdown_row(summarise(made), []) is None
    plain = breakdown_row(summarise(trace([(0, 10, Kind.COMPUTE)], steps=[(0, 20, "step 1")])), [])
    assert plain is not None
    assert plain.exposed_comm_ms == 0.0


def test_a_trace_without_gpu_work_has_no_steps() -> None:
    summary = stored(summarise(trace([], steps=[(0, 20, "step 1")])))
    assert (summary.gpu_events, summary.steps, summary.timeline, summary.whole) == (0, [], None, False)
    assert breakdown_row(summary, []) is None
    assert rank_trace(summary, []) is None


def test_the_timeline_that_waits_are_charged_by_comes_back_as_it_was() -> None:
    direct, read = gpu_work(MADE), work_of(stored(summarise(MADE)))
    assert direct is not None
    assert read is not None
    one, other = timelines({3: direct})[3], timelines({3: read})[3]
    assert one.starts == other.starts == {1: 0, 2: 100}
    assert one.calls == other.calls
    assert [(call.entry, call.end) for call in other.calls.values()] == [(30, 60)]
    for part in ("compute", "data", "communication"):
        assert np.array_equal(getattr(one, part), getattr(other, part))


def sending(words: str) -> TraceSummary:
    """The summary of a trace whose collective sends these bytes to each peer."""
    known = replace(MADE.collectives, sent=np.array([len(MADE.names)]))
    return stored(summarise(replace(MADE, collectives=known, names=(*MADE.names, words))))


def test_bytes_per_peer_come_back_as_they_were() -> None:
    read, plain = work_of(sending("0 512")), work_of(stored(summarise(MADE)))
    assert read is not None
    assert plain is not None
    assert [read.names[code] for code in read.calls.sent.tolist()] == ["0 512"]
    assert plain.calls.sent.tolist() == [ABSENT]


def with_sent(summary: TraceSummary, sent: Packed | None) -> TraceSummary:
    assert summary.timeline is not None
    calls = msgspec.structs.replace(summary.timeline.calls, sent=sent)
    line = msgspec.structs.replace(summary.timeline, calls=calls)
    return msgspec.structs.replace(summary, timeline=line)


def test_an_older_summary_has_no_bytes_per_peer() -> None:
    read = work_of(with_sent(sending("0 512"), None))
    assert read is not None
    assert read.calls.sent.tolist() == [ABSENT]


def test_bytes_per_peer_that_are_not_there_are_refused() -> None:
    with pytest.raises(ArtefactError, match="rank 3: a collective refers to a name that is missing"):
        work_of(with_sent(sending("0 512"), pack(np.array([99]))))


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_packed_columns_are_exact(values: list[int]) -> None:
    assert unpack(pack(np.array(values, dtype=np.int64))).tolist() == values


@pytest.mark.parametrize(
    "packed",
    [
        Packed(count=2, data=pack(np.array([1])).data),
        Packed(count=-1, data=b""),
        Packed(count=1 << 40, data=b""),
        Packed(count=1, data=b"x"),
        Packed(count=1, data=pack(np.arange(10**6)).data),
    ],
)
def test_a_damaged_column_is_refused(packed: Packed) -> None:
    with pytest.raises(ArtefactError, match="packed column"):
        unpack(packed)


def test_half_an_interval_is_refused() -> None:
    with pytest.raises(ArtefactError, match="3 ends"):
        unpack_intervals(pack(np.array([1, 2, 3])))


def test_a_summary_with_a_name_that_is_not_there_is_refused() -> None:
    summary = summarise(MADE)
    assert summary.timeline is not None
    calls = msgspec.structs.replace(summary.timeline.calls, names=[])
    broken = msgspec.structs.replace(summary.timeline, calls=calls)
    with pytest.raises(ArtefactError, match="rank 3"):
        work_of(msgspec.structs.replace(summary, timeline=broken))


def edited(summary: TraceSummary, **first: int) -> TraceSummary:
    """`summary` with other fields of its first step."""
    steps = [msgspec.structs.replace(summary.steps[0], **first), *summary.steps[1:]]
    return msgspec.structs.replace(summary, steps=steps)


@pytest.mark.parametrize(
    ("first", "said"),
    [
        ({"number": 2}, "a step occurs twice"),
        ({"number": 7}, "a collective belongs to step 1, which is missing"),
        ({"number": -2}, "impossible time or number"),
        ({"end_ns": 0}, "impossible time or number"),
        ({"compute_ns": 41}, "parts that sum to 101 ns, but takes 100 ns"),
        ({"host_ns": -1}, "a negative part"),
        ({"idle_sync_ns": 1}, "the causes of idle time sum to"),
        ({"hidden_comm_ns": 0}, "do not sum to its communication"),
    ],
)
def test_a_summary_that_contradicts_itself_is_refused(first: dict[str, int], said: str) -> None:
    with pytest.raises(ArtefactError, match=said):
        work_of(edited(summarise(MADE), **first))


@pytest.mark.parametrize("size", [0, 2**40])
def test_a_world_that_cannot_be_is_refused(size: int) -> None:
    # Its largest group may be smaller than the world: rank 3 of a group of 2 is fine.
    assert work_of(msgspec.structs.replace(summarise(MADE), world_size=2)) is not None
    with pytest.raises(ArtefactError, match="its rank is 3, its world size"):
        work_of(msgspec.structs.replace(summarise(MADE), world_size=size))


def test_a_timeline_that_goes_back_in_time_is_refused() -> None:
    summary = summarise(MADE)
    assert summary.timeline is not None
    line = msgspec.structs.replace(summary.timeline, compute=pack(np.array([100, 150, 0, 40])))
    with pytest.raises(ArtefactError, match="back in time"):
        work_of(msgspec.structs.replace(summary, timeline=line))


THREE = trace(
    [
        (0, 40, Kind.COMPUTE),
        (30, 60, Kind.COMMUNICATION),
        (100, 150, Kind.COMPUTE),
        (140, 205, Kind.COMMUNICATION),
        (200, 290, Kind.COMPUTE),
        (250, 260, Kind.COMMUNICATION),
        (300, 310, Kind.COMPUTE),
    ],
    [(at, at + 1, RangeRole.LAUNCH) for at in (0, 30, 100, 140, 200, 250, 300)],
    steps=[(0, 100, "step 1"), (100, 200, "step 2"), (200, 300, "step 3"), (300, 400, "step 4")],
)


def test_the_latest_steps_keep_their_parts_and_the_timeline_around_them() -> None:
    whole = summarise(THREE)
    assert [step.number for step in whole.steps] == [1, 2, 3, 4]
    cut = stored(latest(whole, {2}))
    work = work_of(cut)
    assert work is not None
    assert cut.steps == [whole.steps[1]]
    assert work.calls.entry_ns.tolist() == [140]
    # Its collective ends 5 ns into the next step, where a kernel runs already.
    assert work.compute.tolist() == [[100, 150], [200, 205]]
    assert work.communication.tolist() == [[140, 205]]
    assert breakdown_row(cut, [2]) == breakdown_row(whole, [2])
    assert (cut.kernels, cut.gpu_events) == (whole.kernels, 7)


def test_a_summary_without_any_of_the_latest_steps_stays_as_it_is() -> None:
    whole = summarise(THREE)
    assert latest(whole, {9}) is whole
    assert latest(whole, {1, 2, 3, 4}).steps == whole.steps
    without = summarise(trace([(0, 10, Kind.COMPUTE)]))
    assert latest(without, {1}) is without
