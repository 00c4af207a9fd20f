from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from aorta.artefacts.analysis import Analysis, BreakdownTable, DataQuality, Problem, Verdict
from aorta.artefacts.layout import RunDir
from aorta.readers.run import read_run
from aorta.report import style
from aorta.report.figure import run_figure
from aorta.report.run import run_text, write_run_report
from aorta.report.series import RunSeries, run_series
from tests.support.analyses import analysis, rank_row
from tests.support.golden import assert_golden
from tests.support.synthetic import RunSpec, write_run

GOLDEN = Path(__file__).parent / "golden"

NOTHING = RunSeries(steps=None, nodes=(), window=None, no_samples="not measured: no samples", no_gpu="no GPU")


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


def drawn(whole: Analysis, series: RunSeries) -> tuple[Figure, list[str]]:
    with style.styled():
        figure = run_figure(whole, series)
        figure.draw_without_rendering()
    return figure, [item.get_text() for item in figure.findobj(Text) if item.get_visible()]


def series_of(tmp_path: Path, spec: RunSpec) -> RunSeries:
    return run_series(read_run(write_run(tmp_path, spec), query_accounting=False))


def test_text_report() -> None:
    assert_golden(GOLDEN / "profiling_report.txt", run_text(analysis()))


def test_text_report_of_a_run_without_data() -> None:
    assert_golden(GOLDEN / "profiling_report_empty.txt", run_text(empty_analysis()))


def test_text_reports_have_at_most_100_columns() -> None:
    many = [rank_row(rank, host=f"rack-{rank}.cluster.example.org") for rank in range(64)]
    reason = "not measurable: " + "because " * 30
    whole = analysis(breakdown=BreakdownTable(steps=30, per_rank=many, timing="host"))
    rules = [msgspec.structs.replace(rule, reason=reason) for rule in whole.measured]
    whole = msgspec.structs.replace(whole, measured=rules)
    for text in (run_text(whole), run_text(empty_analysis())):
        assert max(len(line) for line in text.splitlines()) <= 100
    assert "32 of 64 ranks" in run_text(whole)


def test_a_measured_zero_is_0_and_an_absent_value_is_a_dash() -> None:
    text = run_text(analysis())
    assert "memory pressure             0 %  above 90.0 %    ok" in text
    assert "GPU under-utilisation         —  below 70.0 %    not measurable: no GPU in the job" in text


def test_words_of_the_data_cannot_write_to_the_terminal() -> None:
    whole = analysis(verdict=Verdict(kind="healthy", statement="all \x1b[2J well", ranks=[]))
    assert "\x1b" not in run_text(whole)


def test_files_are_written_and_a_second_time_the_same(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunSpec(nodes=2, ranks_per_node=1, jitter_ms=3.0))
    data = read_run(run, query_accounting=False)
    outputs = (run.report, run.plot_png, run.plot_svg)
    write_run_report(run, analysis(), data)
    first = [path.read_bytes() for path in outputs]
    write_run_report(run, analysis(), data)
    assert [path.read_bytes() for path in outputs] == first
    assert first[1].startswith(b"\x89PNG")
    assert ElementTree.fromstring(first[2]).tag.endswith("svg")


def test_hostile_names_reach_the_figure_as_they_are(tmp_path: Path) -> None:
    row = rank_row(0, host="$\\frac{")
    whole = analysis(
        scenario="$x_1$", breakdown=BreakdownTable(steps=1, per_rank=[row, rank_row(1, host="b")])
    )
    run = RunDir(tmp_path)
    figure, texts = drawn(whole, NOTHING)
    with style.styled():
        style.save(figure, run.plot_png, run.plot_svg)
    assert "rank 0 · $\\frac{" in texts
    assert run.plot_png.stat().st_size > 0


def test_panels_without_data_say_so_and_have_no_axis() -> None:
    figure, texts = drawn(empty_analysis(), NOTHING)
    words = " ".join(" ".join(texts).split())
    assert words.count("not measured: no rank has a steady step with a breakdown") == 2
    assert "not measured: no step records" in words
    assert "not measured: no samples" in words
    assert not any(axes.axison for axes in figure.get_axes())


def test_a_single_rank_has_no_communication_which_is_not_missing_data() -> None:
    row = rank_row(0, comm_ms=0.0)
    whole = analysis(world_size=1, nodes=1, breakdown=BreakdownTable(steps=30, per_rank=[row]))
    _, texts = drawn(whole, NOTHING)
    assert "none: a single rank talks to nobody" in texts


