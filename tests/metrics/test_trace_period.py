"""Steps of captures without marks, from what repeats in them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from aorta.artefacts.events import Kind, RangeRole, Trace
from aorta.metrics.trace_period import period_of
from aorta.metrics.trace_steps import steps_of
from tests.support.traces import trace


def repeated(names: list[str], times: int, each: int = 10) -> Trace:
    """Kernels of these names, again and again, one every `each` ns."""
    every = names * times
    gpu = [(number * each, number * each + each // 2, Kind.COMPUTE) for number in range(len(every))]
    return trace(gpu, names=every)


@pytest.mark.parametrize(
    "step",
    [["embed", *["attention", "mlp"] * 12, "loss"], ["gemm"] * 24 + ["nccl"] * 3, ["a", "b", "c", "d"]],
)
@pytest.mark.parametrize("times", [5, 9])
def test_a_sequence_of_kernels_that_repeats_is_a_step(step: list[str], times: int) -> None:
    period = period_of(repeated(step, times))
    assert period is not None
    assert np.diff(period.starts).tolist() == [10 * len(step)] * (len(period.starts) - 1)
    assert len(period.starts) in (times - 1, times)


def test_windows_reach_from_one_repetition_to_the_next() -> None:
    steps = steps_of(repeated(["loss", "gemm", "gemm", "gemm"], 5))
    assert steps.number.tolist() == [0, 1, 2, 3]
    assert (steps.windows[:, 1] - steps.windows[:, 0]).tolist() == [40] * 4
    assert steps.closed


def test_calls_of_the_optimizer_are_steps() -> None:
    made = trace([(0, 5, Kind.COMPUTE)], [(100 * n, 100 * n + 9, RangeRole.OPTIMIZER) for n in range(5)])
    period = period_of(made)
    assert period is not None
    assert period.starts.tolist() == [0, 100, 200, 300, 400]


@pytest.mark.parametrize("times", [1, 2, 3])
def test_fewer_than_three_whole_repetitions_are_none(times: int) -> None:
    assert period_of(repeated(["embed", "gemm", "loss"], times)) is None


def test_a_capture_that_does_not_repeat_is_one_window() -> None:
    made = trace([(n * 10, n * 10 + 5, Kind.COMPUTE) for n in range(40)], names=[f"k{n}" for n in range(40)])
    steps = steps_of(made)
    assert (steps.windows.tolist(), steps.whole_capture) == ([[0, 395]], True)


def test_marks_come_first() -> None:
    marked = repeated(["embed", "gemm", "loss"], 6)
    host = trace([], steps=[(n * 60, n * 60 + 60, f"step {n}") for n in range(3)])
    names = (*marked.names, *host.names)
    ranges = replace(host.host, name=host.host.name + len(marked.names))
    assert len(steps_of(replace(marked, host=ranges, names=names))) == 3


@given(st.lists(st.sampled_from("abcdef"), min_size=3, max_size=20), st.integers(1, 60))
def test_the_kernel_before_the_capture_changes_no_length(step: list[str], cut: int) -> None:
    """A capture begins anywhere in a step."""
    whole = [*step, "once"] * 8
    cut %= len(step) + 1
    made = trace([(n * 10, n * 10 + 5, Kind.COMPUTE) for n in range(len(whole) - cut)], names=whole[cut:])
    period = period_of(made)
    assert period is not None
    assert set(np.diff(period.starts).tolist()) == {10 * (len(step) + 1)}
