"""Summaries without the profiler, of a small program whose profiler weight is known by construction."""

from __future__ import annotations

from pathlib import Path

import pytest

from aorta.metrics.corrected import without_profiler
from aorta.metrics.host_line import host_line
from aorta.metrics.profiler_weight import Lines, weight
from aorta.metrics.trace_capture import capture
from aorta.metrics.trace_summary import summarise
from aorta.readers import kineto
from tests.support.operators import traced_program

CAPTURE = Path("rank0.json")


def test_a_host_bound_step_is_shorter_without_the_profiler(tmp_path: Path) -> None:
    summary = summarise(kineto.read(traced_program(tmp_path / CAPTURE, operators=20, gap_us=10, kernel_us=2)))
    assert summary.line is not None
    lines = Lines.of({0: summary.line})
    assert lines is not None
    made = without_profiler([summary], lines)
    assert made is not None
    traced = summary.steps[0].end_ns - summary.steps[0].start_ns
    for step in made[0].steps:
        parts = (
            step.compute_ns + step.exposed_comm_ns + step.exposed_copy_ns + step.data_wait_ns + step.host_ns
        )
        assert parts == step.end_ns - step.start_ns < traced
        # What the GPU does takes what it took.
        assert step.compute_ns == summary.steps[0].compute_ns
    assert not capture(made).problems
    estimate = weight(lines).step_ms_without
    assert estimate.low <= estimate.value <= estimate.high


def test_a_gpu_bound_step_stays_as_it_is(tmp_path: Path) -> None:
    path = traced_program(tmp_path / CAPTURE, operators=20, gap_us=10, kernel_us=400)
    summary = summarise(kineto.read(path))
    assert summary.line is not None
    lines = Lines.of({0: summary.line})
    assert lines is not None
    assert without_profiler([summary], lines) is None
    assert weight(lines).step_ms_without.value == pytest.approx(20 * 0.4, rel=0.02)


def of_small_kernels(tmp_path: Path) -> Lines:
    path = traced_program(tmp_path / CAPTURE, operators=20, gap_us=10, kernel_us=2)
    line = host_line(kineto.read(path))
    assert line is not None
    lines = Lines.of({0: line})
    assert lines is not None
    return lines


def test_untraced_steps_set_the_scale_of_the_weight(tmp_path: Path) -> None:
    lines = of_small_kernels(tmp_path)
    untraced = lines.run(scale=0.8).mean_ns / 1e6
    assert untraced > 1.5 * lines.run(scale=1.0).mean_ns / 1e6
    calibrated = lines.calibrated(untraced)
    assert calibrated.run().mean_ns / 1e6 == pytest.approx(untraced, rel=0.02)
    found = weight(calibrated, untraced)
    assert (found.basis, found.step_ms_without.value) == ("untraced steps", untraced)


def test_untraced_steps_that_no_weight_gives_leave_the_weight(tmp_path: Path) -> None:
    """Such steps differ for another reason: half of what the trace tells is beyond the weight's spread."""
    lines = of_small_kernels(tmp_path)
    calibrated = lines.calibrated(lines.run(scale=0.5).mean_ns / 1e6)
    assert calibrated.run().mean_ns == lines.run(scale=1.0).mean_ns
