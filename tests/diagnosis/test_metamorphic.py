"""The same run told in another way has the same verdict, and one of which less is known has no other."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aorta.artefacts.analysis import Analysis
from aorta.commands._traces import analyze_traces
from aorta.report.confidence import confidence
from tests.support.synthetic import RunSpec, write_run
from tests.support.traced import Job, Rank, write_job
from tests.support.verdicts import analysed, finding, made, measured

FAULTS: dict[str, tuple[str, str]] = {
    "loader": ("extra_data_ms", "data_loading"),
    "compute": ("extra_compute_ms", "straggler"),
    "host": ("extra_host_ms", "straggler"),
}
PLACES = {
    "compute_ms": 60.0,
    "hidden_comm_ms": 8.0,
    "exposed_comm_ms": 6.0,
    "data_wait_ms": 4.0,
    "host_ms": 5.0,
}
"""Of a step, as `RunSpec` has them."""


def said(found: Analysis) -> tuple[str, list[int]]:
    return found.verdict.kind, found.verdict.ranks


def spec_of(fault: str, rank: int) -> dict[str, Any]:
    return {"nodes": 2, "ranks_per_node": 2, FAULTS[fault][0]: {rank: 80.0}}


# --- step records ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [0, 2, 3])
@pytest.mark.parametrize("fault", FAULTS)
def test_the_rank_at_fault_is_named_whatever_its_number(tmp_path: Path, fault: str, rank: int) -> None:
    found = made(tmp_path, **spec_of(fault, rank))
    assert said(found) == (FAULTS[fault][1], [rank])
    assert found.findings[0].nodes == [f"node{1 + rank // 2}"]


@pytest.mark.parametrize("ahead_s", [-3, 3])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_node_whose_clock_is_off_has_the_same_verdict_and_costs(
    tmp_path: Path, fault: str, ahead_s: int
) -> None:
    right = made(tmp_path / "right", **spec_of(fault, 1))
    off = made(tmp_path / "off", **spec_of(fault, 1), clock_offset_ns={1: ahead_s * 10**9})
    assert (said(off), off.blame) == (said(right), right.blame)
    assert off.findings[0].lost_ms_per_step == pytest.approx(right.findings[0].lost_ms_per_step)


@pytest.mark.parametrize("fault", FAULTS)
def test_steps_twice_as_long_cost_twice_as_much(tmp_path: Path, fault: str) -> None:
    name, kind = FAULTS[fault]
    once = made(tmp_path / "once", **spec_of(fault, 1))
    longer = {part: 2 * ms for part, ms in PLACES.items()}
    twice = made(tmp_path / "twice", **{**spec_of(fault, 1), **longer, name: {1: 160.0}})
    assert said(twice) == said(once) == (kind, [1])
    before, after = once.findings[0], twice.findings[0]
    assert before.lost_ms_per_step is not None
    assert after.lost_ms_per_step == pytest.approx(2 * before.lost_ms_per_step)
    assert after.value == pytest.approx(before.value)


@pytest.mark.parametrize("rank", range(4))
@pytest.mark.parametrize("fault", FAULTS)
def test_without_the_records_of_a_rank_no_other_cause_is_named(tmp_path: Path, fault: str, rank: int) -> None:
    run = write_run(tmp_path, RunSpec(**spec_of(fault, 1)))
    run.records(rank).unlink()
    found = analysed(run)
    assert said(found) in [(FAULTS[fault][1], [1]), ("insufficient_data", [])]
    if found.verdict.kind != "insufficient_data":
        assert confidence(found, found.findings[0], shared=False).level == "low"


@pytest.mark.parametrize(("missing", "kind"), [([3], "host_bound"), ([2, 3], "insufficient_data")])
def test_hosts_are_all_slow_only_where_ranks_that_left_nothing_cannot_say_otherwise(
    tmp_path: Path, missing: list[int], kind: str
) -> None:
    """Of four ranks two might be fast, of which one would be the lower median."""
    run = write_run(tmp_path, RunSpec(nodes=2, host_ms=80.0))
    for rank in missing:
        run.records(rank).unlink()
    found = analysed(run)
    assert found.verdict.kind == kind
    answer = measured(found, "host_bound")
    assert answer.value == pytest.approx(100 * 80 / 150)
    assert (answer.reason is None) is (kind == "host_bound")


@pytest.mark.parametrize(("kept", "enough"), [(25, True), (18, False)])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_run_cut_short_names_the_same_or_nothing(
    tmp_path: Path, fault: str, kept: int, enough: bool
) -> None:
    """Ten of the steps are warm-up; ten steady ones are the least."""
    run = write_run(tmp_path, RunSpec(**spec_of(fault, 1)))
    for rank in range(4):
        lines = run.records(rank).read_text().splitlines(keepends=True)
        run.records(rank).write_text("".join(lines[:kept]))
    assert said(analysed(run)) == ((FAULTS[fault][1], [1]) if enough else ("insufficient_data", []))


# --- traces ------------------------------------------------------------------------------------------------

CAPTURES: dict[str, tuple[dict[int, Rank], int, str]] = {
    "loader": ({2: Rank(loader=900)}, 200, "data_loading"),
    "compute": ({2: Rank(compute=1700)}, 200, "straggler"),
    "link": ({}, 1500, "communication"),
    "nothing": ({}, 200, "healthy"),
}


def job_of(name: str, **changes: Any) -> tuple[Job, tuple[str, list[int]]]:
    odd, transfer, kind = CAPTURES[name]
    ranks = {**{rank: Rank() for rank in range(4)}, **odd}
    return Job(ranks, transfer=transfer, **changes), (kind, sorted(odd))


def of_job(folder: Path, job: Job) -> tuple[str, list[int]]:
    return said(analyze_traces([write_job(folder, job)]))


def renumbered(ranks: Mapping[int, Rank]) -> dict[int, Rank]:
    return {(rank + 1) % len(ranks): item for rank, item in ranks.items()}


def clocked(ranks: Mapping[int, Rank]) -> dict[int, Rank]:
    return {rank: replace(item, clock=3_000_000 * (rank == 2)) for rank, item in ranks.items()}


@pytest.mark.parametrize("change", [renumbered, clocked])
@pytest.mark.parametrize("name", CAPTURES)
def test_traces_of_other_numbers_and_clocks(
    tmp_path: Path, name: str, change: Callable[[Mapping[int, Rank]], dict[int, Rank]]
) -> None:
    job, (kind, ranks) = job_of(name)
    moved = [3 if change is renumbered else 2 for _ in ranks]
    assert of_job(tmp_path, replace(job, ranks=change(job.ranks))) == (kind, moved)


@pytest.mark.parametrize("name", CAPTURES)
def test_packed_traces_and_kernels_of_names_that_nobody_knows(tmp_path: Path, name: str) -> None:
    job, expected = job_of(name)
    folder = write_job(tmp_path, job)
    for path in sorted(folder.iterdir()):
        text = path.read_text().replace('"gemm', '"zq_17')
        assert text != path.read_text()
        (folder / f"{path.name}.gz").write_bytes(gzip.compress(text.encode()))
        path.unlink()
    assert said(analyze_traces([folder])) == expected


@pytest.mark.parametrize("name", CAPTURES)
def test_traces_without_one_rank_or_half_of_the_steps(tmp_path: Path, name: str) -> None:
    job, expected = job_of(name)
    assert of_job(tmp_path / "short", replace(job, steps=5)) == expected
    for rank in (0, 2, 3):
        found = analyze_traces([write_job(tmp_path / f"without{rank}", replace(job, absent=[rank]))])
        assert said(found) in [expected, ("insufficient_data", [])]
        assert confidence(found, found.findings[0], shared=False).level in ("low", "none")


def test_where_no_trace_says_how_many_ranks_there_are_the_confidence_does(tmp_path: Path) -> None:
    """The last rank left nothing, and what is left is numbered without a gap."""
    job, _ = job_of("compute", absent=[3])
    found = analyze_traces([write_job(tmp_path, replace(job, world_size=3))])
    assert not found.data_quality.ranks_assumed
    for path in tmp_path.iterdir():
        path.write_text(path.read_text().replace('"world_size": 3', '"size": 3'))
    found = analyze_traces([tmp_path])
    assert (found.data_quality.ranks_expected, found.data_quality.ranks_assumed) == (3, True)
    stated = confidence(found, found.findings[0], shared=False)
    assert any("not recorded" in doubt for doubt in stated.doubts)
    assert any("an unknown number" in fact for fact in stated.basis)


# --- two faults at once ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loader", "link", "first"), [(80.0, 50.0, "data_loading"), (80.0, 120.0, "communication")]
)
def test_a_slow_loader_and_a_slow_link_are_both_said_the_costlier_first(
    tmp_path: Path, loader: float, link: float, first: str
) -> None:
    found = made(tmp_path, nodes=2, ranks_per_node=1, extra_data_ms={1: loader}, exposed_comm_ms=link)
    assert found.verdict.kind == first
    causes = {item.kind: item for item in found.findings if item.symptom_of is None}
    assert sorted(causes) == ["communication", "data_loading"]
    assert causes["data_loading"].ranks == [1]
    gained = [item.estimated_speedup.expected for item in causes.values() if item.estimated_speedup]
    assert len(gained) == 2
    assert gained == sorted(gained, reverse=True)  # type: ignore[type-var]


def test_full_memory_beside_tiny_kernels_takes_no_time_and_comes_second(tmp_path: Path) -> None:
    """Kernels run for 20 % of the time: the rest is the host's, whatever memory holds."""
    found = made(
        tmp_path, device="cuda", gpu_util_pct=20.0, monitor_interval_s=0.2,
        gpu_memory_used_mb=95.0, gpu_memory_total_mb=100.0,
    )  # fmt: skip
    causes = [item.kind for item in found.findings if item.symptom_of is None]
    assert causes == ["host_bound", "memory_pressure"]


