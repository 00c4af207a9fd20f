from __future__ import annotations

import pytest

from aorta.artefacts.analysis import Speedup
from aorta.report import text


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "—"),
        (0, "0"),
        (0.0, "0"),
        (0.0004, "0.0004"),
        (0.25, "0.250"),
        (1.5, "1.50"),
        (12.34, "12.3"),
        (99.96, "100.0"),
        (1234.5, "1,234"),
        (-12.34, "-12.3"),
    ],
)
def test_numbers_have_about_three_digits_and_absent_is_not_zero(value: float | None, shown: str) -> None:
    assert text.number(value) == shown


def test_quantities_carry_their_unit_and_absent_ones_do_not() -> None:
    assert text.quantity(12.34, "ms") == "12.3 ms"
    assert text.quantity(0.0, "%") == "0 %"
    assert text.quantity(None, "%") == "—"
    assert text.quantity(2.0, "ratio") == "2.00"


def test_share_of_nothing_and_of_an_absent_part_is_absent_and_of_zero_is_zero() -> None:
    assert text.share(1.0, 4.0) == "25.0 %"  # 100 · 1 / 4
    assert text.share(0.0, 4.0) == "0.0 %"
    assert text.share(None, 4.0) == "—"
    assert text.share(0.0, 0.0) == "—"


def test_gain_is_a_prediction_with_its_interval_or_a_bound_or_absent() -> None:
    assert text.gain(Speedup(low=1.1, high=1.5, expected=1.3)) == "1.10× to 1.50×"
    assert text.gain(Speedup(low=1.501, high=1.502, expected=1.502)) == "1.50×"
    assert text.gain(Speedup(low=1.1, high=1.5)) == "at most 1.50×"
    assert text.gain(None) == "—"


def test_a_speed_up_has_two_decimals_only_below_two() -> None:
    assert text.gain(Speedup(low=1.72, high=11.45, expected=1.72)) == "1.72× to 11×"
    assert text.gain(Speedup(low=1.1, high=2.44)) == "at most 2.4×"


@pytest.mark.parametrize(
    ("items", "shown"),
    [
        ([], ""),
        ([3], "3"),
        ([0, 1, 2, 3, 8], "0-3, 8"),
        ([5, 1, 3], "1, 3, 5"),
        (list(range(64)), "0-63"),
        (list(range(0, 20, 2)), "0, 2, 4, 6, 8, 10, 12, 14, and 2 more"),
        (["b", "a"], "b, a"),
    ],
)
def test_listing_shortens_runs_and_counts_the_rest(items: list[int] | list[str], shown: str) -> None:
    assert text.listing(items) == shown


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("rack-7.cluster.example.org", "rack-7"),
        ("10.0.0.17", "10.0.0.17"),
        ("a-very-long-host-name", "a-very-…st-name"),
        ("", ""),
    ],
)
def test_hosts_lose_their_domain_and_then_their_middle(name: str, shown: str) -> None:
    assert text.host(name, 15) == shown


def test_plain_text_cannot_move_the_cursor_or_turn_around() -> None:
    assert text.plain("a\x1b[31mb\r\nc\u202ed") == "a [31mb c d"


def test_evidence_names_each_fact_and_keeps_absent_apart_from_zero() -> None:
    facts = {
        "data_wait_ms": 40.0,
        "power_w": None,
        "drops": 0,
        "ok": True,
        "ranks": list(range(10)),
        "by": {"a_b": 1},
        "loader.num_workers": 4,
        "dataset.delay_ms": 0,
        "wait_ms_worst_rank": 9.0,
    }
    assert text.evidence(facts) == [
        "data wait: 40.0 ms",
        "power w: —",
        "drops: 0",
        "ok: yes",
        "ranks: 0, 1, 2, 3, 4, 5, 6, 7, and 2 more",
        "by: a b 1",
        "loader.num_workers: 4",
        "dataset.delay_ms: 0",
        "wait worst rank: 9.00 ms",
    ]


def test_files_of_all_ranks_are_told_by_their_folder_and_few_ones_by_name() -> None:
    ranks = [f"results/nsys/rank{rank}.sqlite" for rank in range(4)]
    assert text.evidence({"files": [*ranks, "gpu_monitor.csv"]}) == [
        "measured from: results/nsys/ (4 files), gpu_monitor.csv"
    ]
    assert text.evidence({"files": ranks[:2]}) == [f"measured from: {', '.join(ranks[:2])}"]


@pytest.mark.parametrize(
    ("named", "said"), [([], "all ranks"), ([1], "rank 1"), ([0, 1, 2, 5], "ranks 0-2, 5")]
)
def test_ranks_in_words(named: list[int], said: str) -> None:
    assert text.ranks(named) == said


def test_wrapped_lines_stay_within_100_columns_and_hang_under_their_first_word() -> None:
    lines = text.wrap("word " * 60, 2, "- ").splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[0].startswith("  - word")
    assert all(line.startswith("    word") for line in lines[1:])
    assert len(lines) > 1
