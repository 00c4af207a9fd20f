"""Launches without GPU events: the time in which their work may have run is unseen."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from aorta.artefacts.events import GpuEvents, Kind, RangeRole, Trace, TraceRanges, build, empty_trace
from aorta.readers.lost import LOST, with_unseen

NAMES = (
    "k",
    "cudaLaunchKernel",
    "hipGraphLaunch",
    "cudaMemcpyAsync",
    "cudaStreamBeginCapture",
    "cudaStreamEndCapture",
)
SYNC = 6


def made(
    kernels: list[tuple[int, int, int]], calls: list[tuple[int, int, int]], syncs: list[tuple[int, int]] = ()
) -> Trace:
    """Kernels (start, end, correlation), calls (start, name's code, correlation), synchronising calls."""
    gpu = build(
        GpuEvents,
        len(kernels),
        start_ns=[k[0] for k in kernels],
        end_ns=[k[1] for k in kernels],
        kind=int(Kind.COMPUTE),
        device=0,
        stream=7,
        name=0,
        correlation=[k[2] for k in kernels],
    )
    rows = [
        (start, start + 1, RangeRole.LAUNCH if name < 4 else RangeRole.API, name, number)
        for start, name, number in calls
    ]
    rows = sorted([*rows, *((start, end, RangeRole.SYNC, SYNC, -1) for start, end in syncs)])
    host = build(
        TraceRanges,
        len(rows),
        start_ns=[r[0] for r in rows],
        end_ns=[r[1] for r in rows],
        role=[int(r[2]) for r in rows],
        lane=1,
        name=[r[3] for r in rows],
        correlation=[r[4] for r in rows],
    )
    return replace(empty_trace("made", "kineto"), names=(*NAMES, "cudaDeviceSynchronize"), gpu=gpu, host=host)


def unseen(trace: Trace) -> list[list[int]]:
    found = [item for item in with_unseen(trace).unseen if item.reason == LOST]
    return found[0].spans.tolist() if found else []


def test_lost_work_may_have_run_between_its_neighbours() -> None:
    trace = made([(10, 20, 1), (80, 90, 3)], [(0, 1, 1), (5, 1, 2), (30, 1, 3)])
    assert unseen(trace) == [[20, 80]]


def test_lost_work_ended_before_the_host_stopped_waiting() -> None:
    trace = made([(10, 20, 1), (80, 90, 3)], [(0, 1, 1), (5, 1, 2), (60, 1, 3)], [(6, 50)])
    assert unseen(trace) == [[20, 50]]


def test_nothing_is_unseen_where_every_launch_has_its_event() -> None:
    trace = made([(10, 20, 1), (40, 50, 2), (80, 90, 3)], [(0, 1, 1), (5, 1, 2), (30, 1, 3)])
    assert with_unseen(trace).unseen == ()


@pytest.mark.parametrize("name", [3])
def test_copies_and_launches_behind_the_last_kernel_may_lack_events(name: int) -> None:
    trace = made([(10, 20, 1), (80, 90, 3)], [(0, 1, 1), (5, name, 2), (30, 1, 3), (95, 1, 4)])
    assert unseen(trace) == []


def test_launches_that_are_captured_into_a_graph_run_nothing() -> None:
    calls = [(0, 1, 1), (4, 4, -1), (5, 1, 2), (6, 5, -1), (30, 1, 3)]
    assert unseen(made([(10, 20, 1), (80, 90, 3)], calls)) == []


def test_one_lost_graph_among_many_launches_counts() -> None:
    count = 500
    kernels = [(10 * i + 5, 10 * i + 9, i) for i in range(1, count) if i != 250]
    plain = [(10 * i, 1, i) for i in range(1, count)]
    assert unseen(made(kernels, plain)) == []
    graph = [(start, 2 if number == 250 else name, number) for start, name, number in plain]
    assert unseen(made(kernels, graph)) == [[2500, 2515]]


def test_events_that_nothing_joins_are_no_lost_work() -> None:
    """Where the correlation was lost the work itself is there."""
    trace = made([(10, 20, 1), (40, 50, 999), (80, 90, 3)], [(0, 1, 1), (5, 1, 2), (30, 1, 3)])
    assert unseen(trace) == []


def test_a_graph_recorded_as_a_whole_is_unseen() -> None:
    trace = made([(10, 20, 1), (40, 60, 2)], [(0, 1, 1), (5, 2, 2)])
    trace = replace(trace, gpu=replace(trace.gpu, kind=np.array([int(Kind.COMPUTE), int(Kind.GRAPH)])))
    (item,) = with_unseen(trace).unseen
    assert item.spans.tolist() == [[40, 60]]
    assert "--cuda-graph-trace=node" in item.remedy
