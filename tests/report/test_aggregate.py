from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
import pytest

from aorta.artefacts.aggregate import Aggregate, Scaling
from aorta.artefacts.analysis import Analysis, Problem, Speedup, Verdict
from aorta.artefacts.io import read_json
from aorta.artefacts.layout import RunDir, Scenario
from aorta.artefacts.measured import BreakdownTable, Interval
from aorta.artefacts.replayed import Lateness, LatenessTable, LateNode
from aorta.artefacts.traced import KernelTotal, ProfilerOverhead, RankTrace, TraceTable
from aorta.diagnosis.findings import likeliest
from aorta.metrics.scaling import scaling_curves
from aorta.report.aggregate import ScenarioReport, build, decisive, rank_time_ms, recommendations, sentence
from aorta.report.bare import bare_page
from aorta.report.document import write_documents
from tests.support.analyses import analysis, data_loading_finding, rank_row
from tests.support.golden import assert_golden

GOLDEN = Path(__file__).parent / "golden"


def scenario(name: str, ranks: int, **changes: Any) -> Analysis:
    rows = [
        rank_row(rank, data_ms=40.0 if rank == 1 else 10.0, comm_ms=0.0 if rank == 1 else 30.0)
        for rank in range(ranks)
    ]
    base = analysis(scenario=name, nodes=ranks, world_size=ranks, job_id=f"10{ranks}")
    assert base.throughput is not None
    base = msgspec.structs.replace(
        base,
        breakdown=BreakdownTable(steps=30, per_rank=rows, timing="host"),
        throughput=msgspec.structs.replace(
            base.throughput, samples_per_s=100.0 * ranks - 10.0 * (ranks - 1), global_batch=8 * ranks
        ),
        data_quality=msgspec.structs.replace(
            base.data_quality, ranks_seen=ranks, ranks_expected=ranks, nodes_seen=ranks, nodes_expected=ranks
        ),
    )
    return msgspec.structs.replace(base, **changes)


def healthy(name: str, ranks: int) -> Analysis:
    verdict = Verdict(kind="healthy", statement="Nothing crosses its threshold.", ranks=[])
    rules = [rule for rule in analysis().measured if not rule.fired]
    return scenario(name, ranks, verdict=verdict, findings=[], blame=[], measured=rules)


def reported(root: Path, whole: Analysis, *, plots: bool = True) -> ScenarioReport:
    name = Scenario(str(whole.scenario))
    run = RunDir.of(root / "results" / "profiling", name, str(whole.job_id))
    run.root.mkdir(parents=True)
    for path in (run.report, run.analysis, run.manifest):
        path.write_text("x", encoding="utf-8")
    if plots:
        run.plot_png.write_bytes(b"png")
        run.plot_svg.write_bytes(b"svg")
    return ScenarioReport(name, run, whole, bare_page(whole))


@pytest.fixture(autouse=True)
def drawn_once(request: pytest.FixtureRequest) -> None:
    """Figures are drawn only where a test looks at the files of the folder."""
    if request.node.name not in {
        "test_the_same_inputs_give_the_same_files",
        "test_every_relative_link_exists",
    }:
        request.getfixturevalue("no_charts")


def document(root: Path, reports: list[ScenarioReport], missing: list[Problem] | None = None) -> str:
    curves = scaling_curves([report.analysis for report in reports], likeliest=likeliest)
    aggregate = build(reports, curves, missing or [], 1_750_000_000_000_000_000)
    return write_documents(root / "docs", aggregate, reports).read_text(encoding="utf-8")


def test_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    reports = [reported(Path(), healthy("1node", 1)), reported(Path(), scenario("2node", 2))]
    missing = [
        Problem(file="results/profiling/run_7/4node.yaml", reason="4node: has no job; it was not accepted")
    ]
    assert_golden(GOLDEN / "BOTTLENECK_ANALYSIS.md", document(Path(), reports, missing))


@pytest.mark.parametrize("confidence", [None, 0.95], ids=["two runs", "more"])
def test_the_range_of_two_runs_is_not_called_an_interval(tmp_path: Path, confidence: float | None) -> None:
    reports = [reported(tmp_path, healthy("1node", 1)), reported(tmp_path, healthy("2node", 2))]
    (curve,) = scaling_curves([report.analysis for report in reports], likeliest=likeliest)
    known = Interval(low=0.8, high=1.0, confidence=confidence)
    point = msgspec.structs.replace(curve.points[1], runs=2, efficiency_interval=known)
    curve = msgspec.structs.replace(curve, points=[curve.points[0], point])
    path = write_documents(tmp_path / "docs", build(reports, [curve], [], 0), reports)
    text = path.read_text(encoding="utf-8")
    ranged = confidence is None
    assert ("(seen 80.0 to 100.0)" in text, "(80.0 to 100.0)" in text) == (ranged, not ranged)
    assert ("Seen is the lowest" in text, "are 95 % intervals" in text) == (ranged, not ranged)
    assert "This table shows means over all counted runs" in text
    alone = build(
        reports, scaling_curves([report.analysis for report in reports], likeliest=likeliest), [], 0
    )
    text = write_documents(tmp_path / "docs", alone, reports).read_text(encoding="utf-8")
    assert "This table shows means" not in text


