"""Databases of rocmProfileData: operations, calls, markers, and the ranks among processes."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from aorta.artefacts.events import ABSENT, Kind, RangeRole
from aorta.errors import ArtefactError
from aorta.readers.traces import read_traces

SCHEMA = """
CREATE TABLE rocpd_string (id INTEGER PRIMARY KEY, string TEXT);
CREATE TABLE rocpd_op (id INTEGER PRIMARY KEY, gpuId INT, queueId INT, sequenceId INT, completionSignal TEXT,
    start INT, end INT, description_id INT, opType_id INT);
CREATE TABLE rocpd_api (id INTEGER PRIMARY KEY, pid INT, tid INT, start INT, end INT, apiName_id INT,
    args_id INT);
CREATE TABLE rocpd_api_ops (id INTEGER PRIMARY KEY, api_id INT, op_id INT);
CREATE TABLE rocpd_kernelapi (api_ptr_id INTEGER PRIMARY KEY, kernelName_id INT);
"""
STRINGS = (
    "",
    "gemm",
    "KernelExecution",
    "CopyHostToDevice",
    "Barrier",
    "hipLaunchKernel",
    "UserMarker",
    "step 4",
)
MANY = 1 << 32
"""Ids of a process begin there."""


def database(path: Path, *, processes: int = 1, calls: bool = True) -> Path:
    """Process p: a kernel on GPU p without a name of its own, a copy, a barrier, and a marker around them."""
    db = sqlite3.connect(path)
    db.executescript(SCHEMA)
    db.executemany("INSERT INTO rocpd_string VALUES (?,?)", list(enumerate(STRINGS)))
    at = STRINGS.index
    for p in range(processes):
        base = (p + 1) * MANY
        op = "INSERT INTO rocpd_op VALUES (?,?,3,0,'',?,?,?,?)"
        db.execute(op, (base + 1, p, 100, 200, at("") if calls else at("gemm"), at("KernelExecution")))
        db.execute(op, (base + 2, p, 300, 350, at(""), at("CopyHostToDevice")))
        db.execute(op, (base + 3, p, 360, 370, at(""), at("Barrier")))
        if calls:
            call = "INSERT INTO rocpd_api VALUES (?,?,9,?,?,?,?)"
            db.execute(call, (base + 7, 50 + p, 90, 95, at("hipLaunchKernel"), at("")))
            db.execute(call, (base + 8, 50 + p, 80, 400, at("UserMarker"), at("step 4")))
            db.execute("INSERT INTO rocpd_api_ops (api_id, op_id) VALUES (?,?)", (base + 7, base + 1))
            db.execute("INSERT INTO rocpd_kernelapi VALUES (?,?)", (base + 7, at("gemm")))
    db.commit()
    db.close()
    return path


def test_operations_calls_and_markers(tmp_path: Path) -> None:
    (trace,) = read_traces([database(tmp_path / "rank3.rpd")]).traces
    gpu, host = trace.gpu, trace.host
    assert (trace.format, trace.rank) == ("rpd", 3)
    assert gpu.kind.tolist() == [Kind.COMPUTE, Kind.COPY]
    assert (gpu.start_ns.tolist(), gpu.end_ns.tolist()) == ([100, 300], [200, 350])
    assert [trace.names[code] for code in gpu.name.tolist()] == ["gemm", "CopyHostToDevice"]
    assert gpu.correlation.tolist() == [MANY + 7, ABSENT]
    assert sorted(zip(host.start_ns.tolist(), host.role.tolist(), strict=True)) == [
        (80, int(RangeRole.STEP)),
        (90, int(RangeRole.LAUNCH)),
    ]


@pytest.mark.parametrize("calls", [True, False])
def test_processes_are_ranks_by_their_gpus(tmp_path: Path, calls: bool) -> None:
    found = read_traces([database(tmp_path / "trace.rpd", processes=2, calls=calls)]).traces
    assert [(trace.rank, set(trace.gpu.device.tolist())) for trace in found] == [(0, {0}), (1, {1})]


def test_a_database_without_work_is_refused(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "trace.rpd")
    db.executescript(SCHEMA)
    db.close()
    with pytest.raises(ArtefactError, match="without operations and calls"):
        read_traces([tmp_path / "trace.rpd"])
