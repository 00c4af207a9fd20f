"""Finding and reading a run directory, whole or in pieces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aorta.artefacts.layout import RunDir
from aorta.errors import ArtefactError
from aorta.readers.directory import find_run, open_run
from aorta.readers.manifest import read_account
from aorta.readers.run import read_run
from tests.support.synthetic import RunSpec, write_run


def test_a_run_is_found_through_its_short_name(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunSpec(scenario="cpu_2node", nodes=2, steps=2, job_id="7"))
    alias = tmp_path / "cpu_2node_7"
    alias.symlink_to("cpu_2node/run_7")
    assert open_run(alias).root == run.root.resolve()


def test_records_alone_are_a_run(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunSpec(steps=2))
    (tmp_path / "artifacts").mkdir()
    run.records(0).rename(tmp_path / "artifacts" / "rank_0_metrics.jsonl")
    assert find_run(tmp_path / "artifacts") is not None


def test_other_folders_are_refused_with_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match=r"is not a run directory[\s\S]*run_<JOB_ID>"):
        open_run(tmp_path)
    with pytest.raises(ArtefactError, match="does not exist"):
        open_run(tmp_path / "nothing")
    run = write_run(tmp_path, RunSpec(steps=2))
    (tmp_path / "mine" / "results").mkdir(parents=True)
    (tmp_path / "mine" / "results" / "profiling").symlink_to(run.root.parents[1])
    for folder in (
        run.root.parent,
        run.root.parents[1],
        tmp_path / "mine" / "results",
        tmp_path / "mine",
    ):
        with pytest.raises(
            ArtefactError, match=r"the folder contains runs; name one, such as .*run_101"
        ) as told:
            open_run(folder)
        command = told.value.hint.partition("`")[2].rstrip("`")
        assert Path(command.removeprefix("aorta aggregate ")).resolve() == run.root.parents[1].resolve()


def test_expected_nodes_are_those_of_the_running_job(tmp_path: Path) -> None:
    """The first poll of a pending job shows one node; its manifest, written in the job, has four."""
    run = write_run(tmp_path, RunSpec(nodes=4, ranks_per_node=1, steps=2))
    manifest = json.loads(run.manifest.read_text())
    manifest["nodes"], manifest["nodes_missing"] = manifest["nodes"][:3], [3]
    run.manifest.write_text(json.dumps(manifest))
    account = read_account(run)
    assert account.nodes_expected == 4
    assert account.status is not None
    assert [node.node_index for node in account.status.nodes] == [0, 1, 2, 3]


def test_markers_are_merged_anew(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunSpec(nodes=2, steps=2))
    marker = json.loads(run.node(1).status.read_text())
    run.node(1).status.write_text(json.dumps({**marker, "state": "failed"}))
    account = read_account(run)
    assert account.status is not None
    assert account.status.state == "failed"
    run.node(1).status.unlink()
    account = read_account(run)
    assert account.status is not None
    assert account.status.state == "running"
    assert account.status.nodes_missing == [1]
    assert [problem.file for problem in account.problems] == ["nodes/node1/status.json"]


def test_markers_of_an_earlier_attempt_do_not_count(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunSpec(nodes=2, steps=2))
    marker = json.loads(run.node(1).status.read_text())
    run.node(1).status.write_text(json.dumps({**marker, "attempt": 4}))
    account = read_account(run)
    assert account.status is not None
    assert account.status.nodes_missing == [1]


def test_a_newer_schema_is_refused_not_misread(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunSpec(steps=2))
    manifest = json.loads(run.manifest.read_text())
    run.manifest.write_text(json.dumps({**manifest, "schema_version": 99}))
    account = read_account(run)
    assert account.manifest is None
    assert "schema version 99" in account.problems[0].reason


def test_a_broken_configuration_falls_back_and_says_so(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunSpec(steps=2))
    run.config.write_text("thresholds:\n  data_wait_pct: many\n")
    account = read_account(run)
    assert account.config is None
    assert account.problems[0].file == "config.yaml"
    assert "thresholds.data_wait_pct" in account.problems[0].reason


@pytest.mark.parametrize(
    "broken", ["manifest.json", "config.yaml", "nodes/node0/status.json", "nodes/node0/info.json"]
)
@pytest.mark.parametrize("content", ["", "{", "\0\xff", None])
def test_any_file_may_be_missing_or_broken(tmp_path: Path, broken: str, content: str | None) -> None:
    run = write_run(tmp_path, RunSpec(steps=3))
    run.manifest.unlink()
    path = run.root / broken
    path.unlink(missing_ok=True)
    if content is not None:
        path.write_text(content, encoding="latin-1")
    data = read_run(RunDir(run.root), query_accounting=False)
    assert len(data.records.by_rank) == 2
    assert data.ranks_expected == 2


@pytest.mark.parametrize("size", [0, -1, 10**12])
def test_a_world_size_that_cannot_be_is_named_and_the_records_count(tmp_path: Path, size: int) -> None:
    run = write_run(tmp_path, RunSpec(steps=3))
    manifest = json.loads(run.manifest.read_text())
    run.manifest.write_text(json.dumps({**manifest, "world_size": size}))
    data = read_run(run, query_accounting=False)
    assert data.ranks_expected == 2
    assert [(item.file, item.reason) for item in data.problems] == [
        ("manifest.json", f"world_size is {size}, expected 1 to 1000000: the file is not used")
    ]


def test_a_run_in_another_scenarios_folder_is_named(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunSpec(nodes=2, steps=2))
    assert read_account(run).problems == ()
    other = tmp_path / "4node" / run.root.name
    other.parent.mkdir()
    run.root.rename(other)
    account = read_account(RunDir(other))
    assert account.nodes_expected == 2
    assert [item.reason for item in account.problems] == [
        "is from 2node, but the run is in 4node; the nodes and ranks in the manifest are used"
    ]


@pytest.mark.parametrize(
    ("count", "value"),
    [
        ("cpus_usable", -4),
        ("cpus_usable", 0),
        ("processes", -1),
        ("cpus_machine", -1),
        ("memory_limit_bytes", -1),
    ],
)
def test_counts_that_cannot_be_are_not_believed(tmp_path: Path, count: str, value: int) -> None:
    run = write_run(tmp_path, RunSpec(steps=24))
    for path in (run.manifest, run.node(0).info):
        assert read_account(run).infos
        document = json.loads(path.read_text())
        node = document["nodes"][0] if "nodes" in document else document
        node[count] = value
        path.write_text(json.dumps(document))
        if path == run.manifest:
            continue
        account = read_account(run)
        assert account.manifest is None
        assert account.infos == {}
        reasons = [problem.reason for problem in account.problems]
        assert sum(f"{count} of node 0 is {value}, expected" in reason for reason in reasons) == 2
