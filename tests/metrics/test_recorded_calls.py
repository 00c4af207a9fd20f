"""Calls of collectives in a step, by what they are for."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from aorta.artefacts.step_columns import StepColumns
from aorta.artefacts.steps import CollectiveId, DecodedStep, StepRange, StepRanges
from aorta.metrics.recorded_calls import RecordedCalls, recorded_calls
from tests.support.steps import step


def timed(stream: str, tag: str, start: float, end: float, size: int | None = None) -> StepRange:
    name = None if size is None else CollectiveId(op="all_reduce", group="0", seq=0, bytes=size)
    return StepRange(stream=stream, tag=tag, start_ms=start, end_ms=end, metadata=name)


def one(number: int, *ranges: StepRange) -> DecodedStep:
    return replace(step(number, (100 * number, 100 * number + 100)), profile=StepRanges(ranges=list(ranges)))


def of(*steps: DecodedStep) -> RecordedCalls:
    return recorded_calls({0: StepColumns.of(list(steps))})[0]


def test_small_reductions_outside_of_the_passes_are_the_program_s() -> None:
    backward = timed("compute", "backward", 10, 20)
    calls = [
        timed("allreduce", "program", 30, 32, 4),
        timed("allreduce", "program", 32, 33, 4),
        # A normalisation over ranks exchanges its statistics within the backward pass.
        timed("allreduce", "program", 15, 16, 4),
        timed("allreduce", "gradients", 50, 60, 4),
        timed("allreduce", "gradients", 60, 70, 5000),
    ]
    found = of(*(one(number, backward, *calls) for number in (0, 1)))
    assert (found.small, found.small_ms) == (2.0, 3.0)


@pytest.mark.parametrize(
    ("sizes", "metrics"),
    [
        ([4] * 5 + [8] * 3, 8),  # a float and an int64 are metrics alike
        ([4] * 5 + [400], 5),
        ([2048, 128, 512, 16] * 2, 2),  # one reduction per parameter of a small model
        ([256] * 8 + [5000] * 2, 0),  # and of a larger one
        ([256] * 9 + [5000] * 2, 9),
        ([5000] * 3, 0),
    ],
)
def test_gradients_that_the_program_averages_are_no_metrics(sizes: list[int], metrics: int) -> None:
    calls = [timed("allreduce", "program", at, at + 1, size) for at, size in enumerate(sizes)]
    found = of(*(one(number, *calls) for number in (0, 1)))
    assert (found.small, found.small_ms) == (metrics, metrics)


def test_weights_that_are_handed_round_are_no_metrics() -> None:
    calls = [
        StepRange(
            stream="allreduce", tag="program", start_ms=at, end_ms=at + 1,
            metadata=CollectiveId(op="broadcast", group="0", seq=0, bytes=4),
        )
        for at in range(8)
    ]  # fmt: skip
    assert of(one(0, *calls)).small == 0.0


def test_gradients_are_told_by_their_sizes_where_steps_agree() -> None:
    passes = [timed("compute", "forward", 0, 1), timed("compute", "forward", 10, 11)]
    sizes = [
        timed("allreduce", "gradients", at, at + 1, size)
        for at, size in zip((5, 6, 15, 16), (8, 4, 8, 4), strict=True)
    ]
    update = timed("compute", "optimizer", 20, 21)
    found = of(*(one(number, *passes, *sizes, update) for number in (0, 1)))
    assert (found.passes, found.gradients, found.each_pass) == (2, (8, 4, 8, 4), True)
    other = of(one(0, *passes, *sizes), one(1, passes[0], *sizes[:3]))
    assert (other.passes, other.gradients, other.each_pass) == (0, (), False)


@pytest.mark.parametrize("at", [(12, 13), (5, 6), (-1, 12)])
def test_exchanges_behind_the_last_pass_or_one_of_them_are_not_of_each_pass(at: tuple[int, int]) -> None:
    passes = [timed("compute", "forward", 0, 1), timed("compute", "forward", 10, 11)]
    sizes = [timed("allreduce", "gradients", start, start + 1, 8) for start in at]
    update = timed("compute", "optimizer", 20, 21)
    found = of(*(one(number, *passes, *sizes, update) for number in (0, 1)))
    assert (found.passes, found.gradients, found.each_pass) == (2, (8, 8), False)


@pytest.mark.parametrize(
    ("updates", "needless"), [((), False), ((8,), False), ((8, 20), False), ((20,), True), ((20, 22), True)]
)
def test_exchanges_ahead_of_an_update_of_their_own_are_needed(
    updates: tuple[int, ...], needless: bool
) -> None:
    passes = [timed("compute", "forward", 0, 1), timed("compute", "forward", 10, 11)]
    sizes = [timed("allreduce", "gradients", at, at + 1, 8) for at in (5, 15)]
    made = [timed("compute", "optimizer", at, at + 1) for at in updates]
    assert of(*(one(number, *passes, *sizes, *made) for number in (0, 1))).each_pass is needless
    # A step without an update tells nothing of the others.
    assert not of(one(0, *passes, *sizes, *made), one(1, *passes, *sizes)).each_pass


def test_no_calls_are_measured_as_none() -> None:
    found = of(one(0, timed("compute", "forward", 0, 1)))
    assert (found.small, found.small_ms, found.passes, found.gradients) == (0.0, 0.0, 1, ())
    assert not found.each_pass
    assert recorded_calls({}) == {}
