from __future__ import annotations

import csv
import re
from itertools import accumulate, pairwise
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from aorta.artefacts.analysis import Analysis, DataQuality, Problem, Verdict
from aorta.artefacts.layout import RunDir
from aorta.artefacts.measured import Blame, BreakdownTable
from aorta.artefacts.page import RunPage, StepTimeSeries
from aorta.diagnosis.analyse_run import analyse
from aorta.readers.run import read_run
from aorta.report import style
from aorta.report.bare import bare_page
from aorta.report.epochs import fill_epochs
from aorta.report.figure import run_figure
from aorta.report.page import run_page
from aorta.report.run import run_text, write_run_report
from aorta.report.series import thinned
from tests.support.analyses import analysis, rank_row
from tests.support.golden import assert_golden
from tests.support.synthetic import RunSpec, write_run

GOLDEN = Path(__file__).parent / "golden"


def empty_analysis() -> Analysis:
    return Analysis(
        scenario="1node",
        job_id=None,
        nodes=None,
        world_size=None,
        verdict=Verdict(kind="insufficient_data", statement="No step record: nothing can be said.", ranks=[]),
        findings=[],
        measured=[],
        breakdown=BreakdownTable(steps=0, per_rank=[]),
        blame=[],
        throughput=None,
        utilization=None,
        data_quality=DataQuality(
            ranks_expected=None,
            ranks_seen=0,
            sources=[],
            problems=[
                Problem(file="manifest.json", reason="missing"),
                Problem(file=None, reason="no records"),
            ],
            notes=["the job may still be waiting"],
        ),
        thresholds={},
    )


def drawn(whole: Analysis, page: RunPage | None = None) -> tuple[Figure, list[str]]:
    with style.styled():
        figure = run_figure(whole, page or bare_page(whole))
        figure.draw_without_rendering()
    return figure, [item.get_text() for item in figure.findobj(Text) if item.get_visible()]


def page_of(tmp_path: Path, spec: RunSpec, whole: Analysis | None = None) -> RunPage:
    return run_page(whole or analysis(), read_run(write_run(tmp_path, spec), query_accounting=False))


def curves(page: RunPage, node: int = 0) -> dict[str, set[float]]:
    return {curve.what: set(curve.middle) for curve in page.utilization.strips[node].curves}


def test_text_report() -> None:
    assert_golden(GOLDEN / "profiling_report.txt", run_text(analysis()))


def test_text_report_of_a_run_without_data() -> None:
    assert_golden(GOLDEN / "profiling_report_empty.txt", run_text(empty_analysis()))


def test_text_reports_have_at_most_100_columns() -> None:
    many = [rank_row(rank, host=f"rack-{rank}.cluster.example.org") for rank in range(64)]
    reason = "not measured: " + "because " * 30
    whole = analysis(breakdown=BreakdownTable(steps=30, per_rank=many, timing="host"))
    rules = [msgspec.structs.replace(rule, reason=reason) for rule in whole.measured]
    whole = msgspec.structs.replace(whole, measured=rules)
    for text in (run_text(whole), run_text(empty_analysis())):
        assert max(len(line) for line in text.splitlines()) <= 100
    assert "32 of 64 ranks" in run_text(whole)


def test_a_measured_zero_is_0_and_an_absent_value_is_a_dash() -> None:
    text = run_text(analysis())
    assert "memory pressure             0 %  above 90.0 %  ok" in text
    assert "GPU under-utilisation         —  below 70.0 %  not measured: no GPU in the job" in text


def test_words_of_the_data_cannot_write_to_the_terminal() -> None:
    whole = analysis(verdict=Verdict(kind="healthy", statement="all \x1b[2J well", ranks=[]))
    assert "\x1b" not in run_text(whole)


def test_files_are_written_and_a_second_time_the_same(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunSpec(nodes=2, ranks_per_node=1, jitter_ms=3.0))
    data = read_run(run, query_accounting=False)
    outputs = (run.report, run.plot_png, run.plot_svg)
    write_run_report(run, analysis(), run_page(analysis(), data), data)
    first = [path.read_bytes() for path in outputs]
    write_run_report(run, analysis(), run_page(analysis(), data), data)
    assert [path.read_bytes() for path in outputs] == first
    assert first[1].startswith(b"\x89PNG")
    assert ElementTree.fromstring(first[2]).tag.endswith("svg")