def test_document_without_any_scenario(tmp_path: Path) -> None:
    missing = [Problem(file=None, reason="1node: job 7 has written nothing")]
    assert_golden(GOLDEN / "BOTTLENECK_ANALYSIS_empty.md", document(tmp_path, [], missing))


def test_the_first_screen_fits_and_everything_else_is_folded(tmp_path: Path) -> None:
    missing = [
        Problem(file=None, reason=f"{nodes}node: job {nodes} has written nothing") for nodes in (8, 16)
    ]
    reports = [reported(tmp_path, scenario(f"{nodes}node", nodes)) for nodes in (1, 2, 4, 32)]
    text = document(tmp_path, reports, missing)
    first, *folded = text.split("<details>")
    assert len(first.splitlines()) <= 45
    assert "overview.png" in first
    assert "do the work of" in first
    assert (
        first.index("**Fix**")
        < first.index("**Best-case speed-up**")
        < first.index("**Confidence in the cause**")
    )
    assert re.findall(r"<summary>(.*)</summary>", text) == [
        "All causes, by time lost",
        "Scaling: throughput and efficiency",
        *(f"{nodes}node: data loading" for nodes in (1, 2, 4, 32)),
        "Data quality of all scenarios",
    ]
    assert all(part.rstrip().endswith("</details>") for part in folded)


def test_every_relative_link_exists(tmp_path: Path) -> None:
    reports = [reported(tmp_path, healthy("1node", 1)), reported(tmp_path, scenario("cpu_2node", 2))]
    text = document(tmp_path, reports)
    links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if not link.startswith("#")]
    assert "bottleneck_analysis/1node.png" in links
    assert "bottleneck_analysis/cpu_2node.svg" in links
    assert "bottleneck_analysis/overview.png" in links
    assert "bottleneck_analysis/glossary.md" in links
    assert not any("scaling" in link for link in links)  # one scenario a family is no curve
    assert "../results/profiling/1node/run_101/profiling_report.txt" in links
    assert all((tmp_path / "docs" / unquote(link)).is_file() for link in links)


def test_links_hold_when_documents_are_elsewhere(tmp_path: Path) -> None:
    report = reported(tmp_path / "far away (1)", scenario("2node", 2))
    text = document(tmp_path / "here", [report])
    links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if not link.startswith("#")]
    assert all((tmp_path / "here" / "docs" / unquote(link)).is_file() for link in links)


def test_without_its_figure_a_scenario_has_no_broken_picture(tmp_path: Path) -> None:
    text = document(tmp_path, [reported(tmp_path, scenario("2node", 2), plots=False)])
    assert "bottleneck_analysis/2node.png" not in text


def test_the_same_inputs_give_the_same_files(tmp_path: Path) -> None:
    reports = [reported(tmp_path, healthy("1node", 1)), reported(tmp_path, scenario("2node", 2))]

    def written() -> dict[Path, bytes]:
        document(tmp_path, reports)
        return {path: path.read_bytes() for path in sorted((tmp_path / "docs").rglob("*")) if path.is_file()}

    first = written()
    assert {path.name for path in first} >= {
        "BOTTLENECK_ANALYSIS.md",
        "BOTTLENECK_ANALYSIS.json",
        "scaling.svg",
    }
    assert written() == first


def test_json_twin_reads_back(tmp_path: Path) -> None:
    document(tmp_path, [reported(tmp_path, scenario("2node", 2))])
    twin = read_json(tmp_path / "docs" / "BOTTLENECK_ANALYSIS.json", Aggregate)
    assert twin.verdict.statement == "Data loading on rank 1 costs 30 ms of each 90 ms step."
    assert twin.generated_wall_ns == 1_750_000_000_000_000_000
    assert [item.scenario for item in twin.scenarios] == ["2node"]
    assert [page.scenario for page in twin.pages] == ["2node"]
    assert sum(part.ms or 0.0 for part in twin.pages[0].parts) == pytest.approx(90.0)
    assert twin.summary is not None
    assert twin.summary.cost_ms == pytest.approx(90.0 * (1 - 1 / 1.5))
    assert (twin.recommended[0].speedup, twin.recommended[0].speedup_high) == (None, 1.5)
    assert twin.scenarios[0].utilization is not None
    assert twin.scenarios[0].utilization.gpu_util_pct is None
    assert len(twin.recommendations) == 1