@pytest.mark.parametrize("jitter_ms", [0.0, 4.0])
@pytest.mark.parametrize("nodes", [1, 2])
def test_two_ranks_as_slow_as_each_other_do_not_hide_each_other(
    tmp_path: Path, nodes: int, jitter_ms: float
) -> None:
    """Without either alone the step takes as long as before; without both it is 60 ms shorter."""
    slow = {"extra_data_ms": {1: 60.0}, "extra_compute_ms": {0: 60.0}, "jitter_ms": jitter_ms}
    found = made(tmp_path, nodes=nodes, ranks_per_node=2, **slow)
    assert said(found) == ("data_loading", [1])
    cause = finding(found, "data_loading")
    assert cause is not None
    assert cause.estimated_speedup is not None
    assert cause.estimated_speedup.step_ms == pytest.approx(135 - 60, abs=jitter_ms + 0.5)
    assert "because of the longer compute and host work of rank 0" in cause.actions[0]
    assert found.replay is not None
    assert "and the longer compute and host work of rank 0" in found.replay.predictions[0].removed


def test_what_holds_the_step_up_next_is_said(tmp_path: Path) -> None:
    found = made(tmp_path, nodes=2, extra_data_ms={1: 80.0}, extra_compute_ms={2: 60.0})
    cause = found.findings[0]
    assert (cause.kind, cause.ranks) == ("data_loading", [1])
    assert cause.estimated_speedup is not None
    assert cause.estimated_speedup.expected == pytest.approx(155 / 135)
    assert "then look at the longer compute and host work of rank 2" in cause.actions[-1]
    alone = made(tmp_path / "alone", nodes=2, extra_data_ms={1: 80.0}).findings[0]
    assert not any("then look" in action or "fix both" in action for action in alone.actions)


