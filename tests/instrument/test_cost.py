"""What a collective costs the training thread in calls of CUDA, and that each waits for what it needs: on a
GPU that counts, where work takes the time that is given.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from aorta.instrument import sharding
from aorta.instrument.collectives import CollectiveRunner
from aorta.instrument.dispatch import Called
from aorta.instrument.gradients import GradientExchange
from aorta.instrument.sharding import ShardedExchange
from aorta.instrument.streams import CudaClock
from aorta.instrument.tape import Tape
from aorta.instrument.waits import WAITS
from aorta.instrument.watching import Watching
from tests.support.gpu import DEVICE, CountedGpu, Stream

START = 1_000


class Group:
    """A process group whose collectives take 20 ns on the current stream."""

    group_name = "all"

    def __init__(self, gpu: CountedGpu) -> None:
        self.gpu = gpu
        self.ran: list[tuple[object, int]] = []
        """Stream and start of each."""

    def size(self) -> int:
        return 2

    def allreduce(self, tensors: list[torch.Tensor], options: object) -> None:
        del tensors, options
        self.run()

    def run(self) -> None:
        self.ran.append((self.gpu.current, self.gpu.current.ns))
        self.gpu.current.work(20)


class Nccl:
    """A process group with a stream of its own: 20 ns each."""

    group_name = "all"
    _device_types: tuple[torch.device, ...] = ()
    bound_device_id: torch.device | None = None

    def __init__(self, gpu: CountedGpu) -> None:
        self.gpu, self.stream = gpu, Stream(gpu)

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 2

    def allreduce(self, tensors: list[torch.Tensor]) -> NcclWork:
        del tensors
        self.stream.ns = max(self.stream.ns, self.gpu.current.ns)
        self.stream.work(20)
        return NcclWork(self.gpu, self.stream.ns)


class NcclWork:
    def __init__(self, gpu: CountedGpu, ns: int) -> None:
        self.gpu, self.ns = gpu, ns

    def wait(self) -> None:
        self.gpu.current.ns = max(self.gpu.current.ns, self.ns)


class Bucket:
    def __init__(self, value: float, last: bool) -> None:
        self.tensor = torch.tensor([value])
        self.last = last

    def buffer(self) -> torch.Tensor:
        return self.tensor

    def is_last(self) -> bool:
        return self.last


class Bench:
    """One open step on a counted GPU."""

    def __init__(self, gpu: CountedGpu, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gpu, self.group = gpu, Group(gpu)
        clock = CudaClock(DEVICE)
        self.tape: Tape | None = Tape(clock.mark(), START)
        self.collectives = CollectiveRunner(clock, DEVICE, lambda: self.tape)
        monkeypatch.setattr("torch.distributed.get_world_size", lambda group: group.size())

    def windows(self) -> list[tuple[str, int, int]]:
        """Of the pieces, ns since the step's start; in the order in which they were noted."""
        assert self.tape is not None
        read = self.tape.read(self.collectives.clock, self.collectives.clock.mark())
        return [(piece[0], piece[2] - START, piece[3] - START) for piece in read.pieces]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> CountedGpu:
    return CountedGpu(monkeypatch)


