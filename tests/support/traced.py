"""Kineto traces of a job of a few ranks in integer µs, whose truth is arithmetic.

A step of rank r: its loader (`loader`), the host (`host`), one compute kernel (`compute`), an all-reduce that
ends `transfer` after the last rank came to it, and an optimizer kernel (`OPTIMIZER`). So with
own = loader + host + compute a step takes max(own) + transfer + OPTIMIZER on every rank, and rank r waits
max(own) - own. In the first step the host of a rank takes `startup` more, for which all others wait. A host
synchronises with each kernel, as one that reads the loss does, so that it works loader and kernels less than
the step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.kineto import event, kernel, write

OPTIMIZER = 100
ORIGIN = 10_000_000
BASE_NS = 1_700_000_000_000_000_000
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


@dataclass(frozen=True)
class Rank:
    """One rank's part of each step, in µs."""

    loader: int = 0
    host: int = 0
    compute: int = 1000
    pieces: int = 1
    """The compute kernel is cut into that many, `gap` apart: the gaps are the host's."""
    gap: int = 0
    ahead: int = 0
    """How far the host runs before the GPU."""
    clock: int = 0
    """How far its clock is ahead."""
    startup: int = 0
    """More of the host, in the first step alone: what a profiler takes to start."""
    early: int = 0
    """All-reduces in the capture that were launched before it."""

    @property
    def own(self) -> int:
        """Until it comes to its all-reduce."""
        return self.loader + self.host + self.compute + (self.pieces - 1) * self.gap


@dataclass(frozen=True)
class Job:
    """What is written."""

    ranks: Mapping[int, Rank]
    steps: int = 6
    transfer: int = 200
    communication: str | None = NCCL
    """None: no kernel shows it."""
    metadata: bool = False
    world_size: int | None = None
    absent: Sequence[int] = field(default=())
    """Ranks that take part and leave no trace."""

    @property
    def step_us(self) -> int:
        return max(rank.own for rank in self.ranks.values()) + self.transfer + OPTIMIZER

    def start_us(self, step: int) -> int:
        """When a step starts, from the first one's start; `startup` is the longest where it counts."""
        first = max(rank.own + rank.startup for rank in self.ranks.values()) + self.transfer + OPTIMIZER
        return 0 if step == 0 else first + (step - 1) * self.step_us


def write_job(folder: Path, job: Job, *, suffix: str = ".pt.trace.json") -> Path:
    """`rank<r>` files in `folder`, each on its own clock."""
    for number, rank in job.ranks.items():
        if number not in job.absent:
            info = {"rank": number, "world_size": job.world_size or len(job.ranks)}
            write(
                folder / f"rank{number}{suffix}",
                _events(job, rank),
                distributedInfo=info,
                baseTimeNanoseconds=BASE_NS,
            )
    return folder


def _events(job: Job, rank: Rank) -> list[dict[str, Any]]:
    zero = ORIGIN + rank.clock
    events: list[dict[str, Any]] = []
    for index in range(rank.early):
        at = zero - 50 * (index + 1)
        events.append(kernel(NCCL, at, 20, stream=20, correlation=900_000 + index))
    # One step more begins than is whole.
    for step in range(job.steps + 1):
        events += _step(job, rank, step, zero + job.start_us(step))
    return events


def _step(job: Job, rank: Rank, step: int, start: int) -> list[dict[str, Any]]:
    called, length = start - rank.ahead, job.start_us(step + 1) - job.start_us(step)
    startup = rank.startup if step == 0 else 0
    correlation = 1000 * step + 1
    events = [event("user_annotation", f"ProfilerStep#{step}", called, length, tid=1)]
    if rank.loader:
        name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        events.append(event("user_annotation", name, start, rank.loader, tid=1))
    spans: list[tuple[str, int, int, int, dict[str, Any]]] = []
    piece, at = rank.compute // rank.pieces, start + rank.loader + rank.host + startup
    for _ in range(rank.pieces):
        spans.append(("gemm", at, piece, 7, {}))
        at += piece + rank.gap
    entry = start + rank.own + startup
    end = start + length - OPTIMIZER
    if job.communication is not None:
        spans.append((job.communication, entry, end - entry, 20, _metadata(job, step)))
    else:
        events.append(event("user_annotation", "nccl:all_reduce", called + 1, 1, tid=1))
    spans.append(("adam", end, OPTIMIZER, 7, {}))
    for offset, (name, begin, length, stream, more) in enumerate(spans):
        link = correlation + offset
        # The host of an idle GPU launches just before a kernel runs.
        call = called + 2 + offset if rank.ahead else begin
        events.append(event("cuda_runtime", "cudaLaunchKernel", call, 1, tid=2, correlation=link))
        # Then it waits until that has run: what it works is what is left of the step.
        events.append(event("cuda_runtime", "cudaStreamSynchronize", begin + 1, length - 1, tid=2))
        events.append(kernel(name, begin, length, stream=stream, correlation=link, **more))
    return events


def _metadata(job: Job, step: int) -> dict[str, Any]:
    if not job.metadata:
        return {}
    return {
        "Collective name": "allreduce",
        "Process Group Name": "0",
        "Seq": step,
        "Group size": job.world_size or len(job.ranks),
    }
