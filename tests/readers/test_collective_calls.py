"""What the range that launched a collective says of it, where its kernel's metadata say nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aorta.artefacts.events import ABSENT, Trace
from aorta.readers import kineto
from tests.support.kineto import event, kernel, write

SEND_RECV = "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)"


def call(name: str, ts: int, dims: Any = None, types: Any = None, *, tid: int = 5) -> dict[str, Any]:
    """An annotation of 10 µs, as torch before 2.1 writes it."""
    said = {} if dims is None else {"Input Dims": dims, "Input type": types}
    return event("user_annotation", name, ts, 10, tid=tid, **said)


def launch(ts: int, correlation: int, *, tid: int = 5) -> dict[str, Any]:
    return event("cuda_runtime", "cudaLaunchKernel", ts, 2, tid=tid, correlation=correlation)


def told(trace: Trace) -> list[tuple[str | None, int, int]]:
    """Operation and sizes of each collective, in order of start."""
    known = trace.collectives
    columns = zip(known.op.tolist(), known.bytes_in.tolist(), known.bytes_out.tolist(), strict=True)
    return [
        (None if op == ABSENT else trace.names[op], size_in, size_out) for op, size_in, size_out in columns
    ]


def test_each_kernel_has_the_operation_and_size_of_the_call_that_launched_it(tmp_path: Path) -> None:
    events = [
        call("nccl:all_to_all", 100, [[6, 4]], ["float"]),
        launch(103, 1),
        call("nccl:all_reduce", 120, [[10], [3]], ["long int", "c10::Half"]),
        launch(125, 2),
        launch(127, 3),
        call("nccl:all_reduce", 120, [[99]], ["double"], tid=6),  # another thread's
        launch(140, 4),  # of no call
        call("nccl:all_reduce", 150),  # shapes were not recorded
        launch(151, 5),
        kernel(SEND_RECV, 200, 5, correlation=1),
        kernel("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)", 210, 5, correlation=2),
        kernel(SEND_RECV, 220, 5, correlation=3),
        kernel(SEND_RECV, 230, 5, correlation=4),
        kernel("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)", 240, 5, correlation=5),
        kernel(SEND_RECV, 250, 5, correlation=77),  # launched before the capture
    ]
    assert told(kineto.read(write(tmp_path / "rank0.json", events))) == [
        ("all_to_all", 6 * 4 * 4, ABSENT),
        ("all_reduce", 10 * 8 + 3 * 2, ABSENT),
        ("all_reduce", 10 * 8 + 3 * 2, ABSENT),
        ("send_recv", ABSENT, ABSENT),
        ("all_reduce", ABSENT, ABSENT),
        ("send_recv", ABSENT, ABSENT),
    ]


def test_what_the_kernel_says_of_itself_stands(tmp_path: Path) -> None:
    own = {"Collective name": "allreduce", "In msg nelems": 0, "Out msg nelems": 0, "dtype": "Float"}
    events = [
        call("nccl:all_to_all", 100, [[6]], ["float"]),
        launch(103, 1),
        kernel(SEND_RECV, 200, 5, correlation=1, **own),
    ]
    assert told(kineto.read(write(tmp_path / "rank0.json", events))) == [("all_reduce", 0, 0)]


@pytest.mark.parametrize("name", ["nccl:_all_gather_base", "nccl:gather"])
def test_what_a_rank_gives_is_not_the_size_of_what_is_gathered(tmp_path: Path, name: str) -> None:
    events = [call(name, 100, [[6]], ["float"]), launch(103, 1), kernel(SEND_RECV, 200, 5, correlation=1)]
    ((op, *sizes),) = told(kineto.read(write(tmp_path / "rank0.json", events)))
    assert op in ("all_gather", "gather")
    assert sizes == [ABSENT, ABSENT]


@pytest.mark.parametrize(
    ("dims", "types", "size"),
    [
        ([[]], ["float"], 4),
        ([[0, 7]], ["float"], 0),
        ([], [], ABSENT),
        ([[6]], ["TensorList"], ABSENT),
        ([[6], []], ["float", "Scalar"], ABSENT),
        ([[6]], ["float", "float"], ABSENT),
        ([[[6], [7]]], ["float"], ABSENT),
        ([[-6]], ["float"], ABSENT),
        ([[1 << 40, 1 << 40]], ["float"], ABSENT),
        ("[[6]]", "['float']", ABSENT),
        ([[6]], None, ABSENT),
    ],
)
def test_a_size_needs_plain_tensors_of_known_types(tmp_path: Path, dims: Any, types: Any, size: int) -> None:
    events = [
        call("nccl:all_to_all", 100, dims, types),
        launch(103, 1),
        kernel(SEND_RECV, 200, 5, correlation=1),
    ]
    trace = kineto.read(write(tmp_path / "rank0.json", events))
    assert told(trace) == [("all_to_all", size, ABSENT)]
    assert trace.problems == ()
