"""The score: what counts, against what it is measured, and when a target is met."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aorta.validation.scoring import clean_step_ms, score
from tests.validation.trials import clean, faulty, said


def targets(*trials: object) -> dict[str, bool]:
    found = score(trials).targets  # type: ignore[arg-type]
    return dict(zip(("kind", "ranks", "clean", "median", "worst"), (one.met for one in found), strict=True))


def test_a_drift_of_the_machine_meets_a_fault_and_its_clean_runs_alike() -> None:
    # 100 ms in minute 0 and 120 ms in minute 4: in minute 1 a clean step would have taken 105 ms.
    run = faulty(1, "straggler", [1], said("straggler", 210.0, ranks=[1]))
    around = [clean(0, 100.0), clean(4, 120.0), clean(9, 500.0)]
    assert clean_step_ms(run, around) == pytest.approx(105.0)
    [measured] = score([run, *around]).faulty
    assert measured.speedup == pytest.approx(2.0)
    assert measured.effect == pytest.approx(0.5)


def test_only_clean_runs_of_the_same_size_and_with_a_step_time_compare() -> None:
    run = faulty(1, "straggler", [1], said("straggler"))
    assert clean_step_ms(run, [clean(0, nodes=4, world_size=4), clean(2, None)]) is None
    assert clean_step_ms(run, [clean(0, 90.0), clean(2, None)]) == 90.0
    assert clean_step_ms(run, [clean(5, 80.0)]) == 80.0
    assert clean_step_ms(run, [clean(5, 0.0)]) == 0.0


def test_a_fault_that_hardly_shows_is_listed_and_not_scored() -> None:
    weak = faulty(1, "straggler", [1], said("healthy", 110.0))  # 1 - 100/110 is 9.1 %
    strong = faulty(2, "straggler", [1], said("straggler", 112.0, ranks=[1]))  # 10.7 %
    found = score([clean(0), weak, strong])
    assert [item.counts for item in found.faulty] == [False, True]
    assert found.targets[0].value == "1 of 1 (100.0%)"


def test_what_takes_no_time_and_what_gave_no_answer_counts() -> None:
    full = faulty(1, "memory_pressure", [], said("healthy", 100.0), timeless=True)
    dead = faulty(2, "straggler", [1], None, completed=False, problem="the run did not complete")
    found = score([clean(0), full, dead])
    assert [item.counts for item in found.faulty] == [True, True]
    assert found.targets[0].value == "0 of 2 (0.0%)"
    assert found.confusion() == {
        "memory_pressure": {"healthy": 1},
        "straggler": {"no answer": 1},
        "healthy": {"healthy": 1},
    }


def test_ranks_are_scored_where_single_ranks_have_the_fault() -> None:
    runs = [
        faulty(1, "data_loading", [1], said("data_loading", 200.0, ranks=[1])),
        faulty(2, "data_loading", [1], said("data_loading", 200.0, ranks=[0, 1])),
        faulty(3, "data_loading", [], said("data_loading", 200.0)),
    ]
    found = score([clean(0), *runs])
    assert [target.value for target in found.targets[:2]] == ["3 of 3 (100.0%)", "1 of 2 (50.0%)"]
    assert not found.targets[1].met


def test_all_ranks_may_be_named_or_not() -> None:
    def right(ranks: list[int]) -> bool:
        return (
            score([faulty(1, "data_loading", [], said("data_loading", 200.0, ranks=ranks))])
            .faulty[0]
            .ranks_right
        )

    assert [right([]), right([1, 0]), right([0])] == [True, True, False]


def test_a_false_alarm_is_a_bottleneck_in_a_clean_run_and_silence_is_none() -> None:
    assert targets(clean(0), clean(1))["clean"] is True
    assert targets(clean(0), clean(1, kind="communication"))["clean"] is False
    found = score([clean(0), clean(1, kind="insufficient_data")])
    assert found.alarms == []
    assert found.targets[2].value == "0 in 2, and 1 of them without a verdict"
    assert targets(clean(0, kind="insufficient_data"))["clean"] is False  # nothing was shown


def test_predictions_are_compared_where_the_cause_is_the_right_one() -> None:
    def run(at: int, kind: str, speedup: float | None) -> object:
        answer = said(
            kind,  # type: ignore[arg-type]
            200.0,
            ranks=[1],
            speedup=speedup,
            speedup_low=None if speedup is None else speedup - 0.1,
            speedup_high=None if speedup is None else speedup + 0.1,
        )
        return faulty(at, "straggler", [1], answer)

    # Measured is 2 in all: off by 0, 5 and 25 %; one has no prediction, one predicts another cause's removal.
    runs = [run(1, "straggler", 2.0), run(2, "straggler", 2.1), run(3, "straggler", 2.5)]
    others = [run(4, "straggler", None), run(5, "data_loading", 9.0)]
    found = score([clean(0), *runs, *others])  # type: ignore[list-item]
    assert [item.error for item in found.faulty] == [0.0, pytest.approx(0.05), 0.25, None, None]
    assert [item.within_interval for item in found.faulty] == [True, True, False, None, None]
    assert found.inside == (2, 3)
    assert (found.targets[3].value, found.targets[3].met) == ("5.0% of 3 predictions", True)
    assert (found.targets[4].value, found.targets[4].met) == ("25.0% of 3 predictions", False)


def test_nothing_measured_is_nothing_met() -> None:
    assert targets() == dict.fromkeys(("kind", "ranks", "clean", "median", "worst"), False)
    assert not score([]).met
    assert score([]).inside == (0, 0)


@given(right=st.integers(0, 40), wrong=st.integers(0, 3))
def test_the_share_of_right_kinds_decides_at_95_percent(right: int, wrong: int) -> None:
    runs = [faulty(at, "straggler", [], said("straggler", 200.0)) for at in range(1, right + 1)]
    runs += [faulty(100 + at, "straggler", [], said("healthy", 200.0)) for at in range(wrong)]
    met = targets(clean(0), *runs)["kind"]
    assert met == (right + wrong > 0 and 100 * right >= 95 * (right + wrong))
