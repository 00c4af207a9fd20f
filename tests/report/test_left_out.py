"""What a figure leaves out: a map of one rank, curves that never change, panels of nothing."""

from __future__ import annotations

import msgspec
import pytest

from aorta.artefacts.measured import BreakdownTable
from aorta.artefacts.page import Strip, UtilizationCurve, UtilizationOverTime
from aorta.report import panels, style
from aorta.report.bare import bare_page
from aorta.report.figure import run_figure
from aorta.report.parts import heat_map
from tests.support.analyses import analysis

SECONDS = [float(second) for second in range(10)]


def curve(*values: float, what: str = "cpu") -> UtilizationCurve:
    return UtilizationCurve(what=what, seconds=SECONDS[: len(values)], middle=list(values))  # type: ignore[arg-type]


def strip(name: str, *curves: UtilizationCurve) -> Strip:
    return Strip(name=name, nodes=1, curves=list(curves))


def texts(strips: list[Strip]) -> tuple[int, str]:
    """The number of panels, and all that is written in them."""
    with style.styled():
        figure = style.new_figure(6, 4)
        (sub,) = figure.subfigures(1, 1, squeeze=False).ravel()
        panels.utilization_panel(sub, UtilizationOverTime(strips=strips, window_s=None, absent=""))
        shown = [axes for axes in figure.get_axes() if axes.lines or axes.texts]
        words = [text.get_text() for axes in figure.get_axes() for text in axes.texts]
        return len(shown), " ".join(" ".join(words).split())


def test_one_rank_has_no_map_and_its_parts_take_the_width() -> None:
    whole = analysis()
    one = msgspec.structs.replace(
        whole, breakdown=BreakdownTable(steps=30, per_rank=whole.breakdown.per_rank[:1])
    )
    assert heat_map(one) is None
    assert heat_map(whole) is not None
    with style.styled():
        alone, several = run_figure(one, bare_page(one)), run_figure(whole, bare_page(whole))
    titles = [axes.get_title(loc="left") for axes in alone.get_axes()]
    assert not any("Time by rank" in title for title in titles)
    assert any("Time by rank" in axes.get_title(loc="left") for axes in several.get_axes())


def test_a_curve_that_never_changes_is_a_line_of_text() -> None:
    flat, moving = curve(*[100.0] * 10), curve(*range(0, 100, 10), what="job_cpu")
    panes, words = texts([strip("a", flat, moving), strip("b", flat, moving)])
    assert "100 % throughout" in words
    assert " on a" not in words
    assert panes == 2
    panes, words = texts([strip("a", flat), strip("b", flat)])
    assert (panes, "100 % throughout" in words) == (1, True)


def test_a_curve_that_is_flat_on_one_node_names_it() -> None:
    panes, words = texts([strip("a", curve(*[100.0] * 10)), strip("b", curve(*range(0, 100, 10)))])
    assert panes == 1
    assert "100 % throughout on a" in words


@pytest.mark.parametrize(
    "values",
    [[100.0] * 4, [96.0, *[100.0] * 9], [0.0] * 10, []],
    ids=["few", "a dip", "a measured zero", "none"],
)
def test_what_may_have_changed_is_drawn(values: list[float]) -> None:
    _, words = texts([strip("a", curve(*values))])
    assert "throughout" not in words