def test_hostile_names_reach_the_figure_as_they_are(tmp_path: Path) -> None:
    row = rank_row(0, host="$\\frac{")
    whole = analysis(
        scenario="$x_1$", breakdown=BreakdownTable(steps=1, per_rank=[row, rank_row(1, host="b")])
    )
    run = RunDir(tmp_path)
    figure, texts = drawn(whole)
    with style.styled():
        style.save(figure, run.plot_png, run.plot_svg)
    assert "rank 0 · $\\frac{" in texts
    assert run.plot_png.stat().st_size > 0


def test_panels_without_data_say_so_and_have_no_axis() -> None:
    figure, texts = drawn(empty_analysis())
    words = " ".join(" ".join(texts).split())
    assert words.count("not measured: no rank has a steady step with a breakdown") == 1
    assert words.count("not measured: no step records") == 2
    assert "not measured: no monitor samples" in words
    assert not any(axes.axison for axes in figure.get_axes())


def test_a_single_rank_charges_nobody() -> None:
    row = rank_row(0, comm_ms=0.0)
    whole = analysis(
        world_size=1, nodes=1, breakdown=BreakdownTable(steps=30, per_rank=[row]), blame=[], findings=[]
    )
    page = bare_page(whole)
    assert page.heat_map is None
    assert page.worst_ranks == []
    assert "other ranks wait" not in drawn(whole, page)[1]


def test_series_of_a_run(tmp_path: Path) -> None:
    # 3 s of start-up, then 40 steps of which 10 are warm-up; samples every 0.5 s on two nodes.
    page = page_of(tmp_path, RunSpec(nodes=2, ranks_per_node=1, device="cuda", extra_data_ms={1: 40.0}))
    assert page.steps is not None
    assert page.utilization.window_s is not None
    assert page.steps.global_step == list(range(40))
    assert page.steps.steady == [False] * 10 + [True] * 30
    assert page.utilization.window_s[0] == pytest.approx(3.0 + sum(page.steps.ms[:10]) / 1000, abs=0.05)
    assert [strip.name for strip in page.utilization.strips] == ["node1", "node2"]
    # Of the job: percent of the two CPUs that it may use.
    assert curves(page) == {
        "gpu": {0.0, 97.0},
        "job_cpu": {30.0 / 2, 150.0 / 2, 8.0 / 2},
        "cpu": {20.0, 80.0, 5.0},
    }
    assert page.utilization.absent == ""


def test_a_step_counts_with_its_slowest_rank(tmp_path: Path) -> None:
    # No collectives: rank 0 takes 4 + 60 + 6 (optimizer) + 5, rank 1 also 40 of its loader.
    spec = RunSpec(ranks_per_node=2, hidden_comm_ms=0.0, exposed_comm_ms=0.0, extra_data_ms={1: 40.0})
    steps = page_of(tmp_path, spec).steps
    assert steps is not None
    assert {round(ms, 6) for ms in steps.ms} == {40.0 + 4.0 + 60.0 * 0.9 + 60.0 * 0.1 + 5.0}


def test_of_many_steps_the_longest_of_each_few_is_kept() -> None:
    times = StepTimeSeries(
        global_step=list(range(10)),
        ms=[1.0, 5.0, 2.0, 9.0, 3.0, 3.0, 1.0, 1.0, 4.0, 2.0],
        steady=[False, True] * 5,
        steps_a_point=1,
    )
    kept = thinned(times, limit=5)
    assert kept.steps_a_point == 2
    assert kept.ms == [5.0, 9.0, 3.0, 1.0, 4.0]
    assert kept.global_step == [1, 3, 4, 6, 8]
    assert thinned(times, limit=10) is times


def test_of_many_steps_the_ones_kept_say_how_they_were_timed() -> None:
    times = StepTimeSeries(
        global_step=[0, 1, 2, 3],
        ms=[1.0, 2.0, 4.0, 3.0],
        steady=[True] * 4,
        steps_a_point=1,
        whole=[True, False, True, False],
    )
    kept = thinned(times, limit=2)
    assert (kept.whole, kept.detailed) == ([False, True], [True, False])
    assert msgspec.structs.replace(times, whole=[]).detailed == [True] * 4


