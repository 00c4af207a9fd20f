"""`aorta reduce`: each node reduces the traces of its own ranks, and reading them back changes nothing."""

from __future__ import annotations

import gzip
import os
import shutil
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from aorta.artefacts.io import read_json
from aorta.artefacts.layout import RunDir
from aorta.artefacts.reduction import Reduction, TraceSummary
from aorta.cli import group
from aorta.diagnosis.analyse_run import analyse
from aorta.errors import ArtefactError
from aorta.metrics.trace_summary import REDUCER
from aorta.readers.run import read_run
from aorta.readers.run_traces import read_run_traces, trace_files
from tests.support.synthetic import RunSpec, write_run
from tests.support.traced import Job, Rank, write_job


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """Two nodes of two ranks, each with a torch.profiler trace; rank 3 computes longer."""
    made = write_run(tmp_path / "results", RunSpec(nodes=2, ranks_per_node=2))
    write_job(tmp_path / "traces", Job({**{rank: Rank() for rank in range(3)}, 3: Rank(compute=1600)}))
    for rank in range(4):
        folder = made.torch_profiler / f"rank_{rank}"
        folder.mkdir(parents=True)
        shutil.copy(tmp_path / f"traces/rank{rank}.pt.trace.json", folder / f"rank_{rank}.0.pt.trace.json")
        # What is kept for Chrome is the same trace again.
        shutil.copy(tmp_path / f"traces/rank{rank}.pt.trace.json", folder / "trace.json")
    return made


def reduce(run: RunDir, *options: str) -> Result:
    return CliRunner().invoke(group, ["reduce", str(run.root), *options])


def test_a_node_reduces_its_own_ranks(run: RunDir) -> None:
    done = reduce(run, "--node", "1")
    assert done.exit_code == 0, done.output
    assert done.output == "node1: reduced rank 2, 3\n"
    assert list(run.node(1).trace_summaries()) == [2, 3]
    assert run.node(0).trace_summaries() == {}
    summary = read_json(run.node(1).trace_summary(3), TraceSummary)
    assert (summary.rank, summary.format, summary.whole, len(summary.steps)) == (3, "kineto", True, 6)
    # 1600 + the optimizer's 100 µs of kernels a step, exactly.
    assert {step.compute_ns for step in summary.steps} == {1_700_000}
    assert read_json(run.node(1).reduction, Reduction).ranks == [2, 3]


def test_summaries_and_traces_say_the_same(run: RunDir) -> None:
    direct = read_run_traces(run, REDUCER)
    assert not direct.from_summaries
    assert reduce(run).exit_code == 0
    read = read_run_traces(run, REDUCER)
    assert read.from_summaries
    assert read.summaries == direct.summaries
    assert [summary.rank for summary in read.summaries] == [0, 1, 2, 3]
    shutil.rmtree(run.torch_profiler)
    assert read_run_traces(run, REDUCER).summaries == direct.summaries


def test_a_trace_newer_than_its_summary_counts(run: RunDir) -> None:
    reduce(run)
    trace = trace_files(run)[0][0]
    trace.write_text('{"traceEvents": []}')
    later = run.node(0).trace_summary(0).stat().st_mtime_ns + 10**9
    os.utime(trace, ns=(later, later))
    found = read_run_traces(run, REDUCER)
    assert not found.from_summaries
    assert found.summaries[0].gpu_events == 0
    assert found.summaries[1].gpu_events > 0


def later_than_its_summary(run: RunDir, rank: int, content: bytes | None = None) -> None:
    for trace in trace_files(run)[rank]:
        trace.write_bytes(trace.read_bytes() if content is None else content)
        later = run.node(0).trace_summary(rank).stat().st_mtime_ns + 10**9
        os.utime(trace, ns=(later, later))


def test_a_copy_of_a_run_has_its_summaries(run: RunDir) -> None:
    """Its files may get their times in any order, and the profiler that could read them is elsewhere."""
    reduce(run)
    later_than_its_summary(run, 0)
    found = read_run_traces(run, REDUCER)
    assert found.from_summaries
    assert (found.problems, found.notes) == ((), ())


