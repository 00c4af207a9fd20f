"""Nsight Systems exports: columns, ranks, versions, damage."""

from __future__ import annotations

import contextlib
import gzip
import sqlite3
from pathlib import Path

import pytest

from aorta.artefacts.events import ABSENT, Kind, RangeRole
from aorta.errors import ArtefactError
from aorta.readers import nsys, trace_sqlite
from aorta.readers.lost import GRAPHS
from tests.support.nsys import Export, process

GEMM = (100, 200, 0, 7, 5, 41, "gemm")


def test_events_become_columns(tmp_path: Path) -> None:
    export = Export(
        kernels=[(300, 450, 0, 9, 6, 41, "ncclDevKernel_AllReduce_Sum"), GEMM],
        copies=[(50, 60, 0, 7, 4, 41, 832, 1)],
        calls=[(10, 20, 41, "cudaLaunchKernel_v7000", 5)],
        ranges=[(0, 500, 41, "step 20", 59), (5, 9, 41, "a mark", 34), (7, None, 41, "no end", 59)],
        epoch_ns=1_795_818_077_138_608_591,
    )
    (trace,) = nsys.read(export.write(tmp_path / "rank3.sqlite"))
    assert trace.gpu.start_ns.tolist() == [50, 100, 300]
    assert trace.gpu.end_ns.tolist() == [60, 200, 450]
    assert trace.gpu.kind.tolist() == [Kind.COPY, Kind.COMPUTE, Kind.COMMUNICATION]
    assert trace.gpu.bytes.tolist() == [832, ABSENT, ABSENT]
    assert [trace.names[code] for code in trace.gpu.name.tolist()] == [
        "Memcpy HtoD",
        "gemm",
        "ncclDevKernel_AllReduce_Sum",
    ]
    assert trace.names[int(trace.collectives.op[0])] == "all_reduce"
    assert trace.host.role.tolist() == [RangeRole.STEP, RangeRole.LAUNCH]
    assert (trace.rank, trace.rank_basis, trace.epoch_ns) == (3, "the file's name", 1_795_818_077_138_608_591)
    assert [problem.reason for problem in trace.problems] == ["1 NVTX ranges have no end"]


@pytest.mark.parametrize(
    ("memory", "name"),
    [
        ([(0, 2)], "Memcpy HtoD (Pageable -> Device)"),
        ([(1, 2)], "Memcpy HtoD (Pinned -> Device)"),
        ([(7, 2)], "Memcpy HtoD"),
        ([], "Memcpy HtoD"),
    ],
    ids=["pageable", "pinned", "unknown", "older version"],
)
def test_a_copy_is_named_by_its_memory(tmp_path: Path, memory: list[tuple[int, int]], name: str) -> None:
    export = Export(copies=[(50, 60, 0, 7, 4, 41, 832, 1)], memory=memory)
    (trace,) = nsys.read(export.write(tmp_path / "a.sqlite"))
    assert [trace.names[code] for code in trace.gpu.name.tolist()] == [name]


@pytest.mark.parametrize("text_ids", [False, True])
def test_texts_of_ranges_beside_them_or_as_string_ids(tmp_path: Path, text_ids: bool) -> None:
    export = Export(kernels=[GEMM], ranges=[(0, 500, 41, "aorta.step", 60)], text_ids=text_ids)
    (trace,) = nsys.read(export.write(tmp_path / "a.sqlite"))
    assert [trace.names[code] for code in trace.host.name.tolist()] == ["aorta.step"]
    assert trace.host.role.tolist() == [RangeRole.STEP]