def test_a_mixed_run_says_what_its_parts_are_of(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunSpec(steps=90, detail=(10, 40), detail_ms=3.0))
    found = analyse(read_run(run, query_accounting=False))
    page = run_page(found, read_run(run, query_accounting=False))
    words = run_text(found, page)
    assert (
        "TIME PER RANK: MEAN OF 20 DETAILED OF 80 STEADY STEPS, IN % OF THE RANK'S STEP UNLESS NOTED" in words
    )
    assert re.search(r"steady steps +80 \(20 detailed\)", words)
    said = "1.04× (1.04× to 1.04×): 78.0 ms in 20 detailed steps, 75.0 ms in 30 others"
    assert said in " ".join(words.split())
    texts = " ".join(drawn(found, page)[1])
    assert "mean of 20 detailed of 80 steady steps and 2 ranks" in texts
    assert "The slowest detailed step: step " in texts
    assert "timed in detail" in texts.split("Step time", 1)[1]


def test_gpu_utilisation_absent_is_no_line_and_zero_is_one(tmp_path: Path) -> None:
    absent = page_of(tmp_path / "absent", RunSpec(device="cuda", gpu_util_pct=None))
    zero = page_of(tmp_path / "zero", RunSpec(device="cuda", gpu_util_pct=0.0))
    assert "gpu" not in curves(absent)
    assert curves(zero)["gpu"] == {0.0}
    assert "GPU, driver counter" not in drawn(analysis(), absent)[1]
    assert "GPU, driver counter" in drawn(analysis(), zero)[1]


def test_a_run_without_gpus_says_why(tmp_path: Path) -> None:
    page = page_of(tmp_path, RunSpec())
    assert "not measured: GPU (none in the job)" in drawn(analysis(), page)[1]


def test_gpus_that_were_not_sampled_are_not_called_absent(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunSpec(device="cuda"))
    run.node(0).gpu_csv.unlink()
    page = run_page(analysis(), read_run(run, query_accounting=False))
    assert page.utilization.absent == "not measured: GPU (not sampled)"


def test_a_job_without_a_cgroup_says_so(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunSpec(device="cuda"))
    cpu = run.node(0).cpu_csv
    cpu.write_text(cpu.read_text(encoding="utf-8").replace("job_cpu_percent", "other"), encoding="utf-8")
    page = run_page(analysis(), read_run(run, query_accounting=False))
    assert curves(page).keys() == {"gpu", "cpu"}
    assert page.utilization.absent == "not measured: CPU of the job (no cgroup of its own)"


def test_nodes_of_one_machine_are_told_apart(tmp_path: Path) -> None:
    page = page_of(tmp_path, RunSpec(nodes=2, ranks_per_node=1, separate_hosts=False))
    assert [strip.name for strip in page.utilization.strips] == ["node 0 (localhost)", "node 1 (localhost)"]


def test_many_nodes_are_one_band(tmp_path: Path) -> None:
    page = page_of(tmp_path, RunSpec(nodes=8, ranks_per_node=1, steps=15))
    assert [strip.name for strip in page.utilization.strips] == ["median and range of 8 nodes"]
    (cpu,) = [curve for curve in page.utilization.strips[0].curves if curve.what == "cpu"]
    assert cpu.low == cpu.middle == cpu.high  # every node has the same load
    assert max(cpu.middle) == 80.0


def overlapping(figure: Figure) -> list[tuple[str, str]]:
    """Labels of an axis that cover each other."""
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    found = []
    for axes in figure.get_axes():
        labels = [label for label in axes.get_yticklabels() if label.get_text() and axes.axison]
        labels.sort(key=lambda label: label.get_window_extent(renderer).y0)
        for lower, upper in pairwise(labels):
            if lower.get_window_extent(renderer).y1 > upper.get_window_extent(renderer).y0 + 0.5:
                found.append((lower.get_text(), upper.get_text()))
    return found


