"""What sampled steps tell of the GPU's idle time inside of compute windows."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from msgspec.structs import replace

from aorta.artefacts.records import Breakdown
from aorta.artefacts.step_columns import StepColumns
from aorta.artefacts.step_names import Phase
from aorta.artefacts.steps import DecodedStep, StepExecution
from aorta.metrics.launches import Launches, recorded_launches
from aorta.metrics.steady import steady_steps
from aorta.readers.run import RunData, read_run
from tests.support.steps import step
from tests.support.synthetic import RunSpec, write_run

MS = 1_000_000
PARTS = Breakdown(
    compute_ns=60 * MS, exposed_comm_ns=0, exposed_copy_ns=None, data_wait_ns=0, host_ns=40 * MS,
    comm_ns=12 * MS, hidden_comm_ns=12 * MS,
)  # fmt: skip


def ran(number: int, phase: Phase, execution: StepExecution | None = None) -> DecodedStep:
    return replace(
        step(number, (100 * number, 100 * number + 100)), phase=phase, breakdown=PARTS, execution=execution
    )


def launches(data: RunData, steps: list[DecodedStep]) -> Launches | None:
    records = replace_records(data, StepColumns.of(steps))
    by_rank = records.records.by_rank
    return recorded_launches(by_rank, steady_steps(by_rank).detailed())


def replace_records(data: RunData, steps: StepColumns) -> RunData:
    return dataclasses.replace(data, records=dataclasses.replace(data.records, by_rank={0: steps}))


@pytest.fixture
def data(tmp_path: Path) -> RunData:
    return read_run(write_run(tmp_path, RunSpec(ranks_per_node=1, steps=12)), query_accounting=False)


def sampled(hidden_ms: float | None) -> StepExecution:
    return StepExecution(per_stream_ms={"compute": 25.0}, kernels=500, hidden_comm_ms=hidden_ms)


def test_a_sampled_step_counts_though_recording_it_kept_it_from_being_steady(data: RunData) -> None:
    steps = [ran(0, "steady"), ran(1, "profiler", sampled(12.0)), ran(2, "steady")]
    found = launches(data, steps)
    assert found is not None
    assert (found.kernels, found.kernels_ms, found.windows_ms) == (500, 25.0, 60.0)
    assert found.idle_ms == 60 - 25  # all 12 ms of communication ran beside compute


def test_compute_that_stands_still_for_communication_is_not_the_host(data: RunData) -> None:
    found = launches(data, [ran(0, "steady"), ran(1, "profiler", sampled(0.0)), ran(2, "steady")])
    assert found is not None
    assert found.idle_ms == 60 - 25 - 12


def test_what_the_record_does_not_say_is_not_subtracted(data: RunData) -> None:
    found = launches(data, [ran(0, "steady"), ran(1, "profiler", sampled(None)), ran(2, "steady")])
    assert found is not None
    assert found.idle_ms == 60 - 25


def test_steps_before_the_steady_ones_say_nothing(data: RunData) -> None:
    assert launches(data, [ran(0, "warmup", sampled(12.0)), ran(1, "steady"), ran(2, "steady")]) is None
