"""Kineto traces of a pipeline whose times follow from a few numbers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.support import kineto
from tests.support.pipelines import Row

SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
MAIN, AUTOGRAD = 1, 2
"""Threads: autograd launches the backward pass."""
_US = 1_000


def traced(folder: Path, rows: Iterable[Row], world: int, *, coalesced: bool = False) -> list[Path]:
    """Writes a trace per rank from rows of operations, and returns the files.

    Coalesced, kernels of sends and receives say nothing of themselves, as torch's profiler records a batch:
    the calls before their launch do.
    """
    by_rank: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        by_rank[int(row["rank"])].append(row)
    return [
        kineto.write(
            folder / f"rank{rank}.json",
            _events(mine, rank, coalesced=coalesced),
            distributedInfo={"rank": rank, "world_size": world, "backend": "nccl"},
        )
        for rank, mine in sorted(by_rank.items())
    ]


def _events(rows: list[Row], rank: int, *, coalesced: bool) -> list[dict[str, Any]]:
    """The host launches everything at the beginning of its step, in the program's order."""
    events: list[dict[str, Any]] = []
    steps: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        steps[int(row["step"])].append(row)
    begins = {step: min(int(row["start_ns"]) for row in mine) / _US for step, mine in steps.items()}
    numbers = sorted(steps)
    length = begins[numbers[1]] - begins[numbers[0]]
    for step in numbers:
        events.append(kineto.event("user_annotation", f"ProfilerStep#{step}", begins[step], length, tid=MAIN))
        for place, row in enumerate(sorted(steps[step], key=_turn)):
            at, number = begins[step] + place, len(events) + 1 + 10_000 * step
            events += _launched(row, rank, at, number, coalesced=coalesced)
    return events


def _turn(row: Row) -> tuple[int, int]:
    """A pass is launched before its send and after its receive, whatever else waits."""
    kind, start, end = str(row["kind"]), int(row["start_ns"]), int(row["start_ns"]) + int(row["duration_ns"])
    return (end, 0) if kind.endswith("recv") else (start, 1 if kind.endswith("compute") else 0)


def _launched(row: Row, rank: int, at: float, correlation: int, *, coalesced: bool) -> list[dict[str, Any]]:
    kind = str(row["kind"])
    start, took = int(row["start_ns"]) / _US, int(row["duration_ns"]) / _US
    thread = AUTOGRAD if kind == "backward-compute" else MAIN
    call = kineto.event("cuda_runtime", "cudaLaunchKernel", at, 0.5, tid=thread, correlation=correlation)
    if kind.endswith("compute"):
        return [call, kineto.kernel("gemm", start, took, correlation=correlation)]
    if kind.endswith("all-reduce"):
        called = {"Collective name": "allreduce", "Process Group Name": f"dp{row['stage']}"}
        name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
        return [call, kineto.kernel(name, start, took, stream=21, correlation=correlation, **called)]
    ahead = 1 if kind.startswith("forward") else -1
    sends = kind.endswith("send")
    peer = rank + (ahead if sends else -ahead)
    named = {
        "Collective name": "send" if sends else "recv",
        "Process Group Name": "1",
        "Process Group Description": "mesh_pp",
        "Src Rank": rank if sends else peer,
        "Dst Rank": peer if sends else rank,
        "In msg nelems": 1024,
        "Out msg nelems": 1024,
        "dtype": "Float",
        "Group size": 2,
    }
    if coalesced:
        said = kineto.event("cpu_op", "record_param_comms", at - 0.4, 0.2, tid=thread, **named)
        return [said, call, kineto.kernel(SEND_RECV, start, took, stream=20, correlation=correlation)]
    return [call, kineto.kernel(SEND_RECV, start, took, stream=20, correlation=correlation, **named)]
