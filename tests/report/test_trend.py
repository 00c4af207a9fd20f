from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from matplotlib.figure import Figure
from matplotlib.text import Text

from aorta.artefacts.measured import Interval
from aorta.commands.analyze import command as analyze
from aorta.commands.runs import command as list_runs
from aorta.report import style
from aorta.report.trend import Point, trend_figure
from tests.support.synthetic import RunSpec, write_run

DAY_NS = 86_400 * 10**9


def words(figure: Figure) -> str:
    figure.draw_without_rendering()
    return " ".join(item.get_text() for item in figure.findobj(Text))


def test_runs_are_drawn_by_scenario_with_their_intervals() -> None:
    known = Interval(low=80.0, high=100.0)
    points = [Point(20_000 * DAY_NS, 90.0, known), Point(20_001 * DAY_NS, 95.0, None)]
    with style.styled():
        figure = trend_figure({"2node": points, "1node": points[:1]})
        said = words(figure)
    (axes,) = figure.get_axes()
    assert [list(line.get_ydata()) for line in axes.get_lines()] == [[90.0, 95.0], [90.0]]
    assert [list(line.get_xdata()) for line in axes.get_lines()] == [[20_000.0, 20_001.0], [20_000.0]]
    assert len(axes.collections) == 2  # a bar for each run with an interval
    assert "2node" in said


def test_a_single_run_is_within_the_picture() -> None:
    with style.styled():
        figure = trend_figure({"2node": [Point(20_000 * DAY_NS, 90.0, None)]})
    (axes,) = figure.get_axes()
    assert axes.get_ylim() == (0, pytest.approx(99.0))
    assert axes.get_xlim() == (pytest.approx(20_000 - 1 / 24), pytest.approx(20_000 + 1 / 24))


def test_without_runs_it_says_so() -> None:
    with style.styled():
        assert "not measured" in words(trend_figure({}))


@pytest.mark.usefixtures("no_charts")
def test_the_command_draws_what_was_analysed(tmp_path: Path) -> None:
    for job in ("101", "102"):
        run = write_run(tmp_path / "results", RunSpec(nodes=1, job_id=job, ranks_per_node=1, steps=24))
        if job == "101":
            CliRunner().invoke(analyze, [str(run.root), "--no-accounting"])
    words_ = ["--results", str(tmp_path / "results"), "--plot", str(tmp_path / "trend.png")]
    outcome = CliRunner().invoke(list_runs, words_)
    assert outcome.exit_code == 0, outcome.output
    assert "(1 runs with a step time)" in outcome.stderr
    assert {path.name for path in tmp_path.glob("trend.*")} == {"trend.png", "trend.svg"}