@pytest.fixture
def bench(gpu: CountedGpu, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(gpu, monkeypatch)


def test_a_bucket_takes_two_events_and_one_wait(gpu: CountedGpu, bench: Bench) -> None:
    exchange: Any = GradientExchange(bench.collectives, bench.group, overlap=True)  # type: ignore[arg-type]
    gpu.compute.work(10)
    before = gpu.calls.copy()
    exchange.hook(None, Bucket(1, last=False))
    assert gpu.since(before) == {"record": 2, "wait": 1, "set_stream": 2, "current_stream": 1, "future": 1}
    before = gpu.calls.copy()
    bench.windows()
    # Ready and done, and the step's end; its start is where the clock counts from.
    assert gpu.since(before) == {"record": 1, "elapsed": 2 + 1, "current_stream": 1}


def called(group: Any, bytes: int = 16, stream: str = "allreduce") -> Called:
    return Called("all_reduce", stream, group, [[torch.zeros(bytes // 4)]], [])


def test_a_call_is_marked_at_both_ends_and_nobody_waits(
    gpu: CountedGpu, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WAITS, "wait", NcclWork.wait)
    nccl: Any = Nccl(gpu)
    watching = Watching(bench.collectives, lambda: gpu.compute)  # type: ignore[arg-type,return-value]
    before, works = gpu.calls.copy(), []
    for computed in (10, 5, 85):
        gpu.compute.work(computed)
        tensors = [torch.zeros(4)]
        works.append(partial(nccl.allreduce, tensors))
        watching.noted(called(nccl), works[-1])
    assert gpu.since(before) == {"record": 6, "set_stream": 6, "current_stream": 6}
    assert (gpu.current, gpu.compute.ns) == (gpu.compute, 10 + 5 + 85)
    assert bench.windows() == [("allreduce", 10, 30), ("allreduce", 30, 50), ("allreduce", 100, 120)]
    assert bench.tape is not None
    assert bench.tape.gates == []
    assert [entry.metadata and entry.metadata["bytes"] for entry in bench.tape.entries] == [16] * 3


def test_compute_stands_still_from_the_wait_to_the_end_of_the_call(
    gpu: CountedGpu, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ready at 10, done at 30: waited for at 15, compute stands still for 15 ns."""
    monkeypatch.setattr(WAITS, "wait", NcclWork.wait)
    nccl: Any = Nccl(gpu)
    watching = Watching(bench.collectives, lambda: gpu.compute)  # type: ignore[arg-type,return-value]
    gpu.compute.work(10)
    made: list[NcclWork] = []

    def begin() -> NcclWork:
        made.append(nccl.allreduce([torch.zeros(1)]))
        return made[0]

    watching.noted(called(nccl), begin)
    gpu.compute.work(5)
    watching.waited(made[0], made[0].wait)
    assert gpu.compute.ns == 30
    assert bench.tape is not None
    read = bench.tape.read(bench.collectives.clock, bench.collectives.clock.mark())
    assert [(name, start - START, end - START) for name, start, end in read.waits] == [("allreduce", 15, 30)]


def test_calls_of_a_batch_end_with_it(gpu: CountedGpu, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL launches a batch of sends and receives as one; the calls in it return works that mean nothing."""
    monkeypatch.setattr(WAITS, "wait", NcclWork.wait)
    nccl: Any = Nccl(gpu)
    watching = Watching(bench.collectives, lambda: gpu.compute)  # type: ignore[arg-type,return-value]
    watching.batched(lambda: None)
    for _ in range(2):
        gpu.compute.work(10)
        watching.noted(called(nccl, stream="alltoall"), lambda: None)
    work = watching.launched(lambda: nccl.allreduce([]))
    assert work.ns == 40
    assert bench.windows() == [("alltoall", 10, 40), ("alltoall", 20, 40)]


def test_in_a_step_that_is_timed_as_a_whole_no_collective_costs_an_event(
    gpu: CountedGpu, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharding, "_all_gather", lambda group, *rest: group.run())
    monkeypatch.setattr(sharding, "_reduce_scatter", lambda group, *rest: group.run())
    nccl: Any = Nccl(gpu)
    watched = Watching(bench.collectives, lambda: gpu.compute)  # type: ignore[arg-type,return-value]
    exchange = ShardedExchange(bench.collectives, lambda: gpu.compute)  # type: ignore[arg-type,return-value]
    fsdp: Any = bench.group
    bench.tape = None
    before = gpu.calls.copy()
    watched.noted(called(nccl), partial(nccl.allreduce, [torch.zeros(1)]))
    exchange.gather(torch.zeros(4), torch.zeros(2), fsdp)
    exchange.scatter(torch.zeros(2), torch.zeros(4), fsdp, torch.distributed.ReduceOp.SUM)
    bench.collectives.joined("allreduce", "norm", {}, fsdp.run, gate=True)
    assert gpu.since(before) == {}
    assert [stream for stream, _ in fsdp.ran] == [gpu.compute] * 3


def test_buckets_run_when_they_are_ready_and_one_after_another(gpu: CountedGpu, bench: Bench) -> None:
    exchange: Any = GradientExchange(bench.collectives, bench.group, overlap=True)  # type: ignore[arg-type]
    futures = []
    for index, computed in enumerate((10, 5, 85)):
        gpu.compute.work(computed)
        futures.append(exchange.hook(None, Bucket(index, last=index == 2)))
    assert gpu.current is gpu.compute
    assert gpu.compute.ns == 10 + 5 + 85  # overlapping: compute waits for nothing here
    side = gpu.side["allreduce"]
    assert bench.group.ran == [(side, 10), (side, 30), (side, 100)]  # the second was ready at 15
    assert [future.ns for future in futures] == [30, 50, 120]
    assert [future.tensor.item() for future in futures] == [0, 1, 2]
    assert bench.windows() == [("allreduce", 10, 30), ("allreduce", 30, 50), ("allreduce", 100, 120)]
    assert bench.tape is not None
    assert bench.tape.gradients_ready.ns == 100  # type: ignore[union-attr]


def test_without_overlap_all_buckets_wait_for_the_last_gradient(gpu: CountedGpu, bench: Bench) -> None:
    exchange: Any = GradientExchange(bench.collectives, bench.group, overlap=False)  # type: ignore[arg-type]
    gpu.compute.work(10)
    first = exchange.hook(None, Bucket(1, last=False))
    assert (first.ns, bench.group.ran) == (None, [])
    gpu.compute.work(40)
    last = exchange.hook(None, Bucket(2, last=True))
    assert (first.ns, last.ns) == (70, 90)
    assert bench.windows() == [("allreduce", 50, 70), ("allreduce", 70, 90)]


def test_a_collective_aside_waits_for_its_data_and_its_user_for_it(gpu: CountedGpu, bench: Bench) -> None:
    gpu.compute.work(10)
    before = gpu.calls.copy()
    bench.collectives.aside("allgather", "mine", {}, bench.group.run)
    assert gpu.since(before) == {"record": 2, "wait": 1, "set_stream": 2, "current_stream": 1}
    assert gpu.compute.ns == 10
    bench.collectives.joined("allgather", "mine", {}, bench.group.run, gate=True)
    assert gpu.compute.ns == 50
    assert gpu.current is gpu.compute
    assert bench.group.ran == [(gpu.side["allgather"], 10), (gpu.side["allgather"], 30)]
    assert bench.windows() == [("allgather", 10, 30), ("allgather", 30, 50)]
    assert bench.tape is not None
    [gate] = bench.tape.gates
    assert (gate.start.ns, gate.end.ns) == (10, 50)  # type: ignore[union-attr]


def test_a_collective_that_fails_leaves_the_stream_as_it_was(gpu: CountedGpu, bench: Bench) -> None:
    def broken() -> None:
        raise RuntimeError("no peer")

    with pytest.raises(RuntimeError, match="no peer"):
        bench.collectives.joined("allreduce", "mine", {}, broken)
    assert gpu.current is gpu.compute
    assert bench.tape is not None
    assert bench.tape.entries == []


def test_fsdp2s_collectives_stay_on_its_own_streams(
    gpu: CountedGpu, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharding, "_all_gather", lambda group, *rest: group.run())
    monkeypatch.setattr(sharding, "_reduce_scatter", lambda group, *rest: group.run())
    exchange = ShardedExchange(bench.collectives, lambda: gpu.compute)  # type: ignore[arg-type,return-value]
    whole, part = torch.zeros(4), torch.zeros(2)
    group: Any = bench.group
    before = gpu.calls.copy()
    exchange.gather(whole, part, group)
    assert gpu.since(before) == {"record": 2, "current_stream": 1}
    before = gpu.calls.copy()
    exchange.scatter(part, whole, group, torch.distributed.ReduceOp.SUM)
    # One more: where the gradients were ready, on the stream of compute.
    assert gpu.since(before) == {"record": 3, "current_stream": 1}
    assert bench.windows() == [("allgather", 0, 20), ("reducescatter", 20, 40)]


@pytest.mark.parametrize("timed", [True, False])
def test_weights_that_the_program_asks_for_ahead_do_not_stop_its_compute(
    gpu: CountedGpu, bench: Bench, monkeypatch: pytest.MonkeyPatch, timed: bool
) -> None:
    nccl: Any = Nccl(gpu)
    monkeypatch.setattr(sharding, "_all_gather", lambda group, output, *_: group.allreduce([output]))
    exchange = ShardedExchange(bench.collectives, lambda: gpu.compute)  # type: ignore[arg-type,return-value]
    if not timed:
        bench.tape = None
        exchange.watch(False)
    gather, before = sharding._Gather(exchange), gpu.calls.copy()
    gpu.compute.work(10)
    work = gather(torch.zeros(4), torch.zeros(2), nccl, async_op=True)
    assert (gpu.current, gpu.compute.ns) == (gpu.compute, 10)
    gpu.compute.work(5)
    work.wait()  # as FSDP2 does where the weights are needed
    assert gpu.compute.ns == 10 + 20
    if not timed:
        assert gpu.since(before) == {}
        return
    assert bench.windows() == [("allgather", 10, 30)]
    assert gather.done is not None
    assert (gather.done.ns, gather.tape) == (30, bench.tape)  # type: ignore[union-attr]
    # Without `async_op` the current stream waits, which is one of FSDP2's own.
    assert gather(torch.zeros(4), torch.zeros(2), nccl) is None


def test_without_overlap_weights_are_not_asked_for_ahead(gpu: CountedGpu, bench: Bench) -> None:
    exchange = ShardedExchange(
        bench.collectives,
        lambda: gpu.compute,  # type: ignore[arg-type,return-value]
        overlap_gather=False,
    )
    assert not exchange.beside(Nccl(gpu))  # type: ignore[arg-type]