def test_a_run_that_moved_names_its_files_where_they_are(run: RunDir, tmp_path: Path) -> None:
    reduce(run)
    moved = RunDir(tmp_path / "elsewhere" / run.root.name)
    moved.root.parent.mkdir()
    run.root.rename(moved.root)
    sources = [summary.source for summary in read_run_traces(moved, REDUCER).summaries]
    assert sources == [str(trace_files(moved)[rank][0]) for rank in range(4)]


def test_a_summary_older_than_a_trace_that_cannot_be_read_is_better_than_nothing(run: RunDir) -> None:
    reduce(run)
    later_than_its_summary(run, 0, b"other")
    found = read_run_traces(run, REDUCER)
    assert [summary.rank for summary in found.summaries] == [0, 1, 2, 3]
    assert found.notes == ("rank_0.json is older than the trace, which cannot be read on this machine",)
    assert len(found.problems) == 1
    run.node(0).trace_summary(0).unlink()
    assert [summary.rank for summary in read_run_traces(run, REDUCER).summaries] == [1, 2, 3]


def test_a_trace_that_cannot_be_read_costs_itself(run: RunDir) -> None:
    broken = trace_files(run)[1][0]
    broken.write_bytes(gzip.compress(b"{}")[:5])
    done = reduce(run, "--node", "0")
    assert done.exit_code == 0
    assert "reduced rank 0\n" in done.output
    assert "rank_1.0.pt.trace.json" in done.output
    found = read_run_traces(run, REDUCER)
    assert [summary.rank for summary in found.summaries] == [0, 2, 3]
    assert len(found.problems) == 1


def test_a_damaged_summary_is_named_and_the_trace_is_read(run: RunDir) -> None:
    reduce(run)
    path = run.node(0).trace_summary(1)
    path.write_bytes(path.read_bytes()[:100])
    found = read_run_traces(run, REDUCER)
    assert [summary.rank for summary in found.summaries] == [0, 1, 2, 3]
    assert [problem.file for problem in found.problems] == [str(path)]


def test_a_summary_of_a_newer_version_is_refused(run: RunDir) -> None:
    reduce(run)
    path = run.node(0).trace_summary(0)
    newer = msgspec.structs.replace(read_json(path, TraceSummary), schema_version=99)
    path.write_bytes(msgspec.json.encode(newer))
    assert "schema version 99" in read_run_traces(run, REDUCER).problems[0].reason


def test_a_summary_that_names_a_step_it_lacks_is_a_problem_of_its_file(run: RunDir) -> None:
    reduce(run)
    shutil.rmtree(run.torch_profiler)
    path = run.node(0).trace_summary(1)
    summary = read_json(path, TraceSummary)
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(summary, steps=summary.steps[1:])))
    made = analyse(read_run(run, query_accounting=False), read_run_traces(run, REDUCER))
    named = [problem for problem in made.data_quality.problems if problem.file == str(path)]
    assert len(named) == 1
    assert "a collective belongs to step 0, which is missing" in named[0].reason
    # The others alone cannot stand for the run: its records do.
    assert made.breakdown.timing == "host"


def test_a_run_without_traces_has_nothing_to_reduce(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunSpec(nodes=1, ranks_per_node=2))
    done = reduce(run, "--node", "0")
    assert (done.exit_code, done.output) == (0, "node0: no trace to reduce\n")
    assert not run.node(0).reduction.exists()
    found = read_run_traces(run, REDUCER)
    assert (found.summaries, found.problems, found.from_summaries) == ((), (), False)


@pytest.mark.parametrize(
    ("node", "said"), [("7", "which ranks run on node 7"), (None, "is not a run directory")]
)
def test_what_is_no_run_or_no_node_is_refused(
    run: RunDir, tmp_path: Path, node: str | None, said: str
) -> None:
    where, options = (run.root, ["--node", node]) if node else (tmp_path, [])
    done = CliRunner().invoke(group, ["reduce", str(where), *options])
    assert isinstance(done.exception, ArtefactError)
    assert said in done.exception.message


def test_files_that_are_no_ranks_or_private_are_left_alone(run: RunDir) -> None:
    for name in ("summary_stats.csv", "private/run_rank0_h_1.sqlite"):
        path = run.nsys / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("rank,kind\n")
    assert {path.parent.parent.name for paths in trace_files(run).values() for path in paths} == {
        "torch_profiler"
    }