@pytest.mark.parametrize("text_ids", [False, True])
def test_pages_and_sqlite_give_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text_ids: bool
) -> None:
    export = Export(
        kernels=[(10 * (n % 71), 10 * n + 5, n % 2, 7, n, 40 + n % 3, f"k{n % 5}") for n in range(900)],
        copies=[(3 * n, 3 * n + 1, n % 2, 7, n, 40 + n % 3, n, n % 9) for n in range(300)],
        calls=[(10 * n, 10 * n + n % 4 - 1, 41 + n % 2, f"cudaLaunchKernel_v{n % 3}", n) for n in range(700)],
        ranges=[
            (n, n + n % 7 if n % 5 else None, 40 + n % 4, f"step {n % 11}", 58 + n % 3) for n in range(400)
        ]
        + [(0, None, 42, "aorta.rank 6", 34), (0, None, 41, "rank 5", 34), (0, None, 40, "RANK=2", 34)],
        text_ids=text_ids,
    )
    path = export.write(tmp_path / "a.sqlite")
    by_pages = nsys.read(path)
    monkeypatch.setattr(trace_sqlite, "integer_blocks", lambda *_: None)
    monkeypatch.setattr(trace_sqlite, "rows_with_text", lambda *_: None)
    by_rows = nsys.read(path)
    assert [trace.rank for trace in by_pages] == [None] * 3 if text_ids else [2, 5, 6]
    assert [len(trace.gpu) for trace in by_pages] == [400] * 3
    for one, other in zip(by_pages, by_rows, strict=True):
        assert (one.rank, one.problems, one.host.role.tolist()) == (
            other.rank,
            other.problems,
            other.host.role.tolist(),
        )
        for table in ("gpu", "host"):
            columns, others = (getattr(trace, table) for trace in (one, other))
            assert (columns.start_ns[1:] >= columns.start_ns[:-1]).all()
            for name in ("start_ns", "end_ns", "correlation"):
                assert getattr(columns, name).tolist() == getattr(others, name).tolist()
            said = [
                [trace.names[code] for code in rows.name.tolist()]
                for trace, rows in ((one, columns), (other, others))
            ]
            assert said[0] == said[1]


def test_columns_that_a_version_lacks_are_absent(tmp_path: Path) -> None:
    (old,) = nsys.read(Export(kernels=[GEMM]).write(tmp_path / "old.sqlite", grids=False))
    assert len(old.gpu) == 1
    assert old.epoch_ns is None


def test_ranks_of_several_processes_by_device(tmp_path: Path) -> None:
    export = Export(kernels=[(1, 2, 1, 7, 1, 41, "b"), (3, 4, 0, 7, 1, 42, "a"), (5, 6, 1, 7, 1, 41, "b")])
    traces = nsys.read(export.write(tmp_path / "rank9.sqlite"))
    assert [(t.rank, len(t.gpu), t.rank_basis) for t in traces] == [
        (1, 2, "the order of devices"),
        (0, 1, "the order of devices"),
    ]


def test_ranks_of_several_processes_by_mark(tmp_path: Path) -> None:
    export = Export(
        kernels=[(1, 2, 0, 7, 1, 41, "b"), (3, 4, 0, 7, 1, 42, "a")],
        ranges=[(0, None, 41, "aorta.rank 6", 34), (0, None, 42, "aorta.rank 5", 34)],
    )
    assert [t.rank for t in nsys.read(export.write(tmp_path / "a.sqlite"))] == [6, 5]


def test_processes_on_one_device_cannot_be_told_apart(tmp_path: Path) -> None:
    export = Export(kernels=[(1, 2, 0, 7, 1, 41, "b"), (3, 4, 0, 7, 1, 42, "a")])
    assert [t.rank for t in nsys.read(export.write(tmp_path / "a.sqlite"))] == [None, None]


def test_a_capture_without_a_gpu(tmp_path: Path) -> None:
    export = Export(ranges=[(0, 500, 41, "step 1", 59)])
    (trace,) = nsys.read(export.write(tmp_path / "rank0.sqlite"))
    assert (trace.rank, len(trace.gpu), len(trace.host)) == (0, 0, 1)


def test_gzip_and_what_is_wrong_with_it(tmp_path: Path) -> None:
    plain = Export(kernels=[GEMM]).write(tmp_path / "a.sqlite").read_bytes()
    packed = tmp_path / "a.sqlite.gz"
    packed.write_bytes(gzip.compress(plain))
    assert len(nsys.read(packed)[0].gpu) == 1
    packed.write_bytes(gzip.compress(plain)[:-20])
    with pytest.raises(ArtefactError, match="gzip"):
        nsys.read(packed)


def test_cut_files_are_refused(tmp_path: Path) -> None:
    export = Export(kernels=[GEMM] * 3000, ranges=[(0, 500, 41, "step 1", 59)])
    whole = export.write(tmp_path / "a.sqlite").read_bytes()
    path = tmp_path / "cut.sqlite"
    for cut in [0, 10, 100, *range(1000, len(whole), 20_000)]:
        path.write_bytes(whole[:cut])
        with pytest.raises(ArtefactError, match=r"cut\.sqlite"):
            nsys.read(path)


