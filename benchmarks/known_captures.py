"""Kineto captures of four ranks with a known fault, made from numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

RANKS, STEPS, KERNELS = 4, 32, 24
ORIGIN_US = 5_000_000.0
BASE_NS = 1_790_000_000_000_000_000
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
Event = dict[str, Any]
Traces = dict[int, dict[str, Any]]
"""Kineto documents by rank."""


@dataclass(frozen=True, slots=True)
class Work:
    """A step of each rank, µs."""

    kernel: float = 1000.0
    slow_rank: int | None = None
    slow_kernel: float = 420.0
    loader: float = 200.0
    gap: float = 0.0
    """Host work before each launch, in which the GPU idles."""
    transfer: float = 800.0


FAULTS: dict[str, Work] = {
    "straggler": Work(slow_rank=2),
    "data_loading": Work(loader=30_000.0),
    "communication": Work(transfer=9_000.0),
    "host_bound": Work(kernel=300.0, gap=900.0),
}
BALANCED = {"plain": Work(), "long kernels": Work(kernel=4000.0)}


def capture(work: Work) -> Traces:
    """Returns a document for each rank."""
    return {rank: _document(work, rank) for rank in range(RANKS)}


def _document(work: Work, rank: int) -> dict[str, Any]:
    events: list[Event] = []
    each = {r: work.kernel + (work.slow_kernel if r == work.slow_rank else 0.0) for r in range(RANKS)}
    longest = max(each.values())
    step_us = work.loader + KERNELS * (longest + work.gap) + 3 * work.transfer + 400.0
    for step in range(STEPS + 1):
        _step(events, work, (rank, step), (each[rank], longest, step_us))
    info = {"backend": "nccl", "rank": rank, "world_size": RANKS}
    return {
        "schemaVersion": 1,
        "distributedInfo": info,
        "baseTimeNanoseconds": BASE_NS,
        "traceEvents": events,
    }


def _step(
    events: list[Event], work: Work, place: tuple[int, int], lengths: tuple[float, float, float]
) -> None:
    (rank, step), (each, longest, step_us) = place, lengths
    start = ORIGIN_US + step * step_us
    number = step * (KERNELS + 4) + 1

    def add(cat: str, name: str, at: float, us: float, **fields: Any) -> None:
        events.append(
            {"ph": "X", "cat": cat, "name": name, "ts": round(at, 3), "dur": round(us, 3), **fields}
        )

    def host(cat: str, name: str, at: float, us: float, **args: Any) -> None:
        add(cat, name, at, us, pid=100 + rank, tid=10, args=args)

    def gpu(name: str, at: float, us: float, stream: int, correlation: int, **args: Any) -> None:
        found = {"device": rank, "stream": stream, "correlation": correlation, **args}
        add("kernel", name, at, us, pid=rank, tid=stream, args=found)

    host("user_annotation", f"ProfilerStep#{step}", start, step_us - 20)
    loading = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    host("user_annotation", loading, start + 5, work.loader - 10)
    at = start + work.loader
    names = ["embedding", *["ampere_gemm_128x128", "softmax_warp"] * 11, "adam"]
    for index, name in enumerate(names):
        at += work.gap
        launch = at - 12 if work.gap else start + work.loader - 190 + index * 6
        host("cuda_runtime", "cudaLaunchKernel", launch, 4.0, correlation=number)
        gpu(name, at, each - 2, 7, number, grid=[8, 8, 1], block=[128, 1, 1])
        at, number = at + each, number + 1
    begin = start + work.loader + KERNELS * (longest + work.gap)
    for call in range(3):
        ready = at if call == 0 else begin + call * work.transfer
        end = begin + (call + 1) * work.transfer - 5
        launch = start + work.loader - 20 + call * 5
        host("cuda_runtime", "cudaLaunchKernelExC", launch, 4.0, correlation=number)
        sized = {
            "Collective name": "allreduce",
            "In msg nelems": 4_000_000,
            "Out msg nelems": 4_000_000,
            "Group size": RANKS,
            "dtype": "BFloat16",
            "Process Group Name": "0",
            "Seq": step * 3 + call,
        }
        gpu(NCCL, ready, end - ready, 20, number, **sized)
        number += 1
    wait = start + work.loader + 5
    host("cuda_runtime", "cudaStreamSynchronize", wait, begin + 3 * work.transfer - wait, correlation=number)
