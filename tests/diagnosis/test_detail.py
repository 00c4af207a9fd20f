"""Whole runs of which some steps are timed part by part and the others as a whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.synthetic import RunSpec, write_run
from tests.support.verdicts import analysed, change_json, finding, made, measured, reasons


def test_parts_are_of_detailed_steps_and_rates_of_all(tmp_path: Path) -> None:
    # 10 of each 40 steps are detailed, which costs 3 of their 4 + 60 + 6 + 5 + 3 ms.
    found = made(tmp_path, steps=90, detail=(10, 40), detail_ms=3.0)
    assert found.breakdown.steps == 20
    assert found.breakdown.per_rank[0].step_ms == pytest.approx(78)
    assert found.breakdown.per_rank[0].host_ms == pytest.approx(5 + 3)
    assert found.throughput is not None
    assert found.throughput.step_ms_median == pytest.approx(75)
    assert found.throughput.samples_per_s == pytest.approx(2 * 8 * 80 / (0.075 * 80 + 0.003 * 20))
    assert (found.data_quality.steady_steps, found.data_quality.detailed_steps) == (80, 20)
    assert found.replay is not None
    assert found.replay.steps == 20
    assert found.lateness is not None
    assert found.lateness.steps == 20


def test_the_cost_of_detail_is_kept_and_said_where_it_changes_the_step(tmp_path: Path) -> None:
    little = made(tmp_path / "a", steps=90, detail=(10, 40), detail_ms=3.0)
    assert little.detail_cost is not None
    assert little.detail_cost.ratio == pytest.approx(78 / 75)
    assert little.data_quality.notes == []
    much = made(tmp_path / "b", steps=90, detail=(10, 40), detail_ms=15.0)
    (note,) = much.data_quality.notes
    assert note.startswith("warning: detailed steps take 1.20 times as long as other steps")
    assert "(90.0 and 75.0 ms)" in note


@pytest.mark.parametrize("slow", [range(60, 64), range(11, 15)])
def test_what_is_slow_beside_the_detailed_steps_is_said(tmp_path: Path, slow: range) -> None:
    # Of 75 ms, but for 4 steps: of the others (60 to 63) or of the 20 that are detailed (11 to 14).
    run = write_run(tmp_path, RunSpec(steps=90, detail=(10, 40), ranks_per_node=1))
    lines = [json.loads(line) for line in run.records(0).read_text().splitlines()]
    for number in slow:
        lines[number]["mono_end_ns"] += 300_000_000
        if lines[number]["breakdown"] is not None:
            lines[number]["breakdown"]["host_ns"] += 300_000_000
    run.records(0).write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = analysed(run)
    told = [note for note in found.data_quality.notes if note.startswith("warning: steps timed as a whole")]
    assert len(told) == (slow.start == 60)
    assert found.detail_cost is not None
    assert found.detail_cost.ratio == pytest.approx(1)
    if told:
        assert "take 1.29 times as long on average" in told[0]


def test_where_every_step_is_detailed_nothing_is_said_of_it(tmp_path: Path) -> None:
    found = made(tmp_path, steps=90)
    assert (found.detail_cost, found.data_quality.detailed_steps) == (None, None)
    assert "over 80 steady steps of 2 ranks" in found.verdict.statement


def test_a_verdict_says_how_many_of_the_steps_it_is_of(tmp_path: Path) -> None:
    found = made(tmp_path, steps=90, detail=(10, 40))
    assert found.verdict.kind == "healthy"
    assert "over 20 of 80 steady steps (those timed part by part) of 2 ranks" in found.verdict.statement


@pytest.mark.parametrize("detail", [None, (10, 40)])
def test_a_slow_loader_is_found_in_detailed_steps_alone(
    tmp_path: Path, detail: tuple[int, int] | None
) -> None:
    found = made(tmp_path, steps=90, nodes=2, detail=detail, extra_data_ms={1: 80.0})
    assert (found.verdict.kind, found.verdict.ranks) == ("data_loading", [1])
    # As in all steps: bucket 0 hides 12 of each of the other three ranks' wait of 80, bucket 1 finds 4 again.
    assert found.blame[0].lost_ms_per_step == pytest.approx(3 * (80 - 12 + 4))
    gain = found.findings[0].estimated_speedup
    assert gain is not None
    assert gain.expected == pytest.approx(155 / 75, rel=0.01)


def test_of_the_first_step_of_a_block_only_what_lies_before_it_is_called_host(tmp_path: Path) -> None:
    every = made(tmp_path / "a", steps=50, nodes=2, extra_compute_ms={1: 60.0})
    blocks = made(tmp_path / "b", steps=90, nodes=2, extra_compute_ms={1: 60.0}, detail=(20, 60))
    assert (every.breakdown.steps, blocks.breakdown.steps) == (40, 40)
    for found in (every, blocks):
        assert (found.verdict.kind, found.verdict.ranks) == ("straggler", [1])
    (whole,) = every.blame
    compute, host = blocks.blame
    assert (whole.cause, compute.cause, host.cause) == ("compute", "compute", "host")
    assert compute.lost_ms_per_step + host.lost_ms_per_step == pytest.approx(whole.lost_ms_per_step)
    # Rank 1's optimizer takes 6 ms longer, so that it starts each step 6 ms after the other three ranks: in
    # 2 of 40 steps nobody knows what it did then.
    assert host.lost_ms_per_step == pytest.approx(3 * 6 * 2 / 40, rel=0.1)


def test_steps_that_are_all_timed_as_a_whole_are_no_verdict(tmp_path: Path) -> None:
    found = made(tmp_path, steps=60, detail=(0, 50), data_wait_ms=200.0)
    assert reasons(found) == ["few_detailed_steps"]
    assert "0 of 50 steady steps (those timed part by part) in common, 10 are needed" in (
        found.verdict.statement
    )
    assert "capture.detail_interval" in found.findings[0].actions[0]
    assert found.throughput is not None
    assert found.breakdown.per_rank == []
    assert "waits are not charged to ranks: no steady step was timed part by part" in (
        found.data_quality.notes
    )
    assert measured(found, "data_loading").value is None
    assert (found.lateness, found.pop) == (None, None)


@pytest.mark.parametrize(("count", "enough"), [(9, False), (10, True)])
def test_few_detailed_steps_are_no_verdict(tmp_path: Path, count: int, enough: bool) -> None:
    found = made(tmp_path, steps=60, detail=(count, 50), data_wait_ms=200.0)
    assert found.verdict.kind == ("data_loading" if enough else "insufficient_data")
    if not enough:
        assert reasons(found) == ["few_detailed_steps"]
        reason = measured(found, "data_loading").reason
        assert reason == "not measured: 9 of 50 steady steps (those timed part by part), 10 are needed"


def test_few_steady_steps_are_what_is_few_however_they_are_timed(tmp_path: Path) -> None:
    found = made(tmp_path, steps=19, detail=(5, 50))
    assert reasons(found) == ["few_steady_steps"]
    assert found.findings[0].actions[0] == "train for more steps: training.max_steps"


def test_a_program_that_does_not_read_the_configuration_is_told_no_keys(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunSpec(steps=19))
    plan = json.loads(run.manifest.read_bytes())["plan"]
    change_json(run.manifest, plan={**plan, "workload": None})
    assert analysed(run).findings[0].actions == [
        "record at least 1 more step, with a larger --steps or without --steps: aorta profile -- YOUR_COMMAND"
    ]


def test_samples_of_all_steady_steps_count(tmp_path: Path) -> None:
    every = made(tmp_path / "a", steps=90, device="cuda")
    blocks = made(tmp_path / "b", steps=90, device="cuda", detail=(10, 40))
    assert every.utilization is not None
    assert blocks.utilization is not None
    assert every.utilization.samples == blocks.utilization.samples
    assert blocks.utilization.effective_gpu_util_pct == pytest.approx(
        every.utilization.effective_gpu_util_pct
    )


def test_memory_is_of_the_steps_that_recorded_it(tmp_path: Path) -> None:
    every = made(tmp_path / "a", steps=90, device="cuda")
    blocks = made(tmp_path / "b", steps=90, device="cuda", detail=(10, 40))
    assert measured(blocks, "memory_pressure").value == measured(every, "memory_pressure").value
    assert finding(blocks, "memory_pressure") is None
