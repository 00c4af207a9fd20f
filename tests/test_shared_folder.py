"""A results folder that others write to as well: what they leave there costs nobody else a report."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from click.testing import Result

from aorta.artefacts.io import append_line
from aorta.artefacts.layout import RunDir
from aorta.artefacts.records import SubmittedJob
from aorta.artefacts.submissions import SubmissionDir
from aorta.commands.analyze import NO_VERDICT
from aorta.errors import ArtefactError
from aorta.launch.submitted import read_jobs
from aorta.readers import nsys, rocprof_rocpd
from aorta.readers.run import read_run
from tests.support import commands
from tests.support.rights import ordinary
from tests.support.synthetic import RunSpec, write_run

DENIED = "Permission denied"
SPEC = RunSpec(steps=24)
RANKS = SPEC.nodes * SPEC.ranks_per_node


@pytest.fixture
def mine(tmp_path: Path) -> RunDir:
    """A run and its submission."""
    run = write_run(tmp_path / "results", SPEC)
    submission = SubmissionDir(tmp_path / "results" / "run_20260102_000000")
    job = SubmittedJob(
        job_id="101", scenario="1node", nodes=1, run_dir=str(run.root), submitted_wall_ns=1, executor="local"
    )
    append_line(submission.jobs, json.dumps({name: getattr(job, name) for name in job.__struct_fields__}))
    return run


def call(*words: str) -> Result:
    """What a command says to a user for whom modes count; it must not end in a fault of ours."""
    with ordinary():
        done = commands.run(*words)
    assert done.exception is None or done.exit_code == NO_VERDICT, done.exception
    return done


def aggregated(run: RunDir) -> str:
    """The document over all runs, after a check that it has the verdict of `run`."""
    results, docs = run.root.parents[1], run.root.parents[2] / "docs"
    call("aggregate", str(results), "--docs", str(docs))
    made = json.loads((docs / "BOTTLENECK_ANALYSIS.json").read_text())
    assert made["scenarios"][0]["scenario"] == "1node"
    assert made["scenarios"][0]["data_quality"]["ranks_seen"] == RANKS
    return (docs / "BOTTLENECK_ANALYSIS.md").read_text()


@contextlib.contextmanager
def closed(folders: Sequence[Path], mode: int = 0) -> Iterator[None]:
    """The folders without the right to list or to enter them."""
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    for folder in folders:
        folder.chmod(mode)
    try:
        yield
    finally:
        for folder in folders:
            folder.chmod(0o700)


@pytest.mark.parametrize("mode", [0o300, 0o600])
def test_closed_folders_of_another_user_are_named_and_the_rest_goes_on(mine: RunDir, mode: int) -> None:
    results = mine.root.parents[1]
    names = ("run_20200101_000000", "run_20990101_000000", "2node", "3node/run_7", "1node/run_7")
    folders = [results / name for name in names]
    with closed(folders, mode):
        said = aggregated(mine).replace("\\", "")
        state = call("status", "--results", str(results)).output
        waited = call("wait", "--results", str(results), "--interval", "0.1").output
    assert [folder for folder in folders if f"{folder}: {DENIED}" not in said] == []
    assert f"note: {folders[1]} is left out: {DENIED}" in state  # newer than the submission that is shown
    assert "101" in state
    assert "101" in waited


@pytest.mark.parametrize(
    "names", [["nodes"], ["nodes/node0", "nodes/node1/traces", "torch_profiler", "attempt_1"]]
)
def test_closed_folders_in_a_run_are_named(mine: RunDir, names: list[str]) -> None:
    with closed([mine.root / name for name in names]):
        call("analyze", str(mine.root), "--no-accounting")
    problems = json.loads(mine.analysis.read_text())["data_quality"]["problems"]
    said = {item["file"]: item["reason"] for item in problems}
    assert {said.get(name) for name in names} == {f"the folder cannot be read: {DENIED}"}


def test_a_submission_that_is_named_and_closed_is_an_error_with_its_name(mine: RunDir) -> None:
    submission = mine.root.parents[1] / "run_20260102_000000"
    submission.chmod(0)
    try:
        for words in (["status", str(submission)], ["wait", str(submission)]):
            with ordinary():
                error = commands.refused(*words)
            assert f"{submission}/jobs.jsonl: {DENIED}" in error.message
    finally:
        submission.chmod(0o700)


def sparse(path: Path) -> None:
    """5 GB that take no room on the disk."""
    path.touch()
    os.truncate(path, 5 << 30)


SPECIAL: dict[str, tuple[Callable[[Path], object], str]] = {
    "FIFO": (os.mkfifo, "is a FIFO, not a regular file"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "is a device, not a regular file"),
    "sparse": (sparse, "5,368,709,120 bytes"),
    "folder": (Path.mkdir, "Is a directory"),
}
IN_A_RUN = (
    "rank_1_metrics.jsonl", "manifest.json", "config.yaml", "nodes/node0/status.json", "gpu_monitor.csv",
    "nodes/node0/cpu_monitor.csv", "nodes/node0/gpu_monitor.csv", "sacct_summary.txt", "session.json",
    "rank_1_instrument.json", "rank_0_flight.json", "planned.json", "injected.json", "nodes/node0/info.json",
    "nodes/node0/standstill.json", "nodes/node0/stops.json", "nodes/node0/monitor_status.json",
    "torch_profiler/rank_1/a.pt.trace.json", "nsys/x_rank1.sqlite", "nodes/node0/traces/rank_1.json",
)  # fmt: skip


@pytest.mark.parametrize("kind", SPECIAL)
def test_special_and_huge_files_in_a_run_cost_themselves(mine: RunDir, kind: str) -> None:
    make, reason = SPECIAL[kind]
    for name in IN_A_RUN:
        path = mine.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        make(path)
    call("analyze", str(mine.root), "--no-accounting")
    made = json.loads(mine.analysis.read_text())
    assert made["data_quality"]["ranks_seen"] == RANKS - 1
    said = {item["file"]: item["reason"] for item in made["data_quality"]["problems"]}
    assert reason in said["manifest.json"]
    assert reason in said["config.yaml"]
    assert "rank_1_metrics.jsonl" in said
    assert "nodes/node0/cpu_monitor.csv" in said
    call("status", "--results", str(mine.root.parents[1]))


@pytest.mark.parametrize("line", [b"", b"{}"])
def test_a_file_of_short_useless_lines_is_given_up(mine: RunDir, line: bytes) -> None:
    for name in ("rank_1_metrics.jsonl", "nodes/node0/cpu_monitor.csv"):
        with (mine.root / name).open("ab") as stream:
            stream.write((line + b"\n") * 1_000_000)
    data = read_run(mine, query_accounting=False)
    said = {item.file: item.reason for item in data.problems}
    assert "left out" in said["nodes/node0/cpu_monitor.csv"]
    assert len(data.records.by_rank[1]) == SPEC.steps
    assert line == b"" or "1,000,000 of 1,000,024 lines are not usable" in said["rank_1_metrics.jsonl"]


def test_an_endless_view_is_no_table_of_a_trace(tmp_path: Path) -> None:
    """`StringIds` as a view has more rows than any memory holds."""
    path = tmp_path / "x.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.executescript(
            "CREATE TABLE NVTX_EVENTS"
            " (start INT, end INT, eventType INT, text TEXT, globalTid INT, textId INT);"
            "INSERT INTO NVTX_EVENTS VALUES (1, 2, 59, 'a', 1, NULL);"
            "CREATE VIEW StringIds AS WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n)"
            " SELECT id, 'x' AS value FROM n;"
        )
    assert [trace.format for trace in nsys.read(path)] == ["nsys"]


def test_an_endless_view_of_rocpd_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.executescript(
            "CREATE VIEW kernels AS WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n)"
            ' SELECT 1 AS pid, id AS start, id + 1 AS "end", 0 AS agent_type_index, 0 AS stream_id,'
            " 0 AS queue_id, id AS corr_id, 'k' AS name FROM n;"
        )
    with pytest.raises(ArtefactError, match=r"damaged|more rows than the file can contain"):
        rocprof_rocpd.read(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
def test_each_user_gets_a_report_of_what_is_theirs(mine: RunDir) -> None:
    """A colleague's newer run and submission are readable, and are not this user's."""
    results = mine.root.parents[1]
    other = write_run(results, RunSpec(steps=24, job_id="999", extra_compute_ms={1: 40.0}))
    submission = SubmissionDir(results / "run_20990101_000000")
    append_line(submission.jobs, '{"job_id": "999", "scenario": "1node", "nodes": 1, "run_dir": "x", '
                '"submitted_wall_ns": 9, "executor": "local"}')  # fmt: skip
    for path in (other.root, submission.root):
        os.chown(path, 65534, 65534)
    assert "run_999" not in aggregated(mine)
    assert "999" not in call("status", "--results", str(results)).output
    for path in (mine.root, results / "run_20260102_000000"):
        os.chown(path, 65534, 65534)
    assert "run_999" in aggregated(mine)  # whoever has none is shown the newest


def test_a_list_of_jobs_of_useless_lines_is_given_up(mine: RunDir) -> None:
    submission = SubmissionDir(mine.root.parents[1] / "run_20260102_000000")
    with submission.jobs.open("ab") as stream:
        stream.write(b"\n" * 1_000_000)
    told: list[str] = []
    assert [job.job_id for job in read_jobs(submission, told.append)] == ["101"]
    assert len(told) == 102
    assert told[-1] == f"{submission.jobs}: the lines after 102 are left out"
