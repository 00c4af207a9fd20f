"""The exclusive breakdown: tiny integer traces with the expectation as arithmetic, and properties."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from aorta.artefacts.events import Kind, RangeRole
from aorta.metrics.trace_breakdown import NOT_CLASSIFIED, break_down
from tests.support.traces import trace


def parts(made: object) -> dict[str, list[int]]:
    table = break_down(made)  # type: ignore[arg-type]
    assert table is not None
    names = "compute exposed_comm exposed_copy unclassified data_wait host comm hidden_comm".split()
    return {name: getattr(table, f"{name}_ns").tolist() for name in names}


def test_every_part() -> None:
    made = trace(
        [
            (0, 30, Kind.COMPUTE),
            (20, 40, Kind.COMPUTE),
            (35, 60, Kind.COMMUNICATION),
            (55, 70, Kind.COPY),
            (65, 75, Kind.MEMSET),
            (72, 80, Kind.UNCLASSIFIED),
        ],
        [(78, 90, RangeRole.LOADER)],
        steps=[(0, 100, "step 1")],
    )
    assert parts(made) == {
        "compute": [40 - 0],
        "exposed_comm": [60 - 40],
        "exposed_copy": [75 - 60],
        "unclassified": [80 - 75],
        "data_wait": [90 - 80],
        "host": [100 - 90],
        "comm": [60 - 35],
        "hidden_comm": [40 - 35],
    }
    table = break_down(made)
    assert table is not None
    assert table.overlap_ratio == (40 - 35) / (60 - 35)


def test_each_step_has_its_own() -> None:
    """A kernel across the border is divided at it."""
    made = trace([(80, 150, Kind.COMPUTE)], steps=[(0, 100, "step 1"), (100, 200, "step 2")])
    assert parts(made)["compute"] == [100 - 80, 150 - 100]
    assert parts(made)["host"] == [80, 200 - 150]


def test_the_loader_counts_only_while_the_gpu_is_idle() -> None:
    busy = trace([(0, 100, Kind.COMPUTE)], [(10, 60, RangeRole.DATA)], steps=[(0, 100, "step 1")])
    assert parts(busy)["data_wait"] == [0]
    idle = trace([(0, 10, Kind.COMPUTE)], [(10, 60, RangeRole.DATA)], steps=[(0, 100, "step 1")])
    assert parts(idle)["data_wait"] == [60 - 10]


def test_the_ranks_own_device_counts() -> None:
    made = trace(
        [(0, 10, Kind.COMPUTE), (20, 30, Kind.COMPUTE), (40, 90, Kind.COMPUTE)],
        device=[2, 2, 3],
        steps=[(0, 100, "step 1")],
    )
    assert parts(made)["compute"] == [10 + 10]


def test_no_communication_has_no_overlap_and_no_reason() -> None:
    table = break_down(trace([(0, 10, Kind.COMPUTE)], steps=[(0, 20, "step 1")]))
    assert table is not None
    assert (table.overlap_ratio, table.reason, table.comm_ns.tolist()) == (None, None, [0])


def test_collectives_without_gpu_events_are_not_zero_communication() -> None:
    made = trace([(0, 10, Kind.COMPUTE)], [(2, 4, RangeRole.COLLECTIVE)], steps=[(0, 20, "step 1")])
    table = break_down(made)
    assert table is not None
    assert (table.reason, table.overlap_ratio) == (NOT_CLASSIFIED, None)


def test_without_a_gpu_there_is_no_breakdown() -> None:
    assert break_down(trace([], steps=[(0, 20, "step 1")])) is None


spans = st.tuples(st.integers(0, 200), st.integers(0, 60)).map(lambda t: (t[0], t[0] + t[1]))


@given(
    st.lists(st.tuples(spans, st.sampled_from(list(Kind))), min_size=1, max_size=25),
    st.lists(spans, max_size=6),
    st.lists(st.integers(1, 80), min_size=1, max_size=5),
)
def test_parts_sum_to_the_step_and_match_a_count_of_ticks(
    gpu: list[tuple[tuple[int, int], Kind]], loader: list[tuple[int, int]], lengths: list[int]
) -> None:
    """Against the definition itself: each ns of each step is asked what it was."""
    edges = np.cumsum([0, *lengths]).tolist()
    steps = [(a, b, f"step {i}") for i, (a, b) in enumerate(pairwise(edges))]
    made = trace([(*span, kind) for span, kind in gpu], [(*s, RangeRole.LOADER) for s in loader], steps=steps)
    table = break_down(made)
    assert table is not None

    def running(tick: int, *kinds: Kind) -> bool:
        return any(start <= tick < end and kind in kinds for (start, end), kind in gpu)

    order = [
        ("compute", lambda t: running(t, Kind.COMPUTE)),
        ("exposed_comm", lambda t: running(t, Kind.COMMUNICATION)),
        ("exposed_copy", lambda t: running(t, Kind.COPY, Kind.MEMSET)),
        ("unclassified", lambda t: running(t, Kind.UNCLASSIFIED)),
        ("unseen", lambda t: running(t, Kind.GRAPH)),
        ("data_wait", lambda t: any(start <= t < end for start, end in loader)),
        ("host", lambda t: True),
    ]
    for row, (start, end) in enumerate(table.steps.windows.tolist()):
        counted = dict.fromkeys((name for name, _ in order), 0)
        for tick in range(start, end):
            counted[next(name for name, holds in order if holds(tick))] += 1
        assert counted == {name: int(getattr(table, f"{name}_ns")[row]) for name, _ in order}


def test_a_world_of_one_rank_exchanges_nothing() -> None:
    """The base of every scaling curve: collectives are called and run no kernel."""
    made = trace([(0, 10, Kind.COMPUTE)], [(2, 4, RangeRole.COLLECTIVE)], steps=[(0, 20, "step 1")])
    alone, pair = (break_down(replace(made, world_size=size)) for size in (1, 2))
    assert alone is not None
    assert pair is not None
    assert (alone.reason, alone.comm_ns.tolist()) == (None, [0])
    assert pair.reason == NOT_CLASSIFIED
