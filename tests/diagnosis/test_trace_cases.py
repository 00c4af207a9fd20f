"""Public reports about traces, each as a small input: what must be said, and what must not."""

from __future__ import annotations

from pathlib import Path

import pytest

from aorta.artefacts.layout import RunDir
from aorta.commands._traces import analyze_traces
from aorta.diagnosis.analyse_run import analyse
from aorta.launch.rocprof_capture import rocprof_prefix
from aorta.metrics.trace_summary import REDUCER
from aorta.readers.run import read_run
from aorta.readers.run_traces import read_run_traces
from tests.support.synthetic import RunSpec, write_run
from tests.support.traced import NCCL, Job, Rank, write_job

PAIR = {0: Rank(), 1: Rank()}
HEADER = (
    '"Kind","Agent_Id","Queue_Id","Stream_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name",'
    '"Correlation_Id","Start_Timestamp","End_Timestamp"\n'
)


@pytest.mark.parametrize(
    "name",
    ["ncclDevKernel_AllReduce_Sum_f32_RING_LL", NCCL.lower(), "ncclKernel_AllReduce_RING_LL_Sum_float"],
)
def test_case_12_communication_kernels_of_any_nccl_are_communication(tmp_path: Path, name: str) -> None:
    found = analyze_traces([write_job(tmp_path, Job(PAIR, communication=name))])
    # 200 µs of a step of 1300, however the kernel is spelled.
    assert [row.comm_ms for row in found.breakdown.per_rank] == [pytest.approx(0.2)] * 2


def test_case_12_collectives_that_only_ranges_show_are_not_zero_per_cent(tmp_path: Path) -> None:
    found = analyze_traces([write_job(tmp_path, Job(PAIR, communication=None))])
    assert found.breakdown.per_rank == []
    assert (
        sum("communication not classified" in problem.reason for problem in found.data_quality.problems) == 2
    )


def kernel_trace(run: RunDir, rank: int) -> None:
    run.rocprof.mkdir(exist_ok=True)
    rows = "".join(
        f'"KERNEL_DISPATCH","Agent 4",1,0,9,{i},1,"gemm",{i},{1000 * i},{1000 * i + 500}\n'
        for i in range(1, 5)
    )
    (run.rocprof / f"x_1node_profile_rank{rank}_host_77_kernel_trace.csv").write_text(HEADER + rows)


def test_case_13_each_child_of_rocprof_writes_a_file_of_its_own_rank_and_pid(tmp_path: Path) -> None:
    argv, _ = rocprof_prefix(tmp_path, "x")
    assert argv[argv.index("-o") + 1] == "x_rank%env{RANK}%_%hostname%_%pid%"


def test_case_13_the_report_says_which_rank_left_no_trace(tmp_path: Path) -> None:
    run = write_run(tmp_path, RunSpec(device="cuda"))
    kernel_trace(run, 0)
    found = analyse(read_run(run, query_accounting=False), read_run_traces(run, REDUCER))
    assert any("rank 1" in note and "left no trace" in note for note in found.data_quality.notes)


def test_case_17_kernels_at_the_edges_of_captures_are_counted_and_not_blamed(tmp_path: Path) -> None:
    # As many all-reduces were still running when each rank's capture began.
    ranks = {rank: Rank(early=early) for rank, early in enumerate((7, 2, 7, 0))}
    found = analyze_traces([write_job(tmp_path, Job(ranks))])
    assert found.verdict.kind == "healthy"
    # 16 from before, and one a rank in the last step, which no other step follows.
    assert any(
        note.startswith(f"{16 + 4} communication kernels at the edges") for note in found.data_quality.notes
    )
    assert all(item.lost_ms_per_step == 0 for item in found.blame)
