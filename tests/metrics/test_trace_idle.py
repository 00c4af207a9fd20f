"""Idle causes, queue depth, contention."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from aorta.artefacts.events import ABSENT, Kind, RangeRole, TraceRanges, build, concatenate
from aorta.metrics.trace_idle import (
    SHORT_GAP_NS,
    contention,
    host_work,
    idle_causes,
    idle_gaps,
    launches_in,
    queue_depth,
)
from aorta.metrics.trace_steps import StepWindows, steps_of
from tests.support.traces import trace


def test_idle_time_by_what_the_host_did() -> None:
    """Idle 10 to 100: loader first, then synchronisation, then driver calls; the rest is elsewhere."""
    made = trace(
        [(0, 10, Kind.COMPUTE)],
        [
            (5, 30, RangeRole.LOADER),
            (20, 50, RangeRole.SYNC),
            (40, 70, RangeRole.LAUNCH),
            (75, 80, RangeRole.API),
            (0, 100, RangeRole.FORWARD),
        ],
        steps=[(0, 100, "step 1")],
    )
    causes = idle_causes(made)
    assert causes is not None
    assert causes.idle_ns.tolist() == [100 - 10]
    assert causes.loader_ns.tolist() == [30 - 10]
    assert causes.sync_ns.tolist() == [50 - 30]
    assert causes.launch_ns.tolist() == [(70 - 50) + (80 - 75)]
    assert causes.elsewhere_ns.tolist() == [(75 - 70) + (100 - 80)]
    assert idle_causes(trace([])) is None


def test_the_host_works_where_it_waits_for_nothing() -> None:
    """Launches of 10, of which the quickest tenth takes 10; the one of 100 waits from its 30th on."""
    calls = [(at, at + 10, RangeRole.LAUNCH) for at in range(0, 200, 20)]
    waits = [
        (500, 600, RangeRole.LAUNCH),
        (700, 750, RangeRole.SYNC),
        (740, 760, RangeRole.LOADER),
        (800, 850, RangeRole.DATA),
    ]
    made = trace([(0, 10, Kind.COMPUTE)], [*calls, *waits], steps=[(0, 1000, "step 1")])
    found = host_work(made, steps_of(made))
    assert found is not None
    assert found.tolist() == [1000 - 70 - 60 - 50]
    busy = trace([(0, 10, Kind.COMPUTE)], calls, steps=[(0, 1000, "step 1")])
    found = host_work(busy, steps_of(busy))
    assert found is not None
    assert found.tolist() == [1000]  # it waits for nothing: all of it is work
    silent = trace([(0, 10, Kind.COMPUTE)], waits[1:], steps=[(0, 1000, "step 1")])
    assert host_work(silent, steps_of(silent)) is None


def test_a_host_that_runs_ahead_works_no_longer_than_it_takes_for_a_step() -> None:
    """Steps of 100 on the GPU, which the host launches in 60 each and without a wait; a capture of three."""
    kernels = [(1000 + 100 * step, 1010 + 100 * step, Kind.COMPUTE) for step in range(4)]
    made = replace(trace(kernels), host=launches([900 + 60 * step for step in range(4)], list(range(4))))
    windows = np.array([[1000 + 100 * step, 1100 + 100 * step] for step in range(3)])
    found = host_work(made, StepWindows(np.arange(3), windows, "made"))
    assert found is not None
    assert found.tolist() == [60, 60, 60]
    # Windows that begin with no kernel, as ranges on the host do, are the host's own.
    found = host_work(made, StepWindows(np.arange(3), windows - 5, "made"))
    assert found is not None
    assert found.tolist() == [100, 100, 100]


def launches(starts: list[int], correlations: list[int]) -> TraceRanges:
    return build(
        TraceRanges,
        len(starts),
        start_ns=starts,
        end_ns=np.array(starts) + 1,
        role=int(RangeRole.LAUNCH),
        lane=1,
        name=0,
        correlation=correlations,
    )


def test_queue_depth_at_each_launch() -> None:
    """Launched at 0, 1, 2, 50; started at 10, 20, 30, 60: before each launch 0, 1, 2, 0 were waiting."""
    made = trace(
        [(10, 20, Kind.COMPUTE), (20, 30, Kind.COMPUTE), (30, 40, Kind.COMPUTE), (60, 70, Kind.COMPUTE)]
    )
    made = replace(made, host=launches([0, 1, 2, 50, 55], [0, 1, 2, 3, ABSENT]))
    depth = queue_depth(made)
    assert depth is not None
    assert (depth.launches, depth.median, depth.empty_share) == (4, 0.5, 2 / 4)


def test_no_joined_launch_no_depth() -> None:
    made = trace([(10, 20, Kind.COMPUTE)])
    assert queue_depth(made) is None
    unjoined = replace(
        made, gpu=replace(made.gpu, correlation=np.array([ABSENT])), host=launches([5], [ABSENT])
    )
    assert queue_depth(unjoined) is None


def contended(beside: int, comm: bool = True) -> object:
    """Three runs of 10 alone, one of `beside` next to communication (or alone)."""
    gpu = [
        (0, 10, Kind.COMPUTE),
        (20, 30, Kind.COMPUTE),
        (40, 50, Kind.COMPUTE),
        (60, 60 + beside, Kind.COMPUTE),
    ]
    if comm:
        gpu.append((55, 100, Kind.COMMUNICATION))
    return trace(gpu, steps=[(0, 50, "step 1"), (50, 100, "step 2")])


def test_contention_is_time_beyond_the_usual() -> None:
    found = contention(contended(14))  # type: ignore[arg-type]
    assert found is not None
    assert (found.ns_per_step, found.kernels, found.unknown, found.slowdown) == ((14 - 10) / 2, 1, 0, 14 / 10)


def test_no_slowdown_is_a_measured_zero_and_no_communication_is_none() -> None:
    found = contention(contended(10))  # type: ignore[arg-type]
    assert found is not None
    assert (found.ns_per_step, found.slowdown) == (0.0, 1.0)
    assert contention(contended(10, comm=False)) is None  # type: ignore[arg-type]


def test_another_launch_shape_is_another_kernel() -> None:
    made = contended(14)
    gpu = made.gpu  # type: ignore[attr-defined]
    other = replace(gpu, shape=np.where(gpu.start_ns == 60, 5, gpu.shape))
    assert contention(replace(made, gpu=other)) is None  # type: ignore[type-var]


def test_tables_refuse_columns_of_different_lengths() -> None:
    whole = launches([1, 2], [3, 4])
    assert len(concatenate(TraceRanges, [whole, whole])) == 4
    with pytest.raises(ValueError, match="different lengths"):
        replace(whole, lane=np.array([1]))


def test_gaps_by_length_without_what_the_loader_explains() -> None:
    """Busy 0 to 10; gap of exactly the limit; busy for 10; a gap one longer; the last gap is the loader's."""
    limit = SHORT_GAP_NS
    second, third = 10 + limit, 20 + limit + limit + 1
    made = trace(
        [(0, 10, Kind.COMPUTE), (second, second + 10, Kind.COMMUNICATION), (third, third + 10, Kind.COPY)],
        [(third + 10, third + 500, RangeRole.LOADER), (5, 6, RangeRole.LAUNCH), (8, 9, RangeRole.LAUNCH)],
        steps=[(0, third + 500, "step 1")],
    )
    gaps = idle_gaps(made, steps_of(made))
    assert gaps.short_ns.tolist() == [limit]
    assert gaps.long_ns.tolist() == [limit + 1]
    assert launches_in(made, steps_of(made)).tolist() == [2]
