"""The longest traced step, from traces whose truth is arithmetic."""

from __future__ import annotations

from pathlib import Path

import pytest

from aorta.artefacts.page import Doing, Excerpt
from aorta.commands._analysis import Analyzed, analyze_run
from aorta.report.excerpt import MAX_LANES
from aorta.report.page import run_page, run_timelines
from tests.support.synthetic import RunSpec, write_run
from tests.support.traced import Job, Rank, write_job


def analyzed(folder: Path, job: Job, ranks: int = 2) -> Analyzed:
    run = write_run(folder, RunSpec(nodes=1, ranks_per_node=ranks, device="cuda:0"))
    write_job(run.torch_profiler, job)
    return analyze_run(run, query_accounting=False, shown=True)


def shown(folder: Path, job: Job, ranks: int = 2) -> Excerpt:
    found = analyzed(folder, job, ranks)
    page = run_page(found.analysis, found.data, run_timelines(*found))
    assert page.excerpt is not None
    return page.excerpt


def us(found: Excerpt, rank: int, *doing: Doing) -> float:
    (lane,) = (lane for lane in found.lanes if lane.rank == rank)
    return sum(item.end_ms - item.start_ms for item in lane.segments if item.doing in doing) * 1000


def test_lanes_are_of_what_ran_on_the_gpus(tmp_path: Path) -> None:
    # Rank 1 computes 600 µs longer; then 200 of transfer and 100 of the optimizer.
    found = shown(tmp_path, Job({0: Rank(), 1: Rank(compute=1600)}))
    assert found.traced
    assert (found.step_ms, found.median_ms, found.note) == (1.9, 1.9, "")
    parts: dict[Doing, tuple[int, int]] = {
        "compute": (1100, 1700),
        "wait": (600, 0),
        "transfer": (200, 200),
        "host": (0, 0),
    }
    for doing, (first, second) in parts.items():
        assert us(found, 0, doing) == pytest.approx(first), doing
        assert us(found, 1, doing) == pytest.approx(second), doing


def test_the_longest_step_is_shown_and_idle_time_is_the_hosts(tmp_path: Path) -> None:
    # In the first step the host of rank 1 takes 500 µs more. A step goes from its first kernel to the next's.
    found = shown(tmp_path, Job({0: Rank(loader=50), 1: Rank(host=50, startup=500)}))
    assert (found.global_step, found.median_ms) == (0, 1.35)
    assert found.step_ms == pytest.approx(1.85)
    assert [lane.segments[0].start_ms for lane in found.lanes] == [0, pytest.approx(0.5)]
    assert us(found, 0, "wait") == pytest.approx(500)
    assert (us(found, 0, "data_wait"), us(found, 0, "host")) == (pytest.approx(50), 0)
    assert (us(found, 1, "data_wait"), us(found, 1, "host")) == (0, pytest.approx(50))
    assert us(found, 1, "wait") == 0


def test_a_typical_step_is_beside_the_longest(tmp_path: Path) -> None:
    # As above: the first of the steps takes 1.85 ms, the others 1.35.
    found = analyzed(tmp_path, Job({0: Rank(loader=50), 1: Rank(host=50, startup=500)}))
    longest, typical = run_timelines(*found)[0]
    assert (longest.typical, longest.global_step, longest.step_ms) == (False, 0, pytest.approx(1.85))
    assert (typical.typical, typical.step_ms, typical.median_ms) == (True, 1.35, 1.35)
    assert typical.global_step == 1
    assert us(typical, 0, "wait") == pytest.approx(0)


def test_equal_steps_are_shown_once(tmp_path: Path) -> None:
    (only,) = run_timelines(*analyzed(tmp_path, Job({0: Rank(), 1: Rank()})))[0]
    assert (only.typical, only.step_ms) == (False, only.median_ms)


def test_ranks_on_clocks_of_their_own_are_put_on_one(tmp_path: Path) -> None:
    found = shown(tmp_path, Job({0: Rank(), 1: Rank(compute=1600, clock=77_000)}))
    assert us(found, 0, "wait") == pytest.approx(600)
    assert {lane.segments[0].start_ms for lane in found.lanes} == {0}


def test_of_many_ranks_some_are_shown_the_verdicts_among_them(tmp_path: Path) -> None:
    ranks = MAX_LANES + 8
    found = shown(
        tmp_path, Job({rank: Rank(compute=1600 if rank == 13 else 1000) for rank in range(ranks)}), ranks
    )
    assert len(found.lanes) == MAX_LANES
    assert 13 in [lane.rank for lane in found.lanes]
    assert found.note.startswith(f"{MAX_LANES} of {ranks} ranks")


def test_traces_that_cannot_stand_for_the_run_leave_it_to_the_records(tmp_path: Path) -> None:
    found = shown(tmp_path, Job({0: Rank(), 1: Rank()}, absent=[1]))
    assert not found.traced
