"""Steps as columns: what goes in comes out, in any selection."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aorta.artefacts.range_columns import ABSENT
from aorta.artefacts.step_columns import StepColumns
from aorta.artefacts.steps import CollectiveId, DecodedStep, StepExecution, StepRange, StepRanges
from tests.support.steps import step

SOME = step(
    4, (100, 140), data=[(100, 103)], compute=[(103, 120)], collectives=[(110, 130), (131, 135, "tp")]
)


def changed(made: DecodedStep, **values: object) -> DecodedStep:
    return msgspec.structs.replace(made, **values)


RANGES = st.builds(
    StepRange,
    stream=st.sampled_from(["compute", "allreduce", "host"]),
    tag=st.sampled_from(["a", "b"]),
    start_ms=st.integers(-10, 10**6).map(float),
    end_ms=st.integers(0, 10**7).map(lambda value: value / 1000),
    metadata=st.none()
    | st.builds(
        CollectiveId,
        op=st.sampled_from([None, "all_reduce"]),
        group=st.sampled_from([None, "0"]),
        seq=st.none() | st.integers(0, 2**40),
        bytes=st.none() | st.integers(0, 2**40),
    ),
)
STEPS = st.lists(
    st.builds(
        lambda number, ranges, phase, epoch, parts, peak, detailed: changed(
            SOME,
            global_step=number,
            profile=None if ranges is None else StepRanges(ranges=ranges),
            phase=phase,
            epoch=epoch,
            breakdown=SOME.breakdown if parts else None,
            memory_peak_bytes=peak,
            detailed=detailed,
        ),
        st.integers(0, 2**40),
        st.none() | st.lists(RANGES, max_size=4),
        st.sampled_from(["steady", "warmup"]),
        st.sampled_from([None, 0, 1]),
        st.booleans(),
        st.none() | st.integers(0, 2**40),
        st.booleans(),
    ),
    max_size=6,
    unique_by=lambda item: item.global_step,
)


@given(STEPS, st.data())
def test_steps_come_back_as_they_went_in_whatever_is_picked(
    steps: list[DecodedStep], data: st.DataObject
) -> None:
    columns = StepColumns.of(steps)
    assert list(columns) == steps
    wanted = data.draw(st.lists(st.booleans(), min_size=len(steps), max_size=len(steps)))
    kept = [item for item, keep in zip(steps, wanted, strict=True) if keep]
    assert list(columns.where(np.array(wanted, dtype=np.bool_))) == kept
    assert list(columns[1:3]) == steps[1:3]


def test_absent_is_not_zero() -> None:
    steps = [changed(SOME, breakdown=None), SOME, changed(SOME, memory_peak_bytes=0)]
    columns = StepColumns.of(steps)
    assert columns.column("compute_ns").tolist() == [ABSENT, 17_000_000, 17_000_000]
    assert columns.column("exposed_copy_ns").tolist() == [ABSENT] * 3
    assert columns.column("memory_peak_bytes").tolist() == [ABSENT, ABSENT, 0]


def test_steps_without_a_profile_differ_from_those_without_ranges() -> None:
    bare = [changed(SOME, profile=None), changed(SOME, profile=StepRanges(ranges=[])), SOME]
    assert StepColumns.of(bare).profiled.tolist() == [False, True, True]


def test_steps_say_whether_they_were_timed_part_by_part() -> None:
    columns = StepColumns.of([changed(SOME, detailed=False), SOME, changed(SOME, breakdown=None)])
    assert columns.detailed.tolist() == [False, True, True]


def test_ranges_of_picked_steps_are_theirs() -> None:
    columns = StepColumns.of([SOME, changed(SOME, profile=None), SOME]).where(np.array([False, True, True]))
    found = columns.ranges()
    assert found.row.tolist() == [1, 1, 1, 1]
    assert found.start_ns.tolist() == [0, 3_000_000, 10_000_000, 31_000_000]
    assert [found.kinds[code].group for code in found.kind.tolist()] == [None, None, "world", "tp"]
    assert found.seq.tolist() == [ABSENT, ABSENT, 0, 1]


def test_a_recorded_step_keeps_its_execution_and_an_earlier_attempt_its_own() -> None:
    recorded = StepExecution(per_stream_ms={"compute": 1.0}, kernels=3)
    steps = [changed(SOME, attempt=0, execution=recorded), changed(SOME, attempt=1)]
    columns = StepColumns.of(steps)
    assert [item.execution for item in columns] == [recorded, None]
    assert columns[1:].executions == {}
    assert columns[:1].executions == {4: recorded}


def test_labels_come_in_order_of_first_appearance() -> None:
    steps = [changed(SOME, epoch=1), changed(SOME, epoch=0), changed(SOME, epoch=1)]
    columns = StepColumns.of(steps)
    assert [label.epoch for label in columns.labels] == [1, 0]
    assert columns.labelled(columns.labels[0]).tolist() == [True, False, True]


def test_a_number_beyond_64_bits_is_refused() -> None:
    with pytest.raises(OverflowError):
        StepColumns.of([changed(SOME, samples=2**63)])
    assert not StepColumns.of([changed(SOME, memory_total_bytes=2**70)]).fits
