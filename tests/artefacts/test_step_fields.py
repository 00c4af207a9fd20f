"""A field of a step record is read under the name and with the type that it is written with."""

from __future__ import annotations

from dataclasses import fields

import msgspec
import pytest

from aorta.artefacts.records import Breakdown
from aorta.artefacts.step_columns import BEFORE, UNTIMED, Label, StepColumns
from aorta.artefacts.step_record import (
    Execution,
    Range,
    RankConstants,
    RankIdentity,
    StepParts,
    StepProfile,
    StepRecord,
)
from aorta.artefacts.steps import DecodedStep, StepExecution, StepRange, StepRanges
from aorta.instrument.assemble import _CONSTANT, _MEASURED
from aorta.instrument.wire import StepMeasurement
from aorta.readers.steps import read_steps
from tests.support.synthetic import RunSpec, write_run

NESTED = {"breakdown", "profile", "execution", "metadata", "ranges"}
"""Fields whose value is read as another class, which is compared by itself."""


def written(of: type) -> dict[str, str]:
    return {item.name: str(item.type) for item in fields(of)}


@pytest.mark.parametrize(
    ("read", "record"),
    [
        (DecodedStep, StepRecord),
        (StepRange, Range),
        (StepRanges, StepProfile),
        (StepExecution, Execution),
        (Breakdown, StepParts),
    ],
)
def test_a_field_is_read_as_it_is_written(read, record):
    types = written(record)
    plain = [name for name in read.__struct_fields__ if name not in NESTED]
    assert set(read.__struct_fields__) <= types.keys()
    loose = {name for name in plain if read.__annotations__[name] != types[name]}
    # Read as any text, as a number of an older record, or as absent where an older version did not write it.
    assert loose <= {"timing", "epoch", "hidden_comm_ms"}


def test_the_breakdown_is_read_whole():
    assert tuple(written(StepParts)) == Breakdown.__struct_fields__


def test_a_record_takes_what_stays_and_what_was_measured_by_name():
    record = written(StepRecord)
    assert set(_CONSTANT) == written(RankConstants).keys() > written(RankIdentity).keys()
    for name in _MEASURED:
        assert StepMeasurement.__annotations__[name].__forward_arg__ == record[name]


def test_columns_have_every_field_that_is_read():
    columns = set(StepColumns.of([])._numbers) - {UNTIMED, *BEFORE.values()} | set(Label._fields)
    kept_apart = {"breakdown", "profile", "execution", "untimed_calls", "before_ms"}
    assert columns == set(DecodedStep.__struct_fields__) - kept_apart | set(Breakdown.__struct_fields__)


def test_named_time_ahead_of_a_step_is_kept(tmp_path):
    run = write_run(tmp_path, RunSpec(ranks_per_node=1, nodes=1, steps=3))
    steps = [
        msgspec.structs.replace(item, before_ms={"logging": 2.5} if place == 1 else None)
        for place, item in enumerate(read_steps(run).by_rank[0])
    ]
    again = list(StepColumns.of(steps))
    assert [item.before_ms for item in again] == [None, {"logging": 2.5}, None]
    assert again == steps