def hostile_trace(name: str) -> RankTrace:
    kernel = KernelTotal(
        name=name, kind="compute", count=3, total_ns=3000, median_ns=1000.0, min_ns=1, max_ns=2000, share=1.0
    )
    return RankTrace(
        rank=0,
        source=name,
        steps=3,
        idle_loader_ms=0.0,
        idle_sync_ms=1.0,
        idle_launch_ms=1.0,
        idle_elsewhere_ms=1.0,
        queue_depth=None,
        contention=None,
        kernels=[kernel],
    )


def late(host: str) -> Lateness:
    return Lateness(
        rank=0,
        host=host,
        pattern="persistent",
        late_steps=29,
        share_of_steps=29 / 30,
        since_step=11,
        late_ms=2.0,
    )


def test_words_of_the_data_stay_words(tmp_path: Path) -> None:
    hostile = "|<script>alert(1)</script>`[x](javascript:1)\n# big"
    rows = [rank_row(0, host=hostile), rank_row(1)]
    whole = scenario(
        "2node",
        2,
        verdict=Verdict(kind="data_loading", statement=hostile, ranks=[1]),
        findings=[
            data_loading_finding(
                nodes=[hostile],
                cause=hostile,
                actions=[hostile],
                evidence={hostile: hostile},
                sub_cause=hostile,
                sub_cause_text=hostile,
            )
        ],
        breakdown=BreakdownTable(steps=30, per_rank=rows),
        job_id=hostile,
        traces=TraceTable(format=hostile, per_rank=[hostile_trace(hostile)]),
        profiler_overhead=ProfilerOverhead(ratio=None, inside_steps=0, outside_steps=0, reason=hostile),
        lateness=LatenessTable(
            steps=30,
            threshold_ms=1.0,
            ranks=[late(hostile)],
            nodes=[LateNode(host=hostile, ranks=[0], late_ms=2.0)],
            scope="node",
        ),
    )
    run = RunDir(tmp_path / "results" / "profiling" / "2node" / "run_1")
    problem = Problem(file=hostile, reason=hostile)
    text = document(
        tmp_path, [ScenarioReport(Scenario("2node"), run, whole, bare_page(whole), note=hostile)], [problem]
    )
    assert "<script" not in text
    assert not re.search(r"(?<!\\)\]\(javascript", text)
    assert "\n# big" not in text
    for line in text.splitlines():
        if line.startswith("| 2node | "):
            assert len(re.findall(r"(?<!\\)\|", line)) in {8, 9, 10}  # cells of its table and no more


def test_shared_machine_is_said_before_anything_is_concluded(tmp_path: Path) -> None:
    shared = document(tmp_path / "a", [reported(tmp_path / "a", scenario("2node", 2, shared_machine=True))])
    apart = document(tmp_path / "b", [reported(tmp_path / "b", scenario("2node", 2))])
    said = "share one machine, so this is the scaling of that machine and not of a cluster"
    assert said in shared
    assert "one machine" in shared.partition("<details>")[0]
    assert said not in apart
    assert "one machine" not in apart


def test_problems_and_notes_are_named_with_their_scenario(tmp_path: Path) -> None:
    base = scenario("2node", 2)
    quality = msgspec.structs.replace(
        base.data_quality,
        problems=[
            Problem(file=f"rank_{rank}_metrics.jsonl", reason="line 7 is cut off") for rank in range(15)
        ],
        notes=["accounting is disabled"],
        state="failed",
    )
    broken = msgspec.structs.replace(base, data_quality=quality)
    text = document(tmp_path, [reported(tmp_path, broken)])
    own = text.partition("<summary>2node: data loading</summary>")[2]
    assert "- problem: `rank_0_metrics.jsonl`: line 7 is cut off" in own
    assert own.count("is cut off") == 15
    assert "- note: accounting is disabled" in own
    assert "| 2node | 102 | failed |" in text
    assert "the job did not complete (failed)" in text.partition("<details>")[0]


def test_insufficient_data_is_never_reported_as_healthy(tmp_path: Path) -> None:
    verdict = Verdict(kind="insufficient_data", statement="3 steady steps of 10.", ranks=[])
    whole = scenario("2node", 2, verdict=verdict, findings=[], throughput=None, utilization=None, blame=[])
    text = document(tmp_path, [reported(tmp_path, whole)])
    assert "nothing passes its threshold" not in text
    assert "<summary>2node: insufficient data</summary>" in text
    good = document(tmp_path / "good", [reported(tmp_path / "good", healthy("2node", 2))])
    assert "- **Cost**: none: nothing passes its threshold" in good
    assert "- **Confidence in the verdict**: " in good
    assert "Confidence in the cause" not in good.split("Terms")[0]


