from __future__ import annotations

import pytest
from msgspec.structs import replace

from aorta.artefacts.analysis import RuleMeasurement
from aorta.report.content import measured_table
from aorta.report.markdown import md_table
from aorta.report.tables import Table, text_table
from tests.support.analyses import analysis


def test_text_columns_are_aligned() -> None:
    table = Table(("name", ">ms"), (("a", "1"), ("long", "10.5")))
    assert text_table(table, indent=1) == " name    ms\n ----  ----\n a        1\n long  10.5"


def test_markdown_cells_are_escaped_and_stay_cells() -> None:
    table = Table(("name", ">ms"), (("a|b\nc", "<1"),))
    assert md_table(table) == "| name | ms |\n| --- | ---: |\n| a\\|b c | &lt;1 |"


def test_a_table_without_rows_keeps_its_header() -> None:
    assert md_table(Table(("name",), ())) == "| name |\n| --- |"


def test_rows_of_another_length_are_refused() -> None:
    with pytest.raises(ValueError, match="1 cells under 2 names"):
        Table(("a", "b"), (("x",),))


@pytest.mark.parametrize(
    ("value", "fired", "reason", "answer"),
    [
        (25.0, True, None, "FOUND"),
        (25.0, False, "ranks are late by turns", "ranks are late by turns"),
        (5.0, False, None, "ok"),
        (0.0, False, None, "ok"),
        (None, False, "not measured: no GPU", "not measured: no GPU"),
    ],
)
def test_a_rule_says_why_it_is_no_finding(
    value: float | None, fired: bool, reason: str | None, answer: str
) -> None:
    rule = RuleMeasurement(
        kind="straggler", value=value, threshold=10.0, unit="% of step", fired=fired, reason=reason
    )
    (row,) = measured_table(analysis(measured=[rule], findings=[])).rows
    assert row[-1] == answer


def test_a_rule_whose_finding_is_a_symptom_says_of_what() -> None:
    symptom = next(item for item in analysis().findings if item.symptom_of is None)
    found = replace(symptom, kind="communication", symptom_of="data_loading")
    rule = RuleMeasurement(kind="communication", value=30.0, threshold=20.0, unit="% of step", fired=True)
    (row,) = measured_table(analysis(measured=[rule], findings=[found])).rows
    assert row[-1] == "symptom of data loading"
    assert row[1] == "30.0 % of the mean step"