def test_8192_ranks_stay_readable() -> None:
    rows = [rank_row(rank, host=f"gpu-node-{rank // 8}", data_ms=10.0 + rank % 7) for rank in range(8192)]
    blame = [Blame(rank=4099, cause="data_loading", lost_ms_per_step=8191 * 30.0)]
    whole = analysis(
        world_size=8192,
        nodes=1024,
        blame=blame,
        breakdown=BreakdownTable(steps=30, per_rank=rows, timing="host"),
    )
    page = bare_page(whole)
    assert page.heat_map is not None
    assert len(page.heat_map.rows) == 32  # 1,024 nodes, 32 a row
    assert page.heat_map.ranks_a_row == 8 * 32
    # Rank 4099 is on node 512, in row 512 // 32 = 16, and costs the others 30 of a mean step of about 93 ms.
    column = page.heat_map.columns.index("loader")
    cells = [row[column] for row in page.heat_map.values]
    assert cells[16] == pytest.approx(100 * 30.0 / (page.step_ms or 0.0))
    assert sum(cell or 0.0 for cell in cells) == cells[16]
    figure, texts = drawn(whole, page)
    assert "gpu-node-512 … gpu-node-543" in texts
    assert overlapping(figure) == []
    text = run_text(whole, page)
    assert "32 of 8,192 ranks" in text
    assert "8,191 ranks are not shown, because no rank waits for them" in text
    assert len(text.splitlines()) < 260


def test_the_parts_of_the_waterfall_follow_each_other_to_100_percent() -> None:
    figure, _ = drawn(analysis())
    bars = figure.get_axes()[0].containers
    assert [patches[0].get_x() for patches in bars] == pytest.approx(
        [0.0, *list(accumulate(patches[0].get_width() for patches in bars))[:-1]]
    )
    assert sum(patches[0].get_width() for patches in bars) == pytest.approx(100.0)


def test_copies_that_were_not_timed_have_no_bar_and_timed_ones_have() -> None:
    assert "exposed copy" not in drawn(analysis())[1]
    rows = [msgspec.structs.replace(rank_row(0), exposed_copy_ms=9.0)]
    whole = analysis(breakdown=BreakdownTable(steps=1, per_rank=rows), blame=[])
    assert "exposed copy" in drawn(whole)[1]


def test_a_finished_run_gets_its_utilisation_by_epoch(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunSpec(device="cuda"))
    data = read_run(run, query_accounting=False)
    fill_epochs(run, analysis(), data)
    (row,) = csv.DictReader(run.metrics_csv.read_text(encoding="utf-8").splitlines())
    assert (row["gpu_util_avg"], row["cpu_util_avg"]) == ("97.00", "80.00")
    assert row["train_loss"] == "0.68"
    first = run.metrics_csv.read_bytes()
    fill_epochs(run, analysis(), data)
    assert run.metrics_csv.read_bytes() == first


@pytest.mark.parametrize("state", ["running", None])
def test_the_file_of_a_run_that_may_go_on_is_left_alone(tmp_path: Path, state: str | None) -> None:
    run = write_run(tmp_path, RunSpec(device="cuda"))
    before = run.metrics_csv.read_bytes()
    quality = msgspec.structs.replace(analysis().data_quality, state=state)
    fill_epochs(run, analysis(data_quality=quality), read_run(run, query_accounting=False))
    assert run.metrics_csv.read_bytes() == before


def test_an_epoch_without_a_sample_stays_empty(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunSpec())  # no GPU
    fill_epochs(run, analysis(), read_run(run, query_accounting=False))
    (row,) = csv.DictReader(run.metrics_csv.read_text(encoding="utf-8").splitlines())
    assert (row["gpu_util_avg"], row["cpu_util_avg"]) == ("", "80.00")


def test_a_thousand_problems_are_counted_and_not_listed() -> None:
    many = [Problem(file=f"nodes/node{index}/status.json", reason="missing") for index in range(1000)]
    whole = analysis()
    quality = msgspec.structs.replace(whole.data_quality, problems=many)
    text = run_text(msgspec.structs.replace(whole, data_quality=quality))
    assert text.count("problem: nodes/") == 40
    assert "and 960 more problems, all in profiling_analysis.json" in text
