"""One job in three formats: what a format lacks or damages may cost certainty, never the right answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from aorta.artefacts.analysis import Analysis
from aorta.commands._traces import analyze_traces
from aorta.diagnosis.finding import NOT_DETERMINED
from tests.support.formats import Event, as_kineto, as_nsys, as_rocprof
from tests.support.traced import Job, Rank

Writer = Callable[..., Path]
WRITERS: tuple[Writer, ...] = (as_kineto, as_nsys, as_rocprof)
FORMATS = pytest.mark.parametrize("write", WRITERS)
AHEAD = {0: 900, 1: 2500, 2: 0, 3: 1700}
"""How far each host is ahead, µs."""


def job(slow: int | None = 2) -> Job:
    """Four ranks of 8 steps; rank `slow` computes 3 ms instead of 2."""
    return Job(
        {r: Rank(compute=3000 if r == slow else 2000, ahead=AHEAD[r], pieces=4) for r in AHEAD}, steps=8
    )


def said(found: Analysis) -> tuple[str, list[int]]:
    return found.verdict.kind, found.verdict.ranks


def problems(found: Analysis) -> str:
    return " | ".join(problem.reason for problem in found.data_quality.problems)


@FORMATS
def test_the_slow_rank_is_named_and_balanced_ranks_are_healthy(tmp_path: Path, write: Writer) -> None:
    assert said(analyze_traces([write(tmp_path / "slow", job())])) == ("straggler", [2])
    assert said(analyze_traces([write(tmp_path / "even", job(None))])) == ("healthy", [])


def no_calls(_: int, event: Event) -> Event | None:
    """No call of the host was recorded."""
    return None if event["cat"] == "cuda_runtime" else event


def no_calls_of_rank_0(rank: int, event: Event) -> Event | None:
    return no_calls(rank, event) if rank == 0 else event


def unjoined(_: int, event: Event) -> Event:
    """Calls are recorded, and their correlations were lost."""
    if event["cat"] != "cuda_runtime":
        return event
    return event | {"args": event.get("args", {}) | {"correlation": 0}}


@FORMATS
@pytest.mark.parametrize("change", [no_calls, no_calls_of_rank_0, unjoined])
def test_steps_come_from_the_gpu_where_no_launch_leads_to_it(
    tmp_path: Path, write: Writer, change: Callable[[int, Event], Event | None]
) -> None:
    """Hosts are ahead by different times: their marks would cut the ranks' steps at different places."""
    assert said(analyze_traces([write(tmp_path / "slow", job(), change)])) == ("straggler", [2])
    assert analyze_traces([write(tmp_path / "even", job(None), change)]).verdict.kind == "healthy"


def emptied(start: int | None, end: int) -> Callable[[int, Event], Event | None]:
    """Every fifth kernel of rank 1 has these times, µs; None: its own."""
    seen = [0]

    def change(rank: int, event: Event) -> Event | None:
        if rank != 1 or event["cat"] != "kernel" or event["name"] != "gemm":
            return event
        seen[0] += 1
        begin = event["ts"] if start is None else start
        return event | {"ts": begin, "dur": end - begin} if seen[0] % 5 == 3 else event

    return change


@pytest.mark.parametrize("write", [as_nsys, as_rocprof])
@pytest.mark.parametrize("times", [(0, 0), (None, 0)])
def test_many_events_without_times_are_counted_and_cost_no_capture(
    tmp_path: Path, write: Writer, times: tuple[int | None, int]
) -> None:
    found = analyze_traces([write(tmp_path, job(), emptied(*times))])
    assert said(found) == ("straggler", [2])
    assert "7 impossible events left out" in problems(found) or "7 events with a missing start" in problems(
        found
    )
    assert len(found.data_quality.problems) == len({item.reason for item in found.data_quality.problems})


def test_gpu_events_that_end_early_are_named(tmp_path: Path) -> None:
    first: dict[int, float] = {}

    def cut(rank: int, event: Event) -> Event | None:
        begin = first.setdefault(rank, event["ts"])
        return None if event["cat"] == "kernel" and event["ts"] > begin + 13_000 else event

    assert "its GPU events end early" in problems(analyze_traces([as_nsys(tmp_path / "cut", job(), cut)]))
    assert "end early" not in problems(analyze_traces([as_nsys(tmp_path / "whole", job())]))


def test_idle_gpus_without_calls_of_the_host_have_no_cause(tmp_path: Path) -> None:
    idle = Job({r: Rank(compute=1000, host=3000) for r in range(2)}, steps=8)
    bare = analyze_traces([as_rocprof(tmp_path / "bare", idle, calls=False)])
    assert (bare.verdict.kind, bare.findings[0].sub_cause) == ("host_bound", NOT_DETERMINED)
    called = analyze_traces([as_rocprof(tmp_path / "called", idle)])
    assert (called.verdict.kind, called.findings[0].sub_cause) == ("host_bound", "host_work")


@pytest.mark.parametrize("name", ["", "kernel_fused_gemm_allreduce", "kernel_consumer_gemm_persistent"])
def test_gpu_time_of_an_unknown_kind_is_neither_compute_nor_communication(tmp_path: Path, name: str) -> None:
    def renamed(_: int, event: Event) -> Event:
        return event | {"name": name} if event["name"] == "gemm" else event

    found = analyze_traces([as_kineto(tmp_path / "renamed", job(None), renamed)])
    assert found.verdict.kind == "insufficient_data"
    unknown = [item.what for item in found.missing if "of an unknown kind" in item.what]
    assert [what.partition(" could not")[0] for what in unknown] == [
        "communication",
        "waiting for a slower rank",
        "GPU under-utilisation",
    ]
    # The GPU is busy all the same: the host is not to blame, and that is measured.
    assert not any(what.startswith("the host could not be measured") for what in unknown)


def test_exchanges_of_other_libraries_are_communication(tmp_path: Path) -> None:
    def renamed(_: int, event: Event) -> Event:
        return event | {"name": "kernel_dispatch_token_intra_node"} if event["name"] == "gemm" else event

    found = analyze_traces([as_kineto(tmp_path / "renamed", job(None), renamed)])
    assert found.verdict.kind == "communication"


def test_exposed_time_of_which_nobody_knows_the_waits_has_no_known_reason(tmp_path: Path) -> None:
    def lost(rank: int, event: Event) -> Event | None:
        return None if rank == 2 and event["cat"] == "kernel" and "nccl" in event["name"] else event

    found = analyze_traces([as_kineto(tmp_path, job(), lost)])
    assert (found.verdict.kind, found.findings[0].sub_cause) == ("communication", NOT_DETERMINED)
