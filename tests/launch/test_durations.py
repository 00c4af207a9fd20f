"""Durations as Slurm writes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aorta.launch.durations import parse_elapsed, parse_limit, show


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5", 5 * 60),
        ("5:30", 5 * 60 + 30),
        ("01:02:03", 3600 + 2 * 60 + 3),
        ("1-2", 86400 + 2 * 3600),
        ("1-2:03", 86400 + 2 * 3600 + 3 * 60),
        ("1-02:03:04", 86400 + 2 * 3600 + 3 * 60 + 4),
        ("0", 0),
    ],
)
def test_limits(text: str, seconds: int) -> None:
    assert parse_limit(text) == seconds


@pytest.mark.parametrize("text", ["", "infinite", "1h", "-5", "1:2:3:4", "5 min", "1-", "n/a"])
def test_no_limits(text: str) -> None:
    assert parse_limit(text) is None


@pytest.mark.parametrize(
    ("text", "seconds"), [("0:07", 7), ("12:34", 12 * 60 + 34), ("1-00:00:01", 86401), ("00:00:00", 0)]
)
def test_elapsed(text: str, seconds: int) -> None:
    assert parse_elapsed(text) == seconds


@pytest.mark.parametrize("text", ["INVALID", "", "7"])
def test_an_elapsed_time_that_is_none_is_absent_not_zero(text: str) -> None:
    assert parse_elapsed(text) is None


@given(st.integers(0, 400 * 86400))
def test_what_is_shown_reads_back(seconds: int) -> None:
    assert parse_limit(show(seconds)) == seconds
    assert parse_elapsed(show(seconds)) == seconds
