"""Events that cannot have happened are left out or cut, counted and named; all others stay."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from aorta.artefacts.events import GpuEvents, Kind, RangeRole, Trace, TraceRanges, build, empty_trace
from aorta.readers.possible import CLOCKS, without_impossible
from aorta.readers.trace_build import finish

MS = 1_000_000
BASE = 3_600_000 * MS


def made(starts: list[int], durations: list[int], *, launches: bool = True, streams: int = 7) -> Trace:
    """Kernels at BASE plus these ms, each launched 0.1 ms before its own time."""
    start = BASE + np.array(starts) * MS
    count = len(starts)
    gpu = build(
        GpuEvents,
        count,
        start_ns=start,
        end_ns=start + np.array(durations) * MS,
        kind=int(Kind.COMPUTE),
        device=0,
        stream=streams,
        name=0,
        correlation=np.arange(1, count + 1),
    )
    host = build(
        TraceRanges,
        count,
        start_ns=start - MS // 10,
        end_ns=start - MS // 20,
        role=int(RangeRole.LAUNCH),
        lane=1,
        name=1,
        correlation=np.arange(1, count + 1),
    )
    found = replace(empty_trace("made", "kineto"), names=("k", "cudaLaunchKernel"), gpu=gpu)
    return replace(found, host=host) if launches else found


def at(trace: Trace, row: int, start_ns: int, end_ns: int) -> Trace:
    """The trace with one GPU event at another time."""
    start, end = trace.gpu.start_ns.copy(), trace.gpu.end_ns.copy()
    start[row], end[row] = start_ns, end_ns
    return replace(trace, gpu=replace(trace.gpu, start_ns=start, end_ns=end))


def reasons(trace: Trace) -> str:
    return " | ".join(problem.reason for problem in trace.problems)


@pytest.mark.parametrize("launches", [True, False])
@pytest.mark.parametrize("when", [(0, 0), (0, 5 * MS), (1, 1), (20 * BASE, 20 * BASE + MS)])
def test_an_event_far_from_the_capture_is_left_out(when: tuple[int, int], launches: bool) -> None:
    whole = made(list(range(0, 400, 2)), [1] * 200, launches=launches)
    found = without_impossible(at(whole, 50, *when))
    assert len(found.gpu) == 199
    assert "1 impossible event left out" in reasons(found)


def test_an_event_before_its_own_launch_is_left_out() -> None:
    whole = made(list(range(0, 400, 2)), [1] * 200)
    found = without_impossible(at(whole, 50, BASE + 61 * MS, BASE + 62 * MS))
    assert len(found.gpu) == 199
    assert "1 start before their own launch" in reasons(found)


@pytest.mark.parametrize("days", [8, 0.00001])
def test_an_event_that_runs_into_the_next_of_its_stream_is_cut(days: float) -> None:
    whole = made(list(range(0, 4000, 20)), [1] * 200)
    start = BASE + 1000 * MS
    found = without_impossible(at(whole, 50, start, start + round(days * 86_400_000) * MS))
    assert len(found.gpu) == 200
    assert found.gpu.end_ns.max() <= BASE + 3981 * MS
    assert "1 event cut" in reasons(found)


def test_the_last_event_of_a_stream_cannot_be_cut() -> None:
    whole = made(list(range(0, 400, 2)), [1] * 200)
    found = without_impossible(at(whole, 199, BASE + 398 * MS, BASE + 8 * 86_400_000 * MS))
    assert len(found.gpu) == 199
    assert "1 end outside the capture" in reasons(found)


def test_streams_that_overlap_everywhere_stay() -> None:
    """ROCm and branches of graphs write several streams as one."""
    whole = made(list(range(0, 4000, 20)), [25] * 200)
    found = without_impossible(whole)
    assert found.gpu.end_ns.tolist() == whole.gpu.end_ns.tolist()
    assert found.problems == ()


def test_clocks_that_contradict_each_other_make_idle_time_unseen() -> None:
    whole = made(list(range(0, 400, 2)), [1] * 200)
    gpu = replace(whole.gpu, start_ns=whole.gpu.start_ns - 50 * MS, end_ns=whole.gpu.end_ns - 50 * MS)
    found = without_impossible(replace(whole, gpu=gpu))
    assert len(found.gpu) == 200
    assert [item.reason for item in found.unseen] == [CLOCKS]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=40))
def test_what_can_have_happened_stays(pairs: list[tuple[int, int]]) -> None:
    starts = np.cumsum([gap + 31 for gap, _ in pairs]).tolist()
    whole = made(starts, [duration for _, duration in pairs])
    found = without_impossible(whole)
    assert found.gpu.start_ns.tolist() == whole.gpu.start_ns.tolist()
    assert (found.problems, found.unseen) == ((), ())


def test_rows_of_collectives_follow_their_events() -> None:
    whole = made(list(range(0, 40, 2)), [1] * 20)
    named = replace(whole, names=("ncclDevKernel_AllReduce", "cudaLaunchKernel"))
    found = finish(at(named, 3, 0, 0))
    assert found.collectives.event.tolist() == list(range(19))
