"""Timelines of operations: the same job as CSV, as a timeline with its meta file, and as Parquet."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from aorta.artefacts.operations import OperationRole, Operations, role_of
from aorta.errors import ArtefactError
from aorta.readers.operation_files import find_operations, is_operations
from aorta.readers.operations import read_operations
from tests.support.pipelines import as_csv, pipeline

ROWS = pipeline("1f1b", 2, 3, lambda replica, stage, m: 1_000_000 + 1_000 * (replica + stage + m), replicas=2)


def as_timeline(folder: Path) -> Path:
    """The rows as the public jobs are: pid is the replica, a named thread per stage, times in µs."""
    events: list[dict[str, object]] = [
        {
            "name": "thread_name",
            "ph": "M",
            "pid": replica,
            "tid": stage,
            "args": {"name": f"PP rank {stage}, TP rank 0, compute"},
        }
        for replica in range(2)
        for stage in range(2)
    ]
    for row in ROWS:
        arguments = {"step": row["step"], "model_chunk": 0, "mb_id": row["microbatch"], "seq_id": 0}
        start, length = int(row["start_ns"]) / 1000, int(row["duration_ns"]) / 1000
        place = {"pid": row["replica"], "tid": row["stage"], "ts": start, "dur": length, "ph": "X"}
        events.append({"name": row["kind"], "args": arguments, **place})
    path = folder / "timeline-X.json.gz"
    path.write_bytes(gzip.compress(json.dumps(events).encode()))
    (folder / "meta-X.yaml").write_text("dp_size: 2\npp_size: 2\ntp_size: 1\n", encoding="utf-8")
    return path


def times(job: Operations) -> list[tuple[str, int, int, int]]:
    found = zip(job.kind, job.stage, job.start, job.end, strict=True)
    return sorted((job.kinds[kind], int(stage), int(start), int(end)) for kind, stage, start, end in found)


def test_each_format_gives_the_same_operations(tmp_path: Path) -> None:
    path = tmp_path / "operations.csv"
    path.write_text(as_csv(ROWS), encoding="utf-8")
    table, timeline = read_operations(path), read_operations(as_timeline(tmp_path))
    assert times(table) == times(timeline)
    assert len(table) == len(ROWS)
    # Stage by stage, as Megatron numbers ranks.
    assert [timeline.workers(stage) for stage in (0, 1)] == [[0, 1], [2, 3]]
    assert (timeline.sizes.data, timeline.sizes.pipeline) == (2, 2)


def test_parquet_says_the_same_as_csv(tmp_path: Path) -> None:
    path, csv = tmp_path / "operations.parquet", tmp_path / "operations.csv"
    columns = {name: [row[name] for row in ROWS] for name in ROWS[0]}
    parquet.write_table(pyarrow.table(columns), path)
    csv.write_text(as_csv(ROWS), encoding="utf-8")
    assert is_operations(path)
    assert times(read_operations(path)) == times(read_operations(csv))


def test_parquet_needs_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "operations.parquet"
    path.write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ArtefactError, match="needs the package pyarrow") as caught:
        read_operations(path)
    assert "pip install pyarrow" in caught.value.hint


def test_damaged_parquet_is_named(tmp_path: Path) -> None:
    path = tmp_path / "operations.parquet"
    path.write_bytes(b"PAR1 and nothing else")
    with pytest.raises(ArtefactError, match=r"operations.parquet: no Parquet"):
        read_operations(path)


def test_files_are_recognised_by_content(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(as_csv(ROWS), encoding="utf-8")
    (tmp_path / "b.csv").write_text("timestamp,gpu_id\n1,2\n", encoding="utf-8")
    (tmp_path / "c.json").write_text('{"traceEvents": [{"ph": "X", "args": {"mb_id": 1}}]}', encoding="utf-8")
    timeline = as_timeline(tmp_path)
    assert find_operations([tmp_path]) == [tmp_path / "a", timeline]
    assert not is_operations(tmp_path / "b.csv")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rank,step,kind,start_us,duration_us\n0,0,F,x,1\n", "line 2, column start_us is 'x'"),
        ("rank,step,kind,start_us,duration_us\n0,,F,1,1\n", "line 2, column step is empty"),
        ("rank,step,kind,start_us,duration_us\n0,0,F,1e30,1\n", "line 2, column start_us is '1e30'"),
        ("rank,step,kind,start_us,duration_us\n", "no operation below the header"),
    ],
)
def test_what_cannot_be_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "operations.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ArtefactError, match=said):
        read_operations(path)


def test_a_row_that_ends_early_costs_itself_alone(tmp_path: Path) -> None:
    path = tmp_path / "operations.csv"
    path.write_text("rank,step,kind,start_us,end_us\n0,0,F,5,4\n0,0,B,6,8\n", encoding="utf-8")
    job = read_operations(path)
    assert (job.end - job.start).tolist() == [0, 2000]
    assert job.said == ("1 operation ended before the start and counts as 0 ns",)


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("forward-compute", OperationRole.FORWARD),
        ("BWD", OperationRole.BACKWARD),
        ("W", OperationRole.WEIGHT),
        ("backward_weight", OperationRole.WEIGHT),
        ("forward-send", OperationRole.SEND),
        ("recv_backward", OperationRole.RECEIVE),
        ("grads-reduce-scatter", OperationRole.COLLECTIVE),
        ("optimizer-clip-main-grad", OperationRole.COLLECTIVE),
        ("optimizer", OperationRole.LOCAL),
    ],
)
def test_a_name_says_the_role(name: str, role: OperationRole) -> None:
    assert role_of(name) == role


@pytest.mark.parametrize("head", [b"SQLite format 3\0\x10\r\x01", b"\x07\r\x08,start", b"a,\0b\r"])
def test_a_database_or_other_bytes_are_no_operations(tmp_path: Path, head: bytes) -> None:
    (tmp_path / "rank0.sqlite").write_bytes(head * 100)
    assert find_operations([tmp_path]) == []