def test_ranks_that_are_late_by_different_work_are_told_apart(tmp_path: Path) -> None:
    found = made(tmp_path, nodes=2, extra_compute_ms={1: 60.0}, extra_host_ms={2: 55.0}, jitter_ms=2.0)
    assert said(found) == ("straggler", [1, 2])
    cause = found.findings[0]
    words = "rank 1, which computes for longer, and for rank 2, which spends more time on host work"
    assert cause.cause == f"the other ranks wait for {words}"
    assert any("same work" in action for action in cause.actions)
    assert any("CPU side" in action for action in cause.actions)


def test_a_rank_whose_neighbours_load_as_fast_as_any_is_not_sent_to_its_node(tmp_path: Path) -> None:
    beside = made(tmp_path / "beside", nodes=2, ranks_per_node=2, extra_data_ms={1: 80.0})
    alone = made(tmp_path / "alone", nodes=2, ranks_per_node=1, extra_data_ms={1: 80.0})
    assert not any("CPUs of node1" in action for action in beside.findings[0].actions)
    assert any(
        action.startswith("compare ") and "of rank 1 with those of the other ranks on the same node" in action
        for action in beside.findings[0].actions
    )
    assert any("CPUs of node2" in action for action in alone.findings[0].actions)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    rank=st.integers(0, 3),
    extra=st.floats(40.0, 200.0),
    fault=st.sampled_from(sorted(FAULTS)),
    off_s=st.integers(-5, 5),
    seed=st.integers(0, 99),
)
def test_any_strength_rank_clock_and_noise(
    tmp_path_factory: pytest.TempPathFactory, rank: int, extra: float, fault: str, off_s: int, seed: int
) -> None:
    name, kind = FAULTS[fault]
    folder = tmp_path_factory.mktemp("run")
    found = made(
        folder, nodes=2, steps=24, jitter_ms=3.0, seed=seed, clock_offset_ns={1: off_s * 10**9},
        **{name: {rank: extra}},
    )  # fmt: skip
    shutil.rmtree(folder)
    if kind == "data_loading" and found.verdict.kind == "healthy":  # below its threshold of 30 %
        assert 4 + extra < 0.3 * (75 + extra)
        return
    assert said(found) == (kind, [rank])
