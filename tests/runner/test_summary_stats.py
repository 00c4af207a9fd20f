"""Sums of what the profiler saw, by rank and name."""

from __future__ import annotations

import sqlite3

from aorta.artefacts.layout import RunDir
from aorta.runner.summary_stats import COLUMNS, Stats, add_nsys, add_rocpd, add_rocprof_csv, merge, write
from tests.support.nsys import Export


def test_an_export_of_nsys(tmp_path):
    export = Export(
        kernels=[(0, 10, 0, 7, 1, 5, "gemm"), (20, 25, 0, 7, 2, 5, "gemm"), (30, 36, 0, 7, 3, 5, "gemm")],
        copies=[(0, 4, 0, 7, 4, 5, 4096, 1), (5, 6, 0, 7, 5, 5, 1, 9)],
        calls=[(0, 2, 5, "cudaLaunchKernel", 1)],
        ranges=[(0, 40, 5, "aorta.step", 59), (41, None, 5, "open", 59), (42, 43, 5, "mark", 34)],
        text_ids=True,
    ).write(tmp_path / "x.sqlite")
    stats = Stats(3)
    add_nsys(export, stats)
    assert stats.rows() == [
        ["3", "kernel", "gemm", "3", "21", "7.0", "6.0", "5", "10", ""],
        ["3", "copy", "memcpy HtoD", "1", "4", "4.0", "4.0", "4", "4", "4096"],
        ["3", "copy", "memcpy kind 9", "1", "1", "1.0", "1.0", "1", "1", "1"],
        ["3", "nvtx", "aorta.step", "1", "40", "40.0", "40.0", "40", "40", ""],
        ["3", "api", "cudaLaunchKernel", "1", "2", "2.0", "2.0", "2", "2", ""],
    ]


def test_an_export_without_events_has_no_rows_and_a_measured_zero_has_one(tmp_path):
    empty, zero = Stats(0), Stats(0)
    add_nsys(Export().write(tmp_path / "empty.sqlite"), empty)
    add_nsys(Export(ranges=[(5, 5, 5, "step", 59)]).write(tmp_path / "zero.sqlite"), zero)
    assert empty.rows() == []
    assert zero.rows() == [["0", "nvtx", "step", "1", "0", "0.0", "0.0", "0", "0", ""]]


def test_rocprof_names_with_commas_and_quotes(tmp_path):
    path = tmp_path / "x_rank0_h_1_kernel_trace.csv"
    path.write_text(
        '"Kind","Agent_Id","Kernel_Name","Correlation_Id","Start_Timestamp","End_Timestamp","LDS"\n'
        '"KERNEL_DISPATCH","Agent 4","void f<"a", int>(float*, int)",1,100,130,0\n'
        '"KERNEL_DISPATCH","Agent 4","void f<"a", int>(float*, int)",2,200,210,0\n'
        '"KERNEL_DISPATCH","Agent 4","cut'
    )
    stats = Stats(0)
    assert add_rocprof_csv(path, "kernel", stats) == 1
    assert stats.rows() == [
        ["0", "kernel", 'void f<"a", int>(float*, int)', "2", "40", "20.0", "20.0", "10", "30", ""]
    ]


def test_a_rocpd_database(tmp_path):
    path = tmp_path / "x.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE t (start INT, end INT, name TEXT, size INT, category TEXT)")
        db.execute("INSERT INTO t VALUES (0, 9, 'k', 64, 'MARKER_CORE_API')")
        for view in ("kernels", "memory_copies", "regions"):
            db.execute(f"CREATE VIEW {view} AS SELECT * FROM t")
    stats = Stats(1)
    add_rocpd(path, stats)
    assert [(row[1], row[4], row[-1]) for row in stats.rows()] == [
        ("kernel", "9", ""),
        ("copy", "9", "64"),
        ("nvtx", "9", ""),
    ]


def test_nodes_parts_make_the_runs_file(tmp_path):
    run = RunDir(tmp_path)
    for node, rank in ((1, 11), (0, 2)):
        stats = Stats(rank)
        stats.add("kernel", "a, b", 0, 3)
        write(run.node(node).summary_stats, stats.rows())
    merge(run, "nsys")
    assert run.summary_stats("nsys").read_text().splitlines() == [
        ",".join(COLUMNS),
        '2,kernel,"a, b",1,3,3.0,3.0,3,3,',
        '11,kernel,"a, b",1,3,3.0,3.0,3,3,',
    ]