def test_series_of_a_run(tmp_path: Path) -> None:
    # 3 s of start-up, then 40 steps of which 10 are warm-up; samples every 0.5 s on two nodes.
    spec = RunSpec(nodes=2, ranks_per_node=1, device="cuda", extra_data_ms={1: 40.0})
    series = series_of(tmp_path, spec)
    assert series.steps is not None
    assert series.window is not None
    assert series.steps.steps.tolist() == list(range(40))
    assert series.steps.steady.tolist() == [False] * 10 + [True] * 30
    assert series.window.start_s == pytest.approx(3.0 + series.steps.ms[:10].sum() / 1000, abs=0.05)
    assert [node.name for node in series.nodes] == ["node1", "node2"]
    node = series.nodes[0]
    assert node.cpu is not None
    assert node.job is not None
    assert node.gpu is not None
    assert set(node.cpu.values.tolist()) == {20.0, 80.0, 5.0}
    assert set(node.job.values.tolist()) == {30.0 / 2, 150.0 / 2, 8.0 / 2}  # of the two CPUs it may use
    assert set(node.gpu.values.tolist()) == {0.0, 97.0}


def test_a_step_counts_with_its_slowest_rank(tmp_path: Path) -> None:
    # No collectives: rank 0 takes 4 + 60 + 6 (optimizer) + 5, rank 1 also 40 of its loader.
    spec = RunSpec(ranks_per_node=2, hidden_comm_ms=0.0, exposed_comm_ms=0.0, extra_data_ms={1: 40.0})
    steps = series_of(tmp_path, spec).steps
    assert steps is not None
    assert set(steps.ms.round(6).tolist()) == {40.0 + 4.0 + 60.0 * 0.9 + 60.0 * 0.1 + 5.0}


def test_gpu_utilisation_absent_is_no_line_and_zero_is_one(tmp_path: Path) -> None:
    absent = series_of(tmp_path / "absent", RunSpec(device="cuda", gpu_util_pct=None))
    zero = series_of(tmp_path / "zero", RunSpec(device="cuda", gpu_util_pct=0.0))
    assert absent.nodes[0].gpu is None
    assert zero.nodes[0].gpu is not None
    assert set(zero.nodes[0].gpu.values.tolist()) == {0.0}
    assert "GPU, driver counter" not in drawn(analysis(), absent)[1]
    assert "GPU, driver counter" in drawn(analysis(), zero)[1]


def test_a_run_without_gpus_says_why(tmp_path: Path) -> None:
    series = series_of(tmp_path, RunSpec())
    assert "not measured: GPU (none in the job)" in drawn(analysis(), series)[1]


def test_gpus_that_were_not_sampled_are_not_called_absent(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunSpec(device="cuda"))
    run.node(0).gpu_csv.unlink()
    series = run_series(read_run(run, query_accounting=False))
    assert "not measured: GPU (not sampled)" in drawn(analysis(), series)[1]


def test_a_job_without_a_cgroup_says_so(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunSpec(device="cuda"))
    cpu = run.node(0).cpu_csv
    cpu.write_text(cpu.read_text(encoding="utf-8").replace("job_cpu_percent", "other"), encoding="utf-8")
    series = run_series(read_run(run, query_accounting=False))
    assert series.nodes[0].cpu is not None
    assert series.nodes[0].job is None
    assert "not measured: CPU of the job (no cgroup of its own)" in drawn(analysis(), series)[1]


def test_nodes_of_one_machine_are_told_apart(tmp_path: Path) -> None:
    series = series_of(tmp_path, RunSpec(nodes=2, ranks_per_node=1, separate_hosts=False))
    assert [node.name for node in series.nodes] == ["node 0 (localhost)", "node 1 (localhost)"]


def test_64_ranks_on_8_nodes_stay_readable(tmp_path: Path) -> None:
    rows = [rank_row(rank, host=f"gpu-node-{rank // 8}", data_ms=10.0 + rank) for rank in range(64)]
    whole = analysis(world_size=64, nodes=8, breakdown=BreakdownTable(steps=30, per_rank=rows, timing="host"))
    series = series_of(tmp_path, RunSpec(nodes=8, ranks_per_node=1, steps=15))
    figure, texts = drawn(whole, series)
    assert "median and range of 8 nodes" in texts
    assert "rank 1 · gpu-node-0" in texts  # the verdict's
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    for axes in figure.get_axes():
        boxes = [label.get_window_extent(renderer) for label in axes.get_yticklabels() if label.get_text()]
        boxes.sort(key=lambda box: box.y0)
        assert all(lower.y1 <= upper.y0 + 0.5 for lower, upper in pairwise(boxes))


def test_breakdown_bars_fill_the_panel(tmp_path: Path) -> None:
    figure, _ = drawn(analysis(), NOTHING)
    axes = figure.get_axes()[0]
    for rank in (0, 1):
        widths = [patches[rank].get_width() for patches in axes.containers]
        assert sum(widths) == pytest.approx(100.0)
    # Rank 0: compute 40, exposed 30, data 10, host 10 of 90; copies were not timed and have no bar.
    assert [patches[0].get_width() for patches in axes.containers] == pytest.approx(
        [100 * part / 90 for part in (40, 30, 10, 10)]
    )


def test_copies_that_were_timed_as_zero_have_their_place() -> None:
    rows = [msgspec.structs.replace(rank_row(0), exposed_copy_ms=0.0)]
    figure, texts = drawn(analysis(breakdown=BreakdownTable(steps=1, per_rank=rows)), NOTHING)
    assert len(figure.get_axes()[0].containers) == 5
    assert "exposed copy" in texts
