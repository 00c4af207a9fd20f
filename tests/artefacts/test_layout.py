"""Paths: keyed by exact scenario and id, never matched by substring."""

from pathlib import Path

import pytest

from aorta.artefacts.layout import RunDir, Scenario, flat_alias, runs
from aorta.artefacts.submissions import SubmissionDir, submissions
from aorta.errors import ArtefactError


def test_scenarios_of_a_family_are_not_those_of_another(tmp_path: Path) -> None:
    for scenario, job in (("2node", "7"), ("cpu_2node", "8"), ("12node", "9")):
        RunDir.of(tmp_path, Scenario(scenario), job).root.mkdir(parents=True)
    (tmp_path / "run_20260101T000000").mkdir()
    (tmp_path / "somethingelse" / "run_1").mkdir(parents=True)
    found = [(scenario.name, run.root.name) for scenario, run in runs(tmp_path)]
    assert found == [("2node", "run_7"), ("12node", "run_9"), ("cpu_2node", "run_8")]


@pytest.mark.parametrize(
    ("name", "nodes", "family"), [("1node", 1, ""), ("16node", 16, ""), ("cpu_2node", 2, "cpu")]
)
def test_a_scenario_knows_its_shape(name: str, nodes: int, family: str) -> None:
    assert (Scenario(name).nodes, Scenario(name).family) == (nodes, family)


@pytest.mark.parametrize("name", ["", "node", "0node", "../1node", "1node/..", "1node\n", "nodes_1", "1Node"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ArtefactError):
        Scenario(name)


@pytest.mark.parametrize("job_id", ["", "../3", "3/4", ".hidden", "a b", "1\n"])
def test_ids_that_would_leave_the_folder_are_refused(tmp_path: Path, job_id: str) -> None:
    with pytest.raises(ArtefactError):
        RunDir.of(tmp_path, Scenario("1node"), job_id)


@pytest.mark.parametrize("job_id", ["519605", "519605_3", "12+0", "local-20260101T000000-1"])
def test_slurm_and_local_ids_are_paths(tmp_path: Path, job_id: str) -> None:
    assert RunDir.of(tmp_path, Scenario("1node"), job_id).root == tmp_path / "1node" / f"run_{job_id}"


def test_documented_file_names(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    assert run.records(3).name == "rank_3_metrics.jsonl"
    names = {
        "metrics.csv",
        "gpu_monitor.csv",
        "cpu_monitor.csv",
        "profiling_report.txt",
        "profiling_analysis.json",
    }
    names |= {"profiling_analysis.png", "profiling_analysis.svg", "sacct_summary.txt", "job_metadata.txt"}
    assert names == {
        path.name
        for path in (
            run.metrics_csv, run.gpu_csv, run.cpu_csv, run.report, run.analysis, run.plot_png, run.plot_svg,
            run.sacct_summary, run.job_metadata,
        )
    }  # fmt: skip
    assert SubmissionDir(tmp_path).job_ids.name == "job_ids.txt"
    assert flat_alias(tmp_path, Scenario("cpu_2node"), "42").name == "cpu_2node_42"


def test_records_and_nodes_are_found_in_numerical_order(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    for rank in (10, 2, 0):
        run.records(rank).touch()
    (tmp_path / "rank_x_metrics.jsonl").touch()
    for index in (10, 2):
        run.node(index).root.mkdir(parents=True)
    assert list(run.all_records()) == [0, 2, 10]
    assert [index for index, _ in run.nodes()] == [2, 10]


def test_submissions_are_oldest_first(tmp_path: Path) -> None:
    for name in ("run_20260102T000000", "run_20260101T000000"):
        (tmp_path / name).mkdir()
    assert [item.root.name for item in submissions(tmp_path)] == [
        "run_20260101T000000",
        "run_20260102T000000",
    ]


def test_only_ascii_digits_number_nodes_and_ranks(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    for name in ("node0", "node²", "node٣", "node", "node1x"):
        (tmp_path / "nodes" / name).mkdir(parents=True)
    for name in ("rank_1_metrics.jsonl", "rank_٣_metrics.jsonl"):
        (tmp_path / name).touch()
    assert [index for index, _ in run.nodes()] == [0]
    assert list(run.all_records()) == [1]
