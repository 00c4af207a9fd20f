"""Exports of a node's reports, with a stand-in for nsys and its importer."""

from __future__ import annotations

import sqlite3
import stat
from pathlib import Path

import msgspec
import pytest

from aorta.artefacts.io import read_json, write_json
from aorta.artefacts.layout import RunDir
from aorta.artefacts.records import ClockTriple, Manifest, NodeInfo, ProfilerChoice, ResolvedPlan
from aorta.config.load import load_config, save_config
from aorta.errors import ArtefactError
from aorta.runner.export import export_node
from tests.support.nsys import SECRET, Export, plant


def executable(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def run(tmp_path):
    """A run of one node and two ranks under nsys, whose exports are all of one with planted secrets."""
    return make(tmp_path, f'while [ "$1" != --output ]; do shift; done; cp {tmp_path}/made.sqlite "$2"')


def make(folder, nsys, *, keep=False):
    program = executable(folder / "host/target-linux-x64/nsys", nsys)
    plant(Export(ranges=[(0, 5, 7, "aorta.step", 59)]).write(folder / "made.sqlite"))
    run = RunDir(folder / "run")
    run.nsys_reports.mkdir(parents=True)
    choice = ProfilerChoice(requested="nsys", resolved="nsys", reason="", program=str(program))
    node = NodeInfo(
        node_index=0, host="h", slurm_node=None, attempt=0, cpus_usable=1, memory_limit_bytes=None, gpus=[],
        processes=2, clock=ClockTriple(realtime_ns=0, monotonic_ns=0, boottime_ns=0), profiler=choice,
        packages={}, environment={},
    )  # fmt: skip
    plan = ResolvedPlan(
        scenario="1node", nodes=1, processes_per_node=2, gpus_per_node=None, command=[], profiler="nsys",
        monitor_interval_s=1,
    )  # fmt: skip
    manifest = Manifest(
        run_id="r", job_id="j", executor="local", attempt=0, scenario="1node", started_wall_ns=0,
        submitted_wall_ns=None, code_version="", world_size=2, plan=plan, nodes=[node], nodes_missing=[],
        shared_machine=True,
    )  # fmt: skip
    write_json(run.manifest, manifest)
    save_config(load_config(None, [f"capture.keep_environment={str(keep).lower()}"]), run.config)
    return run


def test_each_report_has_a_scrubbed_export(run, capsys):
    for rank in range(2):
        (run.nsys_reports / f"x_rank{rank}_h_1.nsys-rep").write_text("report")
    export_node(run, 0)
    said = capsys.readouterr().out
    assert "lost: " not in said
    assert sorted(path.name for path in run.nsys.iterdir()) == [
        "private", "summary_stats.csv", "x_rank0_h_1.nsys-rep", "x_rank0_h_1.sqlite",
        "x_rank1_h_1.nsys-rep", "x_rank1_h_1.sqlite",
    ]  # fmt: skip
    link = run.nsys / "x_rank0_h_1.nsys-rep"
    assert (link.readlink(), link.read_text()) == (Path("private/x_rank0_h_1.nsys-rep"), "report")
    assert SECRET not in (run.nsys / "x_rank0_h_1.sqlite").read_bytes()
    assert sorted(path.name for path in run.nsys_reports.iterdir()) == [
        "x_rank0_h_1.nsys-rep",
        "x_rank1_h_1.nsys-rep",
    ]


def test_the_environment_is_kept_where_that_is_asked_for(tmp_path):
    copy = f'while [ "$1" != --output ]; do shift; done; cp {tmp_path}/made.sqlite "$2"'
    run = make(tmp_path, copy, keep=True)
    (run.nsys_reports / "x_rank0_h_1.nsys-rep").write_text("report")
    export_node(run, 0)
    assert SECRET in (run.nsys / "x_rank0_h_1.sqlite").read_bytes()


def test_an_export_with_a_secret_where_no_version_had_one_is_kept_back(run, tmp_path, capsys, monkeypatch):
    with sqlite3.connect(tmp_path / "made.sqlite") as db:
        db.execute("CREATE TABLE NEW_TABLE (line BLOB)")
        db.execute("INSERT INTO NEW_TABLE VALUES (CAST('run with correct horse battery' AS BLOB))")
    (run.nsys_reports / "x_rank0_h_1.nsys-rep").write_text("report")
    monkeypatch.setenv("MY_PASSWORD", "correct horse battery")
    export_node(run, 0)
    said = "lost: export of x_rank0_h_1.nsys-rep: it contains the value of MY_PASSWORD"
    assert said in capsys.readouterr().out
    assert list(run.root.rglob("*.sqlite")) == []


def test_raw_data_is_converted_by_the_importer_beside_nsys(run, tmp_path, capsys):
    executable(tmp_path / "host/linux-desktop-x64/QdstrmImporter", 'cp "$2" "$4"')
    (run.nsys_reports / "x_rank0_h_1.qdstrm").write_text("raw")
    export_node(run, 0)
    assert "lost: " not in capsys.readouterr().out
    assert [path.name for path in run.nsys_reports.iterdir()] == ["x_rank0_h_1.nsys-rep"]
    assert (run.nsys / "x_rank0_h_1.sqlite").exists()


@pytest.mark.parametrize(
    ("importer", "words"),
    [
        (None, "x_rank0_h_1.qdstrm is raw data: no QdstrmImporter beside"),
        (
            "echo 'libdw.so.1: cannot open shared object file'; exit 127",
            "it needs the libraries libdw1 and libelf1",
        ),
        (
            "echo done",
            "x_rank0_h_1.qdstrm could not be converted to a report: done",
        ),  # returns 0, makes nothing
    ],
)
def test_raw_data_that_cannot_be_converted_stays(run, tmp_path, capsys, monkeypatch, importer, words):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    if importer is not None:
        executable(tmp_path / "host/linux-desktop-x64/QdstrmImporter", importer)
    (run.nsys_reports / "x_rank0_h_1.qdstrm").write_text("raw")
    export_node(run, 0)
    (lost,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("lost: ")]
    assert words in lost
    assert (run.nsys_reports / "x_rank0_h_1.qdstrm").exists()


def test_a_report_that_nsys_refuses_leaves_no_export(tmp_path, capsys):
    run = make(tmp_path, "echo 'progress'; echo 'ERROR: truncated' >&2; exit 1")
    (run.nsys_reports / "x_rank0_h_1.nsys-rep").write_text("half")
    export_node(run, 0)
    assert "lost: export of x_rank0_h_1.nsys-rep: ERROR: truncated" in capsys.readouterr().out
    assert sorted(path.name for path in run.nsys.iterdir()) == [
        "private", "summary_stats.csv", "x_rank0_h_1.nsys-rep",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "script", ["echo done", 'while [ "$1" != --output ]; do shift; done; : > "$2"; echo done']
)
def test_an_export_that_was_not_made_is_told_though_nsys_returned_0(tmp_path, capsys, script):
    run = make(tmp_path, script)
    (run.nsys_reports / "x_rank0_h_1.nsys-rep").write_text("report")
    export_node(run, 0)
    assert "lost: export of x_rank0_h_1.nsys-rep: done" in capsys.readouterr().out
    assert list(run.root.rglob("*.sqlite")) == []


def test_an_export_that_is_no_database_is_never_shown(tmp_path, capsys):
    run = make(tmp_path, 'while [ "$1" != --output ]; do shift; done; echo secret > "$2"')
    (run.nsys_reports / "x_rank0_h_1.nsys-rep").write_text("report")
    export_node(run, 0)
    assert "lost: export of x_rank0_h_1.nsys-rep: file is not a database" in capsys.readouterr().out
    assert sorted(path.name for path in run.nsys.iterdir()) == [
        "private", "summary_stats.csv", "x_rank0_h_1.nsys-rep",
    ]  # fmt: skip


def test_a_node_that_the_run_has_not_is_refused(run):
    with pytest.raises(ArtefactError, match="no node 3"):
        export_node(run, 3)


def test_a_summary_whose_reports_are_gone_stays(run, capsys):
    for rank in range(2):
        (run.nsys_reports / f"x_rank{rank}_h_1.nsys-rep").write_text("report")
    export_node(run, 0)
    before = run.summary_stats("nsys").read_text()
    for report in run.nsys_reports.iterdir():
        report.unlink()
    capsys.readouterr()
    export_node(run, 0)
    assert "lost: no report of this node is left" in capsys.readouterr().out
    assert run.summary_stats("nsys").read_text() == before


def test_files_of_rocprofv3_that_cannot_be_scrubbed_are_for_their_owner(run, capsys):
    manifest = read_json(run.manifest, Manifest)
    choice = ProfilerChoice(requested="rocprofv3", resolved="rocprofv3", reason="", program="rocprofv3")
    nodes = [msgspec.structs.replace(manifest.nodes[0], profiler=choice)]
    write_json(run.manifest, msgspec.structs.replace(manifest, nodes=nodes))
    run.rocprof.mkdir()
    for name in ("x_rank0_h_1_results.pftrace", "x_rank0_h_1_kernel_trace.csv"):
        (run.rocprof / name).write_text("text")
        (run.rocprof / name).chmod(0o644)
    export_node(run, 0)
    assert "x_rank0_h_1_results.pftrace: readable only by its owner" in capsys.readouterr().out
    modes = {path.suffix: stat.S_IMODE(path.stat().st_mode) for path in run.rocprof.glob("x_*")}
    assert modes == {".pftrace": 0o600, ".csv": 0o644}
