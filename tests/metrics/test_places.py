"""Sampled stacks to the function that takes a rank longer than the others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aorta.artefacts.instrument_record import InstrumentRecord, SampledFunction
from aorta.metrics.places import no_loader, unseen_passes, where


def place(function: str, samples: int, part: str = "other", *, package: bool = False) -> SampledFunction:
    return SampledFunction(
        part=part, function=function, file="/t.py", line=7, samples=samples, package=package
    )


def record(rank: int, total: int, *places: SampledFunction) -> InstrumentRecord:
    return InstrumentRecord(
        rank=rank,
        pid=1,
        python="python",
        python_version="3.11",
        torch_version="2.6",
        samples={"other": total // 2, "forward": total - total // 2},
        places=list(places),
    )


def test_what_takes_longer_than_on_the_others_is_found_not_what_takes_longest() -> None:
    records = {
        0: record(0, 100, place("log", 40)),
        1: record(1, 100, place("log", 41), place("preprocess", 30)),
        2: record(2, 100, place("log", 40), place("preprocess", 10)),
    }
    found = where(records, [1], ["other"])
    assert found is not None
    # 30 of 100 samples, and 0 and 10 of 100 on the others.
    assert (found.function, found.share, found.longer) == ("preprocess", 0.30, 0.30 - 0.05)


def test_shares_are_those_of_the_time_that_samples_stand_for() -> None:
    """Later samples stand for more time than the first ones; without that time, each counts the same."""
    late = replace(place("late", 20), time_ms=5000.0)
    early = replace(place("early", 80), time_ms=4800.0)
    timed = replace(record(0, 100, early, late), sampled_ms={"other": 9800.0, "forward": 200.0})
    found = where({0: timed}, [], ["other"])
    assert found is not None
    assert (found.function, found.share) == ("late", 0.5)
    counted = where({0: record(0, 100, place("early", 80), place("late", 20))}, [], ["other"])
    assert counted is not None
    assert (counted.function, counted.share) == ("early", 0.8)
    # Of two ranks: 5000 of 10000 ms, and 1000 of 10000.
    less = replace(place("late", 4), time_ms=1000.0)
    other = replace(record(1, 100, early, less), sampled_ms={"other": 10000.0})
    both = where({0: timed, 1: other}, [0], ["other"])
    assert both is not None
    assert (both.function, both.longer) == ("late", 0.5 - 0.1)


def test_no_time_sampled_gives_no_place_and_no_error() -> None:
    assert where({0: replace(record(0, 0), sampled_ms={})}, [], ["other"]) is None


def test_a_finding_of_all_ranks_names_what_takes_longest() -> None:
    records = {0: record(0, 100, place("log", 40)), 1: record(1, 100, place("log", 50), place("other", 30))}
    found = where(records, [], ["other"])
    assert found is not None
    assert (found.function, found.share, found.longer) == ("log", 0.5, None)


def test_other_parts_and_few_samples_tell_nothing() -> None:
    records = {0: record(0, 100, place("forward", 50, "forward"), place("rare", 3))}
    assert where(records, [0], ["other"]) is None
    assert where({}, [0], ["other"]) is None


def test_a_scripts_one_call_of_a_framework_is_replaced_by_what_that_calls() -> None:
    calls = record(0, 100, place("<module>", 50), place("Trainer.save", 40, package=True))
    found = where({0: calls}, [], ["other"])
    assert found is not None
    assert found.function == "Trainer.save"
    itself = record(0, 100, place("<module>", 50), place("Trainer.save", 10, package=True))
    assert getattr(where({0: itself}, [], ["other"]), "function", None) == "<module>"


@pytest.mark.parametrize(
    ("seen", "ranks", "what"),
    [
        (["backward", "optimizer"], [0, 1], "no forward pass"),
        (["optimizer"], [0, 1], "no forward and backward pass"),
        (["backward", "forward", "optimizer"], [], ""),
        (["graph", "optimizer"], [], ""),  # a graph holds the whole step
        ([], [], ""),  # killed before it said what it saw
    ],
)
def test_a_pass_that_no_hook_saw_is_not_told_apart_from_host_work(
    seen: list[str], ranks: list[int], what: str
) -> None:
    records = {rank: replace(record(rank, 100), seen=seen) for rank in (0, 1)}
    found = unseen_passes(records)
    assert (found[0] if found else []) == ranks
    assert found is None or what in found[1]


def test_a_rank_that_records_itself_has_no_unseen_pass() -> None:
    itself = replace(record(0, 100), seen=["optimizer"], note="the program uses its own StepRecorder")
    assert unseen_passes({0: itself}) is None


@pytest.mark.parametrize(
    ("seen", "absent"), [(["optimizer"], True), (["loader", "optimizer"], False), ([], False)]
)
def test_a_loader_is_absent_where_the_hooks_say_what_they_saw(seen: list[str], absent: bool) -> None:
    assert (no_loader({0: replace(record(0, 100), seen=seen)}) is not None) is absent
