from __future__ import annotations

from typing import Any

import msgspec
import pytest

from aorta.artefacts.analysis import Analysis, Kind, Problem, Speedup, Submitted, Verdict
from aorta.artefacts.replayed import Replay, WhatIf
from aorta.artefacts.traced import TraceTable
from aorta.artefacts.weight import Estimate, ProfilerWeight
from aorta.report.confidence import confidence
from aorta.report.content import main_finding
from tests.support.analyses import analysis, data_loading_finding


def level(whole: Analysis, *, shared: bool = False) -> tuple[str, list[str]]:
    found = confidence(whole, main_finding(whole), shared=shared)
    return found.level, found.doubts


def quality(**changes: Any) -> Analysis:
    return analysis(data_quality=msgspec.structs.replace(analysis().data_quality, **changes))


def test_without_a_doubt_it_is_high() -> None:
    assert level(analysis()) == ("high", [])
    assert confidence(analysis(), None, shared=False).basis == [
        "30 steady steps after warm-up",
        "records from 2 of 2 ranks",
    ]


@pytest.mark.parametrize(
    ("changes", "grade", "doubt"),
    [
        ({"steady_steps": 29}, "medium", "only 29 steady steps, 30 wanted"),
        ({"problems": [Problem(file="a", reason="b")]}, "medium", "1 problem with the data"),
        ({"ranks_expected": 4}, "low", "2 ranks left no records"),
        ({"state": "failed"}, "low", "the job did not complete (failed)"),
    ],
)
def test_each_doubt_lowers_it(changes: dict[str, Any], grade: str, doubt: str) -> None:
    assert level(quality(**changes)) == (grade, [doubt])


def gain_of(speedup: Speedup | None, **changes: Any) -> tuple[str, list[str]]:
    whole = analysis(findings=[data_loading_finding(estimated_speedup=speedup)], **changes)
    found = confidence(whole, main_finding(whole), shared=False)
    return found.gain, found.gain_doubts


@pytest.mark.parametrize(
    ("kind", "bound", "grade"),
    [("data_loading", True, "medium"), ("data_loading", False, "high"), ("communication", True, "high")],
)
def test_hosts_of_which_no_trace_tells_lower_the_gain(kind: Kind, bound: bool, grade: str) -> None:
    what = WhatIf(
        kind=kind, removed="", ranks=[1], step_ms=50.0, step_ms_interval=None, speedup=2.0,
        speedup_interval=None, bound=bound,
    )  # fmt: skip
    replay = Replay(
        steps=9, measured_step_ms=100.0, modelled_step_ms=100.0, error_pct=0.0, ideal_network_step_ms=None,
        predictions=[what],
    )  # fmt: skip
    assert gain_of(Speedup(low=1.9, high=2.1, basis="replay"), replay=replay)[0] == grade
    assert level(analysis(replay=replay))[0] == "high"


@pytest.mark.parametrize(
    ("low", "high", "grade"),
    [
        (1.72, 11.45, "low"),
        (1.2, 1.2 * 2.01, "low"),
        (1.2, 1.2 * 1.99, "medium"),
        (1.2, 1.2 * 1.26, "medium"),
        (1.2, 1.2 * 1.24, "high"),
        (0.99, 1.05, "low"),
    ],
)
def test_a_wide_range_of_the_gain_lowers_the_gain_alone(low: float, high: float, grade: str) -> None:
    speedup = Speedup(low=low, high=high, expected=low, basis="replay")
    assert gain_of(speedup)[0] == grade
    assert level(analysis(findings=[data_loading_finding(estimated_speedup=speedup)]))[0] == "high"


def test_bounds_are_never_a_gain_of_high_confidence_and_no_gain_has_none() -> None:
    assert gain_of(Speedup(low=1.2, high=1.2, basis="bounds"))[0] == "medium"
    assert gain_of(None) == ("none", [])


def test_sources_that_contradict_each_other_lower_the_cause() -> None:
    grade, doubts = level(quality(contradictions=["the step records alone give straggler on rank 1"]))
    assert grade == "medium"
    assert doubts == ["sources contradict each other: the step records alone give straggler on rank 1"]


def test_few_detailed_steps_lower_it_and_are_said() -> None:
    whole = analysis(
        data_quality=msgspec.structs.replace(analysis().data_quality, steady_steps=200, detailed_steps=20),
        breakdown=msgspec.structs.replace(analysis().breakdown, steps=20),
    )
    assert level(whole) == ("medium", ["only 20 detailed steps, 30 wanted"])
    said = "200 steady steps after warm-up, 20 of them detailed"
    assert confidence(whole, None, shared=False).basis == [said, "records from 2 of 2 ranks"]
    enough = msgspec.structs.replace(
        whole,
        data_quality=msgspec.structs.replace(whole.data_quality, detailed_steps=30),
        breakdown=msgspec.structs.replace(whole.breakdown, steps=30),
    )
    assert level(enough) == ("high", [])


def test_one_machine_under_all_nodes_lowers_it() -> None:
    assert level(analysis(), shared=True)[0] == "medium"


def test_a_cause_behind_which_nothing_was_seen_is_said() -> None:
    grade, doubts = level(analysis(findings=[data_loading_finding(sub_cause="not_determined")]))
    assert (grade, doubts) == ("medium", ["the reason for the slowness was not measured"])


def test_throughput_that_contradicts_the_steps_is_said() -> None:
    run = analysis().throughput
    assert run is not None
    whole = analysis(throughput=msgspec.structs.replace(run, cross_check_ratio=0.8))
    assert level(whole) == (
        "medium",
        ["throughput calculated from the clock and from the median step differs by -20 %"],
    )


def test_without_a_verdict_there_is_nothing_to_trust() -> None:
    verdict = Verdict(kind="insufficient_data", statement="", ranks=[])
    assert level(analysis(verdict=verdict, findings=[]))[0] == "none"


def host_bound(fmt: str, *, kind: Kind = "host_bound", stands: bool = False, **changes: Any) -> Analysis:
    """An analysis whose verdict is host-bound, of traces of this format."""
    found = msgspec.structs.replace(data_loading_finding(), kind=kind)
    verdict = Verdict(kind=kind, statement="The GPU waits for its host.", ranks=[])
    traces = TraceTable(format=fmt, per_rank=[], stands=stands)
    return analysis(findings=[found], verdict=verdict, traces=traces, **changes)


SUBMITTED = Submitted(command="train.py", commit=None, submission=None)
WEIGHT = ProfilerWeight(step_ms=10.0, step_ms_without=Estimate(value=9.0, low=8.0, high=10.0), basis="trace")


@pytest.mark.parametrize("fmt", ["nsys", "rocprofv3", "kineto"])
@pytest.mark.parametrize("stands", [False, True])
def test_a_host_bound_finding_with_the_profiler_in_it_is_of_low_confidence(fmt: str, stands: bool) -> None:
    doubt = f"host work includes the profiler's cost, and the {fmt} traces do not show how much"
    whole = host_bound(fmt, stands=stands, submitted=SUBMITTED if stands else None)
    assert level(whole) == ("low", [doubt])


@pytest.mark.parametrize(
    "whole",
    [
        host_bound("kineto", profiler_weight=WEIGHT),  # corrected
        host_bound("nsys", kind="data_loading"),  # another cause
        host_bound("nsys", submitted=SUBMITTED),  # the breakdown is of the run's records
    ],
)
def test_the_profilers_weight_is_no_doubt_where_it_does_not_decide(whole: Analysis) -> None:
    assert level(whole) == ("high", [])
