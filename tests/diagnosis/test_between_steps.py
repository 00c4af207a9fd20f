"""Whole runs: time between steps, seen and unseen, and clocks that go back there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aorta.units import NS_PER_MS
from tests.support.synthetic import RunSpec, write_run
from tests.support.verdicts import analysed


def test_time_between_steps_is_told_from_few_slow_steps(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", RunSpec(ranks_per_node=1))
    steps = [json.loads(line) for line in run.records(0).read_text().splitlines()]
    for number, record in enumerate(steps):
        for clock in ("mono_start_ns", "mono_end_ns", "wall_start_ns", "wall_end_ns"):
            record[clock] += number * 69_000_000  # as long as a step of 4 + 60 + 5 ms
    run.records(0).write_text("\n".join(map(json.dumps, steps)) + "\n")
    # 30 steps and the 29 gaps between them.
    ratio = 30 / 59
    assert analysed(run).data_quality.notes == [
        f"throughput is {ratio:.2f} times global batch / mean step: {100 * (1 - ratio):.0f} % of the time "
        "is between steps"
    ]
    skewed = write_run(tmp_path / "b", RunSpec(ranks_per_node=1))
    steps = [json.loads(line) for line in skewed.records(0).read_text().splitlines()]
    for number, record in enumerate(steps):
        late = 600_000_000 if number == 35 else 0
        record["breakdown"]["host_ns"] += late
        for clock in ("mono_start_ns", "mono_end_ns", "wall_start_ns", "wall_end_ns"):
            record[clock] += 600_000_000 if number > 35 or (number == 35 and "end" in clock) else 0
    skewed.records(0).write_text("\n".join(map(json.dumps, steps)) + "\n")
    assert analysed(skewed).data_quality.notes == [
        f"some steps are far slower than the rest: the mean step takes {69 + 600 / 30:.1f} ms, "
        "the median step 69.0 ms"
    ]


@pytest.mark.parametrize(("gap_share", "verdict"), [(0.9, "between_steps"), (0.1, "healthy")])
def test_time_between_steps_is_in_no_record_and_not_healthy(
    tmp_path: Path, gap_share: float, verdict: str
) -> None:
    run = write_run(tmp_path, RunSpec(ranks_per_node=1))
    lines = [json.loads(line) for line in run.records(0).read_text().splitlines()]
    step = lines[0]["mono_end_ns"] - lines[0]["mono_start_ns"]
    gap = round(step * gap_share / (1 - gap_share))
    for number, line in enumerate(lines):
        for name in ("mono_start_ns", "mono_end_ns", "wall_start_ns", "wall_end_ns"):
            line[name] += number * gap
    run.records(0).write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = analysed(run)
    assert found.verdict.kind == verdict
    if verdict != "healthy":
        assert found.findings[0].value == pytest.approx(90, abs=1)
        assert "90 % of the time is spent between steps, which" in found.verdict.statement
        assert found.between_steps[0].ms == pytest.approx(found.breakdown.per_rank[0].step_ms * 9, rel=0.05)


@pytest.mark.parametrize("phase", ["validation", "checkpoint", "first batch"])
@pytest.mark.parametrize(("gap_ms", "kind"), [(400, "between_steps"), (20, "healthy")])
def test_what_comes_between_steps_is_told_by_the_step_that_follows(
    tmp_path: Path, phase: str, gap_ms: int, kind: str
) -> None:
    """Steps of 69 ms; before five of the last 29 or 30 lies a gap."""
    run = write_run(tmp_path, RunSpec(ranks_per_node=1))
    lines = [json.loads(line) for line in run.records(0).read_text().splitlines()]
    for number, line in enumerate(lines):
        for name in ("mono_start_ns", "mono_end_ns", "wall_start_ns", "wall_end_ns"):
            line[name] += (number // 5) * gap_ms * NS_PER_MS
        if phase == "first batch":
            line["epoch"] = number // 5
        elif number % 5 == 0 and line["phase"] == "steady":
            line["phase"] = phase
    run.records(0).write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = analysed(run)
    assert found.verdict.kind == kind
    (told,) = found.between_steps
    assert (told.phase, told.ranks) == (phase, [])
    steps = 30 if phase == "first batch" else 29
    assert told.ms == pytest.approx(5 * gap_ms / steps)
    if kind == "between_steps":
        assert phase.split(maxsplit=1)[0] in found.findings[0].cause
        assert found.findings[0].value == pytest.approx(100 * 5 * 400 / (5 * 400 + steps * 69))


def test_what_the_program_names_between_steps_is_told_apart_from_the_rest(tmp_path: Path) -> None:
    """Before five of the last 30 steps of 69 ms lies a gap of 400 ms: 300 of logging, 40 of a checkpoint."""
    run = write_run(tmp_path, RunSpec(ranks_per_node=1))
    lines = [json.loads(line) for line in run.records(0).read_text().splitlines()]
    for number, line in enumerate(lines):
        for name in ("mono_start_ns", "mono_end_ns", "wall_start_ns", "wall_end_ns"):
            line[name] += (number // 5) * 400 * NS_PER_MS
        if number % 5 == 0:
            line["before_ms"] = {"logging": 300.0, "checkpoint": 40.0}
    run.records(0).write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = analysed(run)
    told = {item.phase: item.ms for item in found.between_steps}
    assert list(told) == ["logging", "not recorded", "checkpoint"]
    assert told == pytest.approx({"logging": 5 * 300 / 30, "not recorded": 10.0, "checkpoint": 5 * 40 / 30})
    assert found.verdict.kind == "between_steps"
    assert "logging" in found.verdict.statement
    assert found.findings[0].actions[0].startswith("log less often")


def test_a_clock_that_goes_back_between_steps_gives_no_rate(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunSpec(ranks_per_node=1))
    lines = [json.loads(line) for line in run.records(0).read_text().splitlines()]
    for line in lines[-1:]:
        step = line["mono_end_ns"] - line["mono_start_ns"]
        line["mono_start_ns"], line["mono_end_ns"] = 0, step
    run.records(0).write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert analysed(run).throughput is None
