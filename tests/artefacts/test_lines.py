"""Lines from others: cells or None, digits or None, never an exception."""

from __future__ import annotations

import pytest

from aorta.artefacts.lines import cells_of, whole_number


def test_cells_of_one_line() -> None:
    assert cells_of('a,"b,c", d') == ["a", "b,c", " d"]
    assert cells_of("a, b", skip_initial_space=True) == ["a", "b"]
    assert cells_of("") == []
    assert cells_of("a\0,\0b") == ["a", "b"]


def test_a_cell_above_the_limit_is_no_line() -> None:
    assert cells_of("a," + "x" * 200_000) is None


@pytest.mark.parametrize("text", ["²", "٣", "-1", "1.0", "", " 1", str(2**63), "1" + "0" * 23, "9" * 5000])
def test_what_is_no_whole_number(text: str) -> None:
    assert whole_number(text) is None


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("007", 7), (str(2**63 - 1), 2**63 - 1)])
def test_whole_numbers(text: str, number: int) -> None:
    assert whole_number(text) == number
