"""Windows and kernels of one step: tiny integer traces, expectations as arithmetic."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from aorta.artefacts.step_record import WindowExcess
from aorta.errors import ConfigError
from aorta.instrument.activity import Kernel, execution_of, kernels_of, stream_of
from aorta.instrument.sampler import KernelSampler
from aorta.instrument.steps import Timed

MS = 1_000_000
REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


@pytest.mark.parametrize(
    ("name", "stream"),
    [
        (REDUCE, "allreduce"),
        ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", "reducescatter"),
        ("ncclKernel_AllGather_RING_LL_Sum_int8_t", "allgather"),
        ("ncclDevKernel_SendRecv", "other"),
        ("void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16>", "compute"),
        ("elementwise_kernel_all_reduce_like", "compute"),
    ],
)
def test_kernels_by_name(name: str, stream: str) -> None:
    assert stream_of(name) == stream


def event(cat: str, name: str, ts: float, dur: float, correlation: int | None) -> dict[str, Any]:
    arguments = {} if correlation is None else {"correlation": correlation, "stream": 7}
    return {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur, "args": arguments}


def trace(*events: dict[str, Any]) -> bytes:
    return json.dumps({"baseTimeNanoseconds": 5_000_000_000, "traceEvents": list(events)}).encode()


def test_kernels_of_a_step_are_those_that_were_launched_in_it() -> None:
    content = trace(
        event("cuda_runtime", "cudaLaunchKernel", 100.0, 10.0, 1),  # of the step before
        event("kernel", "early", 900.0, 5.0, 1),
        event("cuda_runtime", "cudaLaunchKernel", 1000.5, 4.25, 2),
        event("kernel", "gemm", 2000.125, 100.0, 2),
        event("cuda_driver", "cuLaunchKernelEx", 1010.0, 5.0, 3),
        event("kernel", REDUCE, 1500.0, 50.0, 3),
        event("kernel", "launched before the trace began", 1400.0, 5.0, 99),
        event("gpu_memcpy", "Memcpy HtoD", 1300.0, 5.0, 2),
        {"ph": "M", "name": "process_name", "pid": "Spans", "args": {"name": "python"}},
    )
    base = 5_000_000_000
    assert kernels_of(content, base + 900_000) == [
        Kernel("allreduce", base + 1_015_000, base + 1_500_000, base + 1_550_000),
        Kernel("compute", base + 1_004_750, base + 2_000_125, base + 2_100_125),
    ]


def test_a_trace_that_is_none_is_an_error_of_its_own() -> None:
    with pytest.raises(ValueError, match="Expecting value"):
        kernels_of(b'{"traceEvents": [', 0)


def window(stream: str, start: int, end: int) -> Timed:
    return Timed(stream, "x", start * MS, end * MS)


def kernel(stream: str, launched: int, start: int, end: int) -> Kernel:
    """On a clock that is 1000 ms ahead of the events'."""
    return Kernel(stream, (1000 + launched) * MS, (1000 + start) * MS, (1000 + end) * MS)


def test_execution_and_the_parts_of_the_excess() -> None:
    pieces = [window("compute", 0, 100), window("allreduce", 10, 40), window("allreduce", 40, 80)]
    kernels = [
        kernel("compute", 0, 1, 30),
        kernel("allreduce", 15, 20, 38),  # ready 10, launched 15, started 20, done 38, seen 40
        kernel("compute", 5, 50, 60),
        kernel("allreduce", 20, 44, 80),  # launched before it was ready: all of the delay is queueing
    ]
    found = execution_of(kernels, pieces)
    assert found.per_stream_ms == {
        "allgather": 0.0,
        "allreduce": (38 - 20) + (80 - 44),
        "compute": (30 - 1) + (60 - 50),
        "reducescatter": 0.0,
    }
    assert found.comm_ms == 18 + 36
    assert found.hidden_comm_ms == (30 - 20) + (60 - 50)
    assert found.overlap_ratio == 20 / 54
    assert found.window_ms == {"allreduce": 30 + 40}
    assert found.excess_ms == {
        "allreduce": WindowExcess(
            launch_ms=15 - 10, queue_ms=(20 - 15) + (44 - 40), tail_ms=40 - 38, behind_ms=0.0
        )
    }
    excess = found.excess_ms["allreduce"]
    assert found.window_ms["allreduce"] - found.per_stream_ms["allreduce"] == (
        excess.launch_ms + excess.queue_ms + excess.tail_ms
    )
    assert (found.kernels, found.unmatched) == (4, 0)


def test_a_collective_queues_behind_another_one_of_its_communicator() -> None:
    pieces = [window("reducescatter", 18, 40), window("allgather", 10, 60)]
    kernels = [kernel("reducescatter", 15, 20, 40), kernel("allgather", 12, 45, 60)]
    found = execution_of(kernels, pieces).excess_ms
    # Ready at 10, launched at 12, and the reduce-scatter ran from 20 to 40 of the 33 ms until it started.
    assert found["allgather"] == WindowExcess(launch_ms=2.0, queue_ms=45 - 12, tail_ms=0.0, behind_ms=40 - 20)
    assert found["reducescatter"] == WindowExcess(launch_ms=0.0, queue_ms=2.0, tail_ms=0.0, behind_ms=0.0)


def test_lists_of_different_length_are_not_paired() -> None:
    found = execution_of(
        [kernel("allreduce", 0, 1, 2)], [window("allreduce", 0, 2), window("allreduce", 2, 4)]
    )
    assert found.unmatched == 1
    assert found.excess_ms == {}
    assert found.comm_ms == 1


def test_without_communication_the_ratio_is_null_and_with_none_hidden_it_is_zero() -> None:
    assert execution_of([kernel("compute", 0, 1, 2)], []).overlap_ratio is None
    apart = execution_of([kernel("compute", 0, 1, 2), kernel("allreduce", 0, 2, 3)], [])
    assert apart.overlap_ratio == 0.0


def test_without_a_gpu_no_step_is_sampled(caplog: pytest.LogCaptureFixture) -> None:
    sampler = KernelSampler(5, torch.device("cpu"))
    sampler.start()
    assert [sampler.slows(step) for step in range(6)] == [False] * 6
    assert sampler.after_step(0) is None
    assert "no GPU here" in caplog.text
    sampler.close()


def test_a_recording_needs_a_step_to_start() -> None:
    with pytest.raises(ConfigError, match="kernel_interval is 1"):
        KernelSampler(1, torch.device("cpu"))


def test_the_last_step_of_each_interval_and_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = KernelSampler(0, torch.device("cpu"))
    monkeypatch.setattr(sampler, "_interval", 4)
    assert [step for step in range(9) if sampler.slows(step)] == [2, 3, 6, 7]