def test_flipped_bytes_are_refused_or_read(tmp_path: Path) -> None:
    export = Export(kernels=[GEMM] * 500, calls=[(1, 2, 41, "cudaLaunchKernel", 5)], epoch_ns=7)
    whole = export.write(tmp_path / "a.sqlite").read_bytes()
    path = tmp_path / "flipped.sqlite"
    outcomes = set()
    for position in range(100, len(whole), 211):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x55]) + whole[position + 1 :])
        try:
            outcomes.add(len(nsys.read(path)) > 0)
        except ArtefactError:
            outcomes.add(False)
    assert outcomes == {True, False}


def test_an_export_without_activity_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match="no CUDA activity and no NVTX ranges"):
        nsys.read(Export().write(tmp_path / "a.sqlite"))


def test_a_report_needs_nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rank2.nsys-rep"
    path.write_bytes(b"report")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ArtefactError, match="needs nsys"):
        nsys.read(path)


def test_a_report_is_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Export(kernels=[GEMM]).write(tmp_path / "made.sqlite")
    program = tmp_path / "nsys"
    program.write_text(
        f'#!/bin/sh\nwhile [ "$1" != --output ]; do shift; done\n/bin/cp {tmp_path}/made.sqlite "$2"\n'
    )
    program.chmod(0o755)
    path = tmp_path / "rank2.nsys-rep"
    path.write_bytes(b"report")
    monkeypatch.setenv("PATH", str(tmp_path))
    (trace,) = nsys.read(path)
    assert (trace.rank, trace.source) == (2, str(path))
    program.write_text("#!/bin/sh\necho broken report >&2\nexit 1\n")
    with pytest.raises(ArtefactError, match=r"export failed \(1\): broken report"):
        nsys.read(path)


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 6, 7])
def test_rows_are_the_same_however_they_are_divided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(trace_sqlite, "_CHUNK_ROWS", rows)
    big = (1 << 62) + 1  # a double would lose the last digit
    path = tmp_path / "a.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE t (a INT, b INT)")
        values = [(big, None), (0, 2), (-7, big + 2), (None, 4), (5, 0), (6, -(1 << 63))]
        database.executemany("INSERT INTO t VALUES (?, ?)", values)
        database.execute("INSERT INTO t (rowid, a, b) VALUES (-5, 9, 9)")
        database.commit()
    with trace_sqlite.open_database(path) as opened:
        a, lacking, b = opened.columns("t", "a", "other", "b")
    assert a.tolist() == [9, big, 0, -7, ABSENT, 5, 6]
    assert b.tolist() == [9, ABSENT, 2, big + 2, 4, 0, -(1 << 63)]
    assert lacking.tolist() == [ABSENT] * 7


def test_graphs_recorded_as_a_whole_are_busy_and_unseen(tmp_path: Path) -> None:
    export = Export(
        kernels=[(100, 200, 0, 7, 1, 50, "gemm")],
        calls=[(10, 20, 50, "cudaLaunchKernel_v7000", 1), (30, 40, 50, "cudaGraphLaunch_v10000", 2)],
    )
    path = export.write(tmp_path / "rank0.sqlite")
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INT, end INT, deviceId INT, streamId INT,"
            " correlationId INT, globalPid INT, graphId INT)"
        )
        row = (300, 900, 0, 7, 2, process(50), 5)
        db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (?,?,?,?,?,?,?)", row)
        db.commit()
    (trace,) = nsys.read(path)
    assert trace.gpu.kind.tolist() == [Kind.COMPUTE, Kind.GRAPH]
    assert [(item.reason, item.spans.tolist()) for item in trace.unseen] == [(GRAPHS, [[300, 900]])]


def test_tables_of_a_later_version_are_read(tmp_path: Path) -> None:
    path = Export(kernels=[(1, 2, 0, 7, 1, 50, "k")], ranges=[(0, 5, 50, "step 1", 59)]).write(
        tmp_path / "rank0.sqlite"
    )
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("ALTER TABLE NVTX_EVENTS RENAME TO NVTX_EVENTS_V2")
        db.commit()
    (trace,) = nsys.read(path)
    assert trace.host.role.tolist() == [RangeRole.STEP]
