"""The terminal shows at most 40 lines, the verdict first and last."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from aorta.artefacts.analysis import Analysis, Problem, Submitted, Verdict
from aorta.artefacts.layout import RunDir, Scenario
from aorta.artefacts.measured import BreakdownTable
from aorta.diagnosis.findings import likeliest
from aorta.metrics.scaling import scaling_curves
from aorta.report.aggregate import ScenarioReport, build
from aorta.report.bare import bare_page
from aorta.report.terminal import MAX_LINES, run_screen, scenarios_screen
from tests.support.analyses import analysis, data_loading_finding, rank_row


def screen(whole: Analysis, run: str | None = None) -> list[str]:
    return run_screen(whole, bare_page(whole), run, ["report: x.txt"]).splitlines()


def test_the_verdict_is_first_and_last_and_parts_are_bars() -> None:
    lines = screen(analysis())
    assert lines[0] == lines[-1] == "data_loading: Data loading on rank 1 costs 30 ms of each 90 ms step."
    assert lines[-2] == "report: x.txt"
    (bar,) = [line for line in lines if line.startswith("  compute")]
    assert bar.count("█") == round(40 * 40.0 / 90.0)
    assert "44.4 %  40.0 ms" in bar


def test_a_part_that_is_hardly_there_has_hardly_a_bar() -> None:
    rows = [rank_row(0, data_ms=0.5, comm_ms=0.0)]  # 1 % of the step: 0.4 of a character
    lines = screen(analysis(breakdown=BreakdownTable(steps=1, per_rank=rows), blame=[]))
    (bar,) = [line for line in lines if line.startswith("  data wait")]
    assert ("█" in bar, "▏" in bar) == (False, True)


@pytest.mark.parametrize("words", ["because " * 200, "x" * 3000], ids=["words", "one word"])
def test_whatever_the_data_says_it_fits(words: str) -> None:
    finding = data_loading_finding(sub_cause_text=words, actions=[words])
    verdict = Verdict(kind="data_loading", statement="Slow.", ranks=[])
    lines = screen(analysis(findings=[finding], verdict=verdict), "results/run_1")
    assert len(lines) <= MAX_LINES
    assert lines[0] == lines[-1] == "data_loading: Slow."


def test_many_scenarios_fit(tmp_path: Path) -> None:
    analyses = [
        msgspec.structs.replace(analysis(), scenario=f"{nodes}node", nodes=nodes) for nodes in range(1, 13)
    ]
    reports = [
        ScenarioReport(Scenario(str(item.scenario)), RunDir(tmp_path), item, bare_page(item))
        for item in analyses
    ]
    missing = [Problem(file=None, reason=f"{nodes}node: has no job") for nodes in range(20, 40)]
    aggregate = build(reports, scaling_curves(analyses, likeliest=likeliest), missing, 0)
    text = scenarios_screen(aggregate, reports, ["report: x.md"])
    lines = text.splitlines()
    assert len(lines) <= MAX_LINES
    assert lines[0].startswith("verdict: ")
    assert lines[-1] == f"verdict: {aggregate.verdict.statement}"
    assert "and 6 more scenarios" in text
    # The verdict is that of the last one, in the list as well.
    name = aggregate.verdict.statement.partition(":")[0]
    assert name == "12node"
    assert sum(line.strip().startswith("12node ") for line in lines) == 1


def test_words_of_the_data_cannot_write_to_the_terminal() -> None:
    verdict = Verdict(kind="healthy", statement="all \x1b[2J well", ranks=[])
    assert "\x1b" not in "\n".join(screen(analysis(verdict=verdict)))


@pytest.mark.parametrize("measured", [True, False])
def test_a_run_without_parts_has_no_heading_for_them(measured: bool, tmp_path: Path) -> None:
    rows = [rank_row(0)] if measured else []
    item = analysis(breakdown=BreakdownTable(steps=len(rows), per_rank=rows), blame=[], scenario="1node")
    report = ScenarioReport(Scenario("1node"), RunDir(tmp_path), item, bare_page(item))
    aggregate = build([report], scaling_curves([item], likeliest=likeliest), [], 0)
    assert ("mean over ranks" in scenarios_screen(aggregate, [report], [])) is measured


def test_the_command_of_a_comparison_has_a_line_of_its_own(tmp_path: Path) -> None:
    """A command that is cut in two lines cannot be copied."""
    said = Submitted(command="python my_train.py", commit=None, submission=None)
    item = analysis(submitted=said, findings=[data_loading_finding(actions=["look at the loader"])])
    run = str(tmp_path / ("x" * 90))
    assert f"aorta compare {run} NEW_RUN" in [line.strip() for line in screen(item, run)]
