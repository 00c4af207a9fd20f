"""GPU work by the step that launched it, and collectives matched by it."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from aorta.artefacts.events import (
    ABSENT,
    Kind,
    RangeRole,
    Trace,
    TracedCollectives,
    TraceRanges,
    build,
    concatenate,
    take,
)
from aorta.metrics.calls import Key
from aorta.metrics.trace_breakdown import break_down
from aorta.metrics.trace_work import GpuWork, common_steps, gpu_work, timelines
from tests.support.traces import Gpu, trace

STEPS = [(0, 100, "ProfilerStep#5"), (100, 200, "ProfilerStep#6"), (200, 300, "ProfilerStep#7")]
# The GPU is 150 behind the host: what step 5 launched runs in 150..250.
WORK: list[Gpu] = [
    (150, 190, Kind.COMPUTE),
    (190, 230, Kind.COMMUNICATION),
    (250, 290, Kind.COMPUTE),
    (290, 330, Kind.COMMUNICATION),
    (350, 390, Kind.COMPUTE),
]
LAUNCHED = [10, 20, 110, 120, 210]


def worked(made: Trace) -> GpuWork:
    work = gpu_work(made)
    assert work is not None
    return work


def launched(made: Trace, times: list[int]) -> Trace:
    """The trace with a launch at each time, of the i-th GPU event; ABSENT: none."""
    known = [(at, i) for i, at in enumerate(times) if at != ABSENT]
    calls = build(
        TraceRanges,
        len(known),
        start_ns=[at for at, _ in known],
        end_ns=[at + 1 for at, _ in known],
        role=int(RangeRole.LAUNCH),
        correlation=[i for _, i in known],
        lane=2,
        name=0,
    )
    host = concatenate(TraceRanges, [made.host, calls])
    return replace(made, host=take(host, np.argsort(host.start_ns, kind="stable")))


def test_work_belongs_to_the_step_that_launched_it() -> None:
    made = launched(trace(WORK, steps=STEPS), LAUNCHED)
    work = worked(made)
    # The third step has no next one: where it ends on the GPU is not known.
    assert work.steps.number.tolist() == [5, 6]
    assert work.steps.windows.tolist() == [[150, 250], [250, 350]]
    assert {key: (call.entry, call.end) for key, call in timelines({0: work})[0].calls.items()} == {
        (5, "", 0): (190, 230),
        (6, "", 0): (290, 330),
    }
    assert timelines({0: work})[0].starts == {5: 150, 6: 250}
    parts = break_down(made, work.steps)
    assert parts is not None
    assert parts.compute_ns.tolist() == [40, 40]
    assert parts.host_ns.tolist() == [20, 20]


def test_work_from_before_the_capture_is_of_no_step() -> None:
    times = [ABSENT, ABSENT, *LAUNCHED]
    early: list[Gpu] = [(100, 110, Kind.COMPUTE), (110, 120, Kind.COMMUNICATION)]
    work = worked(launched(trace([*early, *WORK], steps=STEPS), times))
    assert work.edge_calls == 1
    assert work.steps.windows.tolist() == [[150, 250], [250, 350]]


def test_without_launches_work_is_of_the_step_in_which_it_ran() -> None:
    work = worked(trace(WORK, steps=STEPS))
    assert work.steps.windows.tolist() == [[0, 100], [100, 200], [200, 300]]
    assert sorted(timelines({0: work})[0].calls) == [(6, "", 0), (7, "", 0)]


def test_one_launch_of_several_kernels() -> None:
    graph = launched(trace(WORK, steps=STEPS), [10, ABSENT, 110, ABSENT, 210])
    gpu = replace(graph.gpu, correlation=np.array([0, 0, 2, 2, 4]))
    work = worked(replace(graph, gpu=gpu))
    assert sorted(timelines({0: work})[0].calls) == [(5, "", 0), (6, "", 0)]
    assert work.edge_calls == 0


def test_steps_that_the_profiler_left_out_are_in_no_window() -> None:
    cycles = [(0, 100, "ProfilerStep#5"), (100, 200, "ProfilerStep#6"), (900, 1000, "ProfilerStep#20")]
    work = worked(launched(trace(WORK, steps=cycles), [10, 20, 110, 120, 910]))
    assert work.steps.number.tolist() == [5]


def named(made: Trace, sequence: list[int]) -> Trace:
    group = len(made.names)
    known = build(
        TracedCollectives,
        len(sequence),
        event=made.collectives.event,
        group=group,
        sequence=sequence,
        op=ABSENT,
    )
    return replace(made, collectives=known, names=(*made.names, "dp"))


def keys(*traces: Trace) -> list[Key]:
    """Those of the first trace's collectives."""
    return sorted(timelines({rank: worked(made) for rank, made in enumerate(traces)})[0].calls)


def test_sequence_numbers_count_where_every_rank_has_them() -> None:
    one = named(launched(trace(WORK, steps=STEPS), LAUNCHED), [70, 71])
    with_numbers = replace(named(launched(trace(WORK, steps=STEPS), LAUNCHED), [70, 71]), rank=1)
    without = replace(
        with_numbers, collectives=replace(with_numbers.collectives, sequence=np.array([-1, -1]))
    )
    repeated = replace(with_numbers, collectives=replace(with_numbers.collectives, sequence=np.array([7, 7])))
    assert keys(one, with_numbers) == [(5, "dp", 70), (6, "dp", 71)]
    for other in (without, repeated):
        assert keys(one, other) == [(5, "dp", 0), (6, "dp", 0)]


def test_steps_common_to_ranks() -> None:
    one = launched(trace(WORK, steps=STEPS), LAUNCHED)
    later = [(start, end, f"ProfilerStep#{i + 6}") for i, (start, end, _) in enumerate(STEPS)]
    work = {0: worked(one), 1: worked(launched(trace(WORK, steps=later), LAUNCHED))}
    assert common_steps(work) == (6,)
    assert common_steps({}) == ()