def test_a_cause_costs_its_share_of_the_step_on_every_rank() -> None:
    # 1.5 times as fast without it: a third of 90 ms, on 4 ranks.
    assert rank_time_ms(scenario("4node", 4), data_loading_finding()) == pytest.approx(4 * 90 * (1 - 1 / 1.5))
    assert rank_time_ms(scenario("4node", 4), data_loading_finding(estimated_speedup=None)) == 0
    assert rank_time_ms(scenario("4node", 4), None) == 0


def test_the_first_bottleneck_is_the_verdicts(tmp_path: Path) -> None:
    worse = scenario(
        "2node", 2, findings=[data_loading_finding(estimated_speedup=Speedup(low=1.0, high=1.8))]
    )
    text = document(tmp_path, [reported(tmp_path, worse), reported(tmp_path, scenario("4node", 4))])
    # 2node: 90 · (1 − 1/1.8) · 2 = 80 ms of rank-time; 4node: 90 · (1 − 1/1.5) · 4 = 120 ms.
    assert text.index("| 4node | data loading |") < text.index("| 2node | data loading |")
    assert "**4node: Data loading" in text


def test_the_scenario_that_loses_most_decides(tmp_path: Path) -> None:
    small, large = reported(tmp_path, scenario("2node", 2)), reported(tmp_path, scenario("4node", 4))
    assert decisive([small, large]) is large
    assert decisive([large, small]) is large


def test_a_cause_decides_over_health_and_health_over_ignorance(tmp_path: Path) -> None:
    ignorant = Verdict(kind="insufficient_data", statement="", ranks=[])
    cause = reported(tmp_path, scenario("1node", 1))
    well = reported(tmp_path, healthy("2node", 2))
    unknown = reported(tmp_path, scenario("4node", 4, verdict=ignorant, findings=[]))
    assert decisive([unknown, well, cause]) is cause
    assert decisive([unknown, well]) is well
    assert decisive([unknown]) is unknown
    assert decisive([]) is None


def test_recommendations_are_one_a_cause_by_predicted_gain(tmp_path: Path) -> None:
    comm = data_loading_finding(
        kind="communication",
        estimated_speedup=Speedup(low=1.1, high=1.2),
        actions=["Raise training.batch_size."],
    )
    unknown = data_loading_finding(kind="memory_pressure", estimated_speedup=None, actions=["Use less."])
    better = data_loading_finding(estimated_speedup=Speedup(low=1.2, high=1.8), actions=["Cache the data."])
    symptom = data_loading_finding(kind="straggler", symptom_of="data_loading")
    reports = [
        reported(tmp_path, scenario("2node", 2, findings=[unknown, comm, data_loading_finding(), symptom])),
        reported(tmp_path, scenario("4node", 4, findings=[better])),
    ]
    found = recommendations(reports)
    assert [item.kind for item in found] == ["data loading", "communication", "memory pressure"]
    assert found[0].scenarios == ["2node", "4node"]
    assert found[0].best_scenario == "4node"
    assert found[0].actions == [
        "Cache the data.",
        "Raise dataloader.num_workers above 4.",
        "Put the data on local disk.",
    ]
    assert sentence(found[1]) == (
        "communication (2node; predicted gain at most 1.20×): Raise training.batch_size."
    )
    assert sentence(found[2]) == "memory pressure (2node; gain not predicted): Use less."


def test_a_superlinear_point_is_flagged_and_not_capped(tmp_path: Path) -> None:
    fast = scenario("2node", 2)
    assert fast.throughput is not None
    fast = msgspec.structs.replace(
        fast, throughput=msgspec.structs.replace(fast.throughput, samples_per_s=240.0)
    )
    text = document(tmp_path, [reported(tmp_path, scenario("1node", 1)), reported(tmp_path, fast)])
    assert "| 2node | 2 | 2 | 16 | 240 | 1 | 2.40× | 120.0 % | superlinear |" in text  # (240 / 2) / (100 / 1)


def test_a_family_without_a_valid_run_says_why_there_is_no_curve(tmp_path: Path) -> None:
    reports = [reported(tmp_path, scenario("2node", 2))]
    curve = Scaling(family="", reference=None, label=None, points=[], reason="no valid run")
    text = write_documents(tmp_path / "docs", build(reports, [curve], [], 0), reports).read_text(
        encoding="utf-8"
    )
    section = text.partition("<summary>Scaling")[2].partition("</details>")[0]
    assert "no valid run" in section
    assert "The reference is" not in section
