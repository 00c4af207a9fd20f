"""Formats by content; one trace for each rank."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from aorta.errors import ArtefactError
from aorta.readers.detect import detect
from aorta.readers.traces import find, read_traces
from tests.support.kineto import kernel, text, write
from tests.support.nsys import Export

SAMPLES = Path(__file__).parents[1] / "data" / "rocm"
GEMM = (100, 200, 0, 7, 5, 41, "gemm")


@pytest.mark.parametrize("name", ["x.json", "x.json.gz", "x.sqlite", "x.txt", "x"])
def test_formats_by_content_not_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    data = {
        "kineto": text([kernel("a", 1, 1)]).encode(),
        "rocprof-json": json.dumps({"rocprofiler-sdk-tool": []}).encode(),
        "nsys": Export(kernels=[GEMM]).write(tmp_path / "made").read_bytes(),
        "rocprof-csv": (SAMPLES / "kernel_trace.csv").read_bytes(),
        None: b'{"steps": []}',
    }
    for kind, content in data.items():
        path.write_bytes(content)
        assert detect(path) == kind
    for kind in ("kineto", "nsys"):
        path.write_bytes(gzip.compress(data[kind]))
        assert detect(path) == kind


def test_other_files_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "nvidia_smi.csv").write_text("timestamp, index\n1, 2\n")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "steps.json.gz").write_bytes(gzip.compress(b"{}"))
    write(tmp_path / "deep" / "rank1" / "t.json", [kernel("a", 1, 1)])
    assert list(find([tmp_path], []).values()) == ["kineto"]


def test_a_report_beside_its_export_counts_once(tmp_path: Path) -> None:
    Export(kernels=[GEMM]).write(tmp_path / "rank0.sqlite")
    (tmp_path / "rank0.nsys-rep").write_bytes(b"report")
    (tmp_path / "rank1.nsys-rep").write_bytes(b"report")
    assert [(path.name, kind) for path, kind in find([tmp_path], []).items()] == [
        ("rank0.sqlite", "nsys"),
        ("rank1.nsys-rep", "nsys-report"),
    ]


def test_ranks_are_never_the_folders(tmp_path: Path) -> None:
    for rank in range(4):
        write(tmp_path / "data_rank1" / f"rank{rank}.json", [kernel("a", 1, 1)])
    traces = read_traces([tmp_path / "data_rank1"]).traces
    assert [trace.rank for trace in traces] == [0, 1, 2, 3]


def test_one_trace_without_a_rank_is_rank_0_and_says_so(tmp_path: Path) -> None:
    found = read_traces([write(tmp_path / "t.json", [kernel("a", 1, 1)])])
    assert [trace.rank for trace in found.traces] == [0]
    assert "counts as rank 0" in found.traces[0].notes[0]


def test_traces_that_cannot_be_told_apart_are_refused(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        write(tmp_path / name, [kernel("a", 1, 1)])
    with pytest.raises(ArtefactError, match="shows its rank"):
        read_traces([tmp_path])
    write(tmp_path / "rank3.json", [kernel("a", 1, 1)])
    found = read_traces([tmp_path])
    assert [trace.rank for trace in found.traces] == [3]
    assert sorted(Path(problem.file or "").name for problem in found.problems) == ["a.json", "b.json"]


def test_two_traces_of_one_rank(tmp_path: Path) -> None:
    write(tmp_path / "rank0_first.json", [kernel("early", 1, 1)])
    write(tmp_path / "rank0_second.json", [kernel("late", 10, 1)])
    found = read_traces([tmp_path])
    assert [trace.names for trace in found.traces] == [("late",)]
    assert "an earlier capture of rank 0" in found.problems[0].reason
    write(tmp_path / "rank0_third.json", [kernel("same time", 10.5, 1)])
    with pytest.raises(ArtefactError, match="rank 0 at the same time"):
        read_traces([tmp_path])


def test_a_broken_file_costs_itself(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", [kernel("a", 1, 1)])
    whole = Export(kernels=[GEMM] * 500).write(tmp_path / "rank1.sqlite").read_bytes()
    (tmp_path / "rank1.sqlite").write_bytes(whole[:9000])
    found = read_traces([tmp_path])
    assert [(trace.format, trace.rank) for trace in found.traces] == [("kineto", 0)]
    assert "cut off" in found.problems[0].reason


def test_formats_side_by_side(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", [kernel("a", 1, 1)])
    Export(kernels=[GEMM]).write(tmp_path / "rank0.sqlite")
    (tmp_path / "rank0_kernel_trace.csv").write_bytes((SAMPLES / "kernel_trace.csv").read_bytes())
    found = read_traces([tmp_path])
    assert [(trace.format, trace.rank) for trace in found.traces] == [
        ("kineto", 0),
        ("nsys", 0),
        ("rocprofv3", 0),
    ]
    assert [trace.format for trace in found.of_format("nsys")] == ["nsys"]


def test_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match="no trace in it"):
        read_traces([tmp_path])
    with pytest.raises(ArtefactError, match="No such file"):
        read_traces([tmp_path / "none"])
