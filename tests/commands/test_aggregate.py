from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from aorta.artefacts.aggregate import Aggregate
from aorta.artefacts.analysis import Analysis
from aorta.artefacts.io import append_line, read_json, write_json
from aorta.artefacts.layout import RunDir, Scenario
from aorta.artefacts.records import Manifest, SubmittedJob
from aorta.artefacts.submissions import SubmissionDir
from aorta.commands import _analysis, _scenarios
from aorta.commands._scenarios import run_aggregate
from aorta.commands.aggregate import command
from aorta.config.schema import CaptureConfig, Config, ModelConfig, TrainingConfig
from aorta.errors import ArtefactError
from tests.support.synthetic import START_WALL_NS, RunSpec, write_run


def spec(nodes: int, job_id: str | None = None, **changes: object) -> RunSpec:
    settings: dict[str, object] = {"ranks_per_node": 1, "steps": 24, "executor": "local", **changes}
    return RunSpec(nodes=nodes, job_id=job_id or f"10{nodes}", **settings)  # type: ignore[arg-type]


def files(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def test_three_scenarios_to_one_document(tmp_path: Path) -> None:
    results, docs = tmp_path / "results", tmp_path / "docs"
    for nodes in (1, 2, 4):
        slow = {1: 60.0} if nodes == 4 else {}
        write_run(results, spec(nodes, extra_data_ms=slow))
    outcome = CliRunner().invoke(command, [str(results), "--docs", str(docs)])
    assert outcome.exit_code == 0, outcome.output
    assert f"report:  {docs / 'BOTTLENECK_ANALYSIS.md'}" in outcome.output
    assert "verdict: 4node: Rank 1 spends " in outcome.output
    twin = read_json(docs / "BOTTLENECK_ANALYSIS.json", Aggregate)
    assert twin.verdict.kind == "data_loading"
    assert twin.verdict.ranks == [1]
    assert [item.scenario for item in twin.scenarios] == ["1node", "2node", "4node"]
    assert [point.scenario for point in twin.scaling[0].points] == ["1node", "2node", "4node"]
    run = RunDir(results / "4node" / "run_104")
    assert read_json(run.analysis, Analysis).verdict.kind == "data_loading"
    assert all(path.is_file() for path in (run.report, run.plot_png, run.plot_svg))
    assert (docs / "bottleneck_analysis" / "4node.png").read_bytes() == run.plot_png.read_bytes()


@pytest.mark.usefixtures("no_charts")
def test_runs_of_other_programs_and_models_are_reported_and_not_in_the_curve(tmp_path: Path) -> None:
    results = tmp_path / "results"
    write_run(results, spec(1, "105"))
    own = write_run(results, spec(2))
    recorded = read_json(own.manifest, Manifest)
    plan = msgspec.structs.replace(recorded.plan, command=["python", "bench.py"], workload=None)
    write_json(own.manifest, msgspec.structs.replace(recorded, plan=plan))
    large = Config(
        training=TrainingConfig(batch_size=8),
        capture=CaptureConfig(warmup_steps=10),
        model=ModelConfig(num_layers=3),
    )
    write_run(results, spec(3, config=large))
    write_run(results, spec(4))
    aggregate = run_aggregate(results, tmp_path / "docs")
    assert [item.scenario for item in aggregate.scenarios] == ["1node", "2node", "3node", "4node"]
    (curve,) = aggregate.scaling
    assert [point.scenario for point in curve.points] == ["1node", "4node"]
    assert curve.reason == (
        "without 2node, which is not comparable: it ran bench.py, 1node ran aorta.train (ranking); "
        "without 3node, which is not comparable: model.num_layers is 3 instead of 8"
    )
    text = (tmp_path / "docs" / "BOTTLENECK_ANALYSIS.md").read_text(encoding="utf-8")
    assert "model.num_layers is 3 instead of 8" in text.replace("\\", "")


def test_a_second_time_everything_is_the_same(tmp_path: Path) -> None:
    write_run(tmp_path / "results", spec(1))
    run_aggregate(tmp_path / "results", tmp_path / "docs")
    first = files(tmp_path)
    run_aggregate(tmp_path / "results", tmp_path / "docs")
    assert files(tmp_path) == first


def test_failed_and_half_written_runs_are_named_and_cost_only_themselves(tmp_path: Path) -> None:
    results = tmp_path / "results"
    write_run(results, spec(1))
    failed = write_run(results, spec(2, state="failed"))
    records = failed.records(1).read_bytes()
    failed.records(1).write_bytes(records[: len(records) // 2])
    empty = write_run(results, spec(4))
    for path in [*empty.all_records().values(), empty.manifest, empty.status]:
        path.unlink()
    aggregate = run_aggregate(results, tmp_path / "docs")
    text = (tmp_path / "docs" / "BOTTLENECK_ANALYSIS.md").read_text(encoding="utf-8")
    assert aggregate.scenarios[0].verdict.kind == "healthy"
    assert [item.scenario for item in aggregate.scenarios] == ["1node", "2node", "4node"]
    assert any(
        problem.reason.startswith("4node: run_104 contains no usable step record")
        for problem in aggregate.missing
    )
    assert "| 2node | 102 | failed |" in text
    assert "rank_1_metrics.jsonl" in text.partition("<summary>2node")[2]


@pytest.mark.usefixtures("no_charts")
def test_a_submission_whose_first_job_was_refused_is_named_and_costs_nothing(tmp_path: Path) -> None:
    results = tmp_path / "results"
    write_run(results, spec(1))
    (results / "run_20250102T000000Z").mkdir()
    (results / "run_20250102T000000Z" / "1node.yaml").write_text("{}\n")
    outcome = CliRunner().invoke(command, [str(results), "--docs", str(tmp_path / "docs")])
    assert outcome.exit_code == 0, outcome.output
    said = "missing: submission run_20250102T000000Z has no job, because none of 1node was accepted"
    assert said in outcome.output.splitlines()
    assert [
        item.scenario for item in read_json(tmp_path / "docs/BOTTLENECK_ANALYSIS.json", Aggregate).scenarios
    ] == ["1node"]


def submitted(results: Path, nodes: int, program: str | None, *, at_s: int) -> RunDir:
    """The folder of a submission's only job, accepted `at_s` after the synthetic runs began."""
    scenario = Scenario(f"{nodes}node")
    submission = SubmissionDir(results / "run_20250102T000000Z")
    run = RunDir.of(results, scenario, "77")
    job = SubmittedJob(
        job_id="77",
        scenario=scenario.name,
        nodes=nodes,
        run_dir=str(run.root),
        submitted_wall_ns=START_WALL_NS + at_s * 10**9,
        executor="slurm",
        program=program,
    )
    append_line(submission.jobs, msgspec.json.encode(job).decode())
    run.root.mkdir(parents=True, exist_ok=True)
    return run


@pytest.mark.usefixtures("no_charts")
@pytest.mark.parametrize("wrote", ["nothing", "output", "manifest"])
@pytest.mark.parametrize("nodes", [1, 2])
def test_a_crashed_submission_is_the_headline_and_older_runs_are_below(
    tmp_path: Path, wrote: str, nodes: int
) -> None:
    results, docs = tmp_path / "results", tmp_path / "docs"
    write_run(results, spec(2, "102", extra_data_ms={1: 60.0}))
    write_run(results, spec(4, "104"))
    run = submitted(results, nodes, "my_train.py", at_s=1_000)
    if wrote == "output":
        (run.root / "task0.out").write_text("ImportError\n")
    if wrote == "manifest":
        run.root.rmdir()
        write_run(results, spec(nodes, "77", state="failed"))
    outcome = CliRunner().invoke(command, [str(results), "--docs", str(docs)])
    twin = read_json(docs / "BOTTLENECK_ANALYSIS.json", Aggregate)
    assert twin.verdict.kind in {"insufficient_data", "incomplete"}
    assert outcome.exit_code == (6 if twin.verdict.kind == "insufficient_data" else 0), outcome.output
    assert f"{nodes}node (my_train.py)" in twin.verdict.statement
    assert "4node" in [item.scenario for item in twin.scenarios]
    assert twin.summary is None or twin.summary.scenario == f"{nodes}node"


@pytest.mark.usefixtures("no_charts")
def test_runs_newer_than_the_submission_decide_with_it(tmp_path: Path) -> None:
    """The twin: the same runs after the submission are what was asked for."""
    results = tmp_path / "results"
    write_run(results, spec(2, "102", extra_data_ms={1: 60.0}))
    submitted(results, 1, "my_train.py", at_s=-1_000)
    aggregate = run_aggregate(results, tmp_path / "docs")
    assert aggregate.verdict.kind == "data_loading"
    assert aggregate.verdict.statement.startswith("2node: ")


@pytest.mark.usefixtures("no_charts")
def test_an_older_run_of_another_program_never_stands_in(tmp_path: Path) -> None:
    results = tmp_path / "results"
    write_run(results, spec(1, "7"))
    own = write_run(results, spec(1, "8", state="failed"))
    recorded = read_json(own.manifest, Manifest)
    plan = msgspec.structs.replace(recorded.plan, command=["python", "bench.py"], workload=None)
    write_json(own.manifest, msgspec.structs.replace(recorded, plan=plan))
    aggregate = run_aggregate(results, tmp_path / "docs")
    assert [item.job_id for item in aggregate.scenarios] == ["8"]
    assert aggregate.verdict.statement.startswith("bench.py: ")


@pytest.mark.usefixtures("no_charts")
def test_a_broken_newest_run_by_hand_gives_way_to_the_last_valid_one(tmp_path: Path) -> None:
    results = tmp_path / "results"
    write_run(results, spec(1, "7"))
    write_run(results, spec(1, "8", state="failed"))
    aggregate = run_aggregate(results, tmp_path / "docs")
    assert [item.job_id for item in aggregate.scenarios] == ["7"]
    assert ["run 7 is" in problem.reason for problem in aggregate.missing] == [True]


@pytest.mark.usefixtures("no_charts")
def test_an_analysis_that_fails_costs_its_scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = tmp_path / "results"
    write_run(results, spec(1))
    write_run(results, spec(2))
    real = _analysis.analyze_run

    def failing(run: RunDir, **_: object) -> object:
        if run.root.parent.name == "2node":
            raise ValueError("no such thing")
        return real(run)

    monkeypatch.setattr(_scenarios, "analyze_run", failing)
    aggregate = run_aggregate(results, tmp_path / "docs")
    assert [item.scenario for item in aggregate.scenarios] == ["1node"]
    assert [problem.reason for problem in aggregate.missing] == [
        "2node could not be analysed: ValueError: no such thing (a bug in aorta)"
    ]


@pytest.mark.usefixtures("no_charts")
def test_the_time_of_the_document_is_that_of_the_newest_input(tmp_path: Path) -> None:
    made = write_run(tmp_path / "results", spec(1))
    aggregate = run_aggregate(tmp_path / "results", tmp_path / "docs")
    last = made.records(0).read_text(encoding="utf-8").splitlines()[-1]
    assert f'"wall_end_ns":{aggregate.generated_wall_ns}' in last


def test_no_run_at_all_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match="no run below") as caught:
        run_aggregate(tmp_path, tmp_path / "docs")
    assert "aorta profile" in caught.value.hint
    assert not (tmp_path / "docs").exists()
    made = write_run(tmp_path / "results", spec(1))
    with pytest.raises(ArtefactError, match="no run below") as caught:
        run_aggregate(made.root, tmp_path / "docs")
    assert caught.value.hint == f"it is a run itself: `aorta analyze {made.root}`"


@pytest.mark.usefixtures("no_charts")
def test_a_document_that_cannot_be_written_is_an_error_and_no_traceback(tmp_path: Path) -> None:
    write_run(tmp_path / "results", spec(1))
    docs = tmp_path / "docs"
    docs.write_text("a file", encoding="utf-8")
    with pytest.raises(ArtefactError, match="docs"):
        run_aggregate(tmp_path / "results", docs)


@pytest.mark.usefixtures("no_charts")
def test_a_run_directory_that_cannot_be_written_is_still_reported(tmp_path: Path) -> None:
    made = write_run(tmp_path / "results", spec(1))
    made.report.mkdir()  # stands where the text report goes
    aggregate = run_aggregate(tmp_path / "results", tmp_path / "docs")
    assert [item.scenario for item in aggregate.scenarios] == ["1node"]
    assert ["1node: its own report could not be written" in item.reason for item in aggregate.missing] == [
        True
    ]


@pytest.mark.usefixtures("no_charts")
def test_families_have_curves_of_their_own(tmp_path: Path) -> None:
    results = tmp_path / "results"
    write_run(results, spec(1))
    write_run(results, spec(2))
    write_run(results, spec(1, "200", scenario="cpu_1node"))
    write_run(results, spec(2, "201", scenario="cpu_2node"))
    aggregate = run_aggregate(results, tmp_path / "docs")
    curves = {curve.family: [point.scenario for point in curve.points] for curve in aggregate.scaling}
    assert curves == {"": ["1node", "2node"], "cpu": ["cpu_1node", "cpu_2node"]}
    assert (tmp_path / "docs" / "bottleneck_analysis" / "scaling_cpu.png").is_file()


def test_the_script_starts_the_command() -> None:
    script = Path(__file__).parents[2] / "scripts" / "aggregate_profiling_results.sh"
    assert script.read_text(encoding="utf-8").rstrip().endswith('exec .venv/bin/aorta aggregate "$@"')
    assert shutil.which(str(script)) is not None  # executable


@pytest.mark.usefixtures("no_charts")
def test_whatever_goes_wrong_costs_one_scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for nodes in (1, 2):
        write_run(tmp_path / "results", spec(nodes))
    whole = _analysis.read_run

    def broken(run: RunDir, *, query_accounting: bool) -> object:
        if run.root.parent.name == "2node":
            raise RecursionError("too deep")
        return whole(run, query_accounting=query_accounting)

    monkeypatch.setattr(_analysis, "read_run", broken)
    found = run_aggregate(tmp_path / "results", tmp_path / "docs")
    assert [item.scenario for item in found.scenarios] == ["1node"]
    assert [item.reason for item in found.missing] == [
        "2node could not be analysed: RecursionError: too deep (a bug in aorta)"
    ]


@pytest.mark.usefixtures("no_charts")
def test_earlier_runs_of_the_same_code_widen_the_interval_of_the_scaling(tmp_path: Path) -> None:
    results, docs = tmp_path / "results", tmp_path / "docs"
    for job, compute in (("1", 60.0), ("2", 90.0), ("3", 75.0)):
        write_run(results, spec(1, job, compute_ms=compute))
        first = run_aggregate(results, docs).scaling[0].points[0]
        assert first.runs == int(job)
        interval = first.samples_per_s_interval
        assert interval is not None
        if job == "2":  # 8 samples in steps of 69 and of 99 ms
            assert (interval.low, interval.high) == pytest.approx((8000 / 99, 8000 / 69))
            assert interval.confidence is None
    # Nothing varies within a run, and much between them.
    assert interval.confidence is not None
    assert interval.high / interval.low > 2
    manifest = RunDir(results / "1node" / "run_1").manifest
    write_json(manifest, msgspec.structs.replace(read_json(manifest, Manifest), code_version="0.0.1"))
    assert run_aggregate(results, docs).scaling[0].points[0].runs == 2
