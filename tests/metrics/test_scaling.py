"""Scaling: reference, efficiency, label, families, and which run stands for a scenario."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from aorta.artefacts.analysis import Analysis, DataQuality, Kind, Verdict
from aorta.artefacts.measured import BreakdownTable, Throughput
from aorta.diagnosis.findings import likeliest
from aorta.metrics.repeats import is_valid
from aorta.metrics.scaling import newest_valid, scaling_curves

SETTINGS = {"device": "cpu", "model.num_layers": 2}


def run(
    scenario: str,
    ranks: int,
    rate: float | None,
    *,
    batch: int = 8,
    state: str | None = "completed",
    kind: Kind = "healthy",
    seen: int | None = None,
    job: str = "1",
    started: int | None = None,
    program: str | None = "aorta.train (ranking)",
    settings: Mapping[str, str | int | float | bool | None] | None = SETTINGS,
) -> Analysis:
    measured = None
    if rate is not None:
        measured = Throughput(
            samples_per_s=rate,
            global_batch=batch * ranks,
            per_rank_batch=batch,
            step_ms_median=1.0,
            step_ms_p95=1.0,
            cross_check_ratio=1.0,
        )
    return Analysis(
        scenario=scenario,
        job_id=job,
        nodes=None,
        world_size=ranks,
        verdict=Verdict(kind=kind, statement="", ranks=[]),
        findings=[],
        measured=[],
        breakdown=BreakdownTable(steps=0, per_rank=[]),
        blame=[],
        throughput=measured,
        utilization=None,
        data_quality=DataQuality(
            ranks_expected=ranks,
            ranks_seen=ranks if seen is None else seen,
            sources=[],
            problems=[],
            state=state,
        ),
        thresholds={},
        started_wall_ns=started,
        program=program,
        settings=dict(settings) if settings is not None else None,
    )


def test_efficiency_is_rate_per_rank_over_that_of_the_reference() -> None:
    (curve,) = scaling_curves(
        [run("4node", 4, 300.0), run("1node", 1, 100.0), run("2node", 2, 180.0)], likeliest=likeliest
    )
    assert curve.reference == "1node"
    assert [point.scenario for point in curve.points] == ["1node", "2node", "4node"]
    assert [point.speedup for point in curve.points] == [1.0, 180 / 100, 300 / 100]
    assert [point.efficiency for point in curve.points] == [1.0, (180 / 2) / 100, (300 / 4) / 100]
    assert curve.label == "weak"
    assert curve.reason is None


def test_the_reference_is_the_smallest_valid_run() -> None:
    """The 1-node run failed: the baseline is 2 nodes with E = 1.0, not 0.5."""
    (curve,) = scaling_curves(
        [run("1node", 1, 100.0, state="failed"), run("2node", 2, 180.0), run("4node", 4, 324.0)],
        likeliest=likeliest,
    )
    assert curve.reference == "2node"
    assert [(point.scenario, point.efficiency) for point in curve.points] == [
        ("2node", 1.0),
        ("4node", pytest.approx((324 / 4) / (180 / 2))),
    ]
    assert curve.reason == "without 1node, not valid"


def test_strong_weak_and_mixed_are_read_off_the_batches() -> None:
    def label(*runs: Analysis) -> str | None:
        return scaling_curves(list(runs), likeliest=likeliest)[0].label

    assert label(run("1node", 1, 1.0, batch=32), run("2node", 2, 1.0, batch=16)) == "strong"
    assert label(run("1node", 1, 1.0, batch=16), run("2node", 2, 1.0, batch=16)) == "weak"
    assert label(run("1node", 1, 1.0, batch=16), run("2node", 2, 1.0, batch=12)) == "mixed"
    assert label(run("1node", 1, 1.0)) is None


@pytest.mark.parametrize(("rate", "flag"), [(210.0, None), (210.2, "superlinear"), (90.0, None)])
def test_superlinear_is_flagged_never_capped(rate: float, flag: str | None) -> None:
    (curve,) = scaling_curves([run("1node", 1, 100.0), run("2node", 2, rate)], likeliest=likeliest)
    assert curve.points[1].flag == flag
    assert curve.points[1].efficiency == rate / 2 / 100


def test_families_never_mix() -> None:
    curves = scaling_curves(
        [run("2node", 2, 200.0), run("cpu_2node", 2, 20.0), run("1node", 1, 100.0)], likeliest=likeliest
    )
    assert [(curve.family, curve.reference) for curve in curves] == [("", "1node"), ("cpu", "cpu_2node")]
    assert curves[1].reason == (
        "No scaling curve: it needs at least two scenarios, and this report has one (cpu_2node)."
    )


@pytest.mark.parametrize(
    "broken",
    [
        run("2node", 2, None),
        run("2node", 2, 1.0, state="failed"),
        run("2node", 2, 1.0, state="running"),
        run("2node", 2, 1.0, state=None),
        run("2node", 2, 1.0, seen=1),
        run("2node", 2, 1.0, kind="insufficient_data"),
    ],
)
def test_what_is_not_valid(broken: Analysis) -> None:
    assert not is_valid(broken)
    (curve,) = scaling_curves([broken], likeliest=likeliest)
    assert (curve.reference, curve.points, curve.reason) == (None, [], "no valid run")


def test_the_newest_valid_run_stands_for_a_scenario_and_newer_failures_are_named() -> None:
    runs = [
        run("1node", 1, 90.0, job="10"),
        run("2node", 2, 90.0, job="11"),
        run("1node", 1, 100.0, job="20"),
        run("1node", 1, None, state="failed", job="30"),
    ]
    chosen, problems = newest_valid(runs)
    assert [(item.scenario, item.job_id) for item in chosen] == [("1node", "20"), ("2node", "11")]
    assert [problem.reason for problem in problems] == [
        "1node: the newer run 30 cannot be used (failed), so run 20 is used"
    ]


def test_without_a_valid_run_the_newest_is_shown() -> None:
    chosen, problems = newest_valid([run("1node", 1, None, job="1"), run("1node", 1, None, job="2")])
    assert [item.job_id for item in chosen] == ["2"]
    assert problems == []


def points(*runs: Analysis) -> tuple[list[str], str | None]:
    (curve,) = scaling_curves(list(runs), likeliest=likeliest)
    return [point.scenario for point in curve.points], curve.reason


def test_another_program_and_another_model_are_left_out_and_say_why() -> None:
    """2143 and 500 samples/s beside 100 would be speed-ups of 21.43 and 5 of programs that share nothing."""
    runs = [
        run("1node", 1, 100.0, started=30),
        run("2node", 2, 2143.0, started=20, program="bench.py --batch-size *", settings={"device": "cpu"}),
        run("4node", 4, 500.0, started=10, settings={"device": "cpu", "model.num_layers": 8}),
    ]
    assert points(*runs) == (
        ["1node"],
        "without 2node, which is not comparable: it ran bench.py --batch-size *, "
        "1node ran aorta.train (ranking); "
        "without 4node, which is not comparable: model.num_layers is 8 instead of 2",
    )


def test_the_same_program_with_the_same_settings_is_compared() -> None:
    (curve,) = scaling_curves(
        [run("1node", 1, 100.0), run("2node", 2, 2143.0), run("4node", 4, 500.0)], likeliest=likeliest
    )
    assert [point.speedup for point in curve.points] == [1.0, 2143 / 100, 500 / 100]
    assert curve.reason is None


def test_the_group_of_most_scenarios_is_compared_whatever_is_newest() -> None:
    runs = [
        run("1node", 1, 100.0, started=99, program="other.py"),
        run("2node", 2, 180.0, started=1),
        run("4node", 4, 324.0, started=2),
    ]
    (curve,) = scaling_curves(runs, likeliest=likeliest)
    assert curve.reference == "2node"
    assert [point.efficiency for point in curve.points] == [1.0, pytest.approx((324 / 4) / (180 / 2))]
    assert curve.reason is not None
    assert "without 1node" in curve.reason


@pytest.mark.parametrize(("started", "left"), [((1, 2), ["2node"]), ((2, 1), ["1node"])])
def test_on_a_tie_the_newest_run_counts(started: tuple[int, int], left: list[str]) -> None:
    runs = [run("1node", 1, 1.0, started=started[0]), run("2node", 2, 1.0, started=started[1], program="p")]
    assert points(*runs)[0] == left


@pytest.mark.parametrize(
    ("unknown", "word"), [({"program": None}, "program"), ({"settings": None}, "configuration")]
)
def test_what_is_not_known_is_compared_with_nothing_and_what_has_no_settings_is(
    unknown: dict[str, None], word: str
) -> None:
    runs = [run("1node", 1, 1.0, started=2, **unknown), run("2node", 2, 2.0, started=1, **unknown)]
    assert points(*runs) == (
        ["1node"],
        f"without 2node, which is not comparable: the {word} of 2node is not known",
    )
    assert points(run("1node", 1, 1.0, settings={}), run("2node", 2, 2.0, settings={}))[0] == [
        "1node",
        "2node",
    ]


def test_many_differences_are_counted_and_settings_not_in_use_are_called_that() -> None:
    fsdp = {"a": 1, "b": True, "c": None, "d": "x", "same": 0}
    reason = points(
        run("1node", 1, 1.0, started=1, settings={"same": 0}), run("2node", 2, 1.0, settings=fsdp)
    )[1]
    assert reason == (
        "without 2node, which is not comparable: a is 1 instead of not in use, b is True instead of "
        "not in use, c is None instead of not in use and 1 more"
    )


def test_long_commands_are_cut_in_the_reason() -> None:
    same = "bench.py " + "--flag " * 20
    runs = [run("1node", 1, 1.0, started=1, program=f"{same}a"), run("2node", 2, 1.0, program=f"{same}b")]
    reason = points(*runs)[1]
    assert reason is not None
    assert reason.startswith("without 2node, which is not comparable: it ran bench.py --flag")
    assert reason.endswith(" ..., 1node ran it with different arguments")
