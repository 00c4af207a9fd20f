"""GPU events on the host's clock, with events whose times are given; real ones where there is a GPU."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import c_float
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from aorta.instrument import streams
from aorta.instrument.streams import (
    CudaClock,
    HostClock,
    Streams,
    _elapsed,
    clock_for,
    current_stream,
    holds_up,
    runtime_elapsed,
)


@dataclass
class Event:
    """A passed event at a GPU time in ns."""

    gpu_ns: int

    def elapsed_time(self, other: Event) -> float:
        return (other.gpu_ns - self.gpu_ns) / 1e6

    def query(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    # A torch that is built for CUDA has the runtime where there is no GPU, too.
    monkeypatch.setattr(streams, "runtime_elapsed", lambda: None)
    monkeypatch.setattr(streams, "_current", None)
    return CudaClock(torch.device("cuda", 0))


def test_the_first_step_is_at_the_hosts_time(clock: Any) -> None:
    clock.anchor(Event(7_000), 1_000_000)
    assert clock.nanoseconds(Event(9_000)) == 1_000_000 + 2_000
    assert clock.nanoseconds(1_234) == 1_234  # a host mark


def test_a_busy_gpu_reaches_the_mark_later_than_the_host(clock: Any) -> None:
    clock.anchor(Event(0), 1_000)
    clock.anchor(Event(50_000), 20_000)  # recorded at 20 µs, passed at 1 + 50 µs
    assert clock.nanoseconds(Event(50_000)) == 51_000


def test_an_event_is_never_before_its_recording(clock: Any) -> None:
    clock.anchor(Event(0), 1_000)
    clock.anchor(Event(50_000), 60_000)  # the chain says 51 µs: the GPU's clock runs slow
    assert clock.nanoseconds(Event(50_000)) == 60_000


def test_events_that_were_read_are_used_again(clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Recorded(Event):
        def record(self, stream: object) -> None:
            pass

    made: list[Event] = []

    def make(enable_timing: bool) -> Event:
        made.append(Recorded(0))
        return made[-1]

    monkeypatch.setattr(torch.cuda, "Event", make)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    start, end = clock.mark(), clock.mark()
    clock.anchor(start, 1_000)
    clock.release([start, end, end])  # the origin is still needed, and one event is one event
    assert clock.mark() is end
    assert clock.mark() is made[2]
    assert len(made) == 3
    clock.anchor(made[2], 2_000)  # the origin from now on
    assert clock.mark() is start
    assert len(made) == 3


class Handle:
    """An event that the runtime knows by an address, here its time in ms; torch is not asked for it."""

    def __init__(self, ms: int) -> None:
        self.cuda_event = ms


def test_the_runtime_gives_the_time_between_two_events_or_refuses() -> None:
    def works(found: Any, start: int, end: int) -> int:
        found.value = end - start
        return 0

    start: Any = Handle(40)
    end: Any = Handle(43)
    assert _elapsed(works, pytest.fail, c_float(), start, end) == 3.0
    forgotten: list[str] = []

    def forget() -> int:
        forgotten.append("error")
        return 600

    assert _elapsed(lambda *_: 600, forget, c_float(), start, end) is None
    assert forgotten == ["error"]  # it must not come up at the next kernel


def test_where_torch_has_no_such_library_it_is_asked_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    assert runtime_elapsed() is None
    monkeypatch.setattr(torch.version, "cuda", "99.1")  # not loaded by anyone
    assert runtime_elapsed() is None


@pytest.mark.parametrize(
    ("current", "answer", "ns"), [(0, 2.0, 2_000_000), (0, None, 9_000), (1, 2.0, 9_000)]
)
def test_the_runtime_is_asked_for_events_of_the_current_device_only(
    monkeypatch: pytest.MonkeyPatch, current: int, answer: float | None, ns: int
) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current)
    monkeypatch.setattr(streams, "runtime_elapsed", lambda: lambda start, end: answer)
    clock: Any = CudaClock(torch.device("cuda", 0))
    end = Event(9_000)
    assert clock.passed(end)
    clock.anchor(Event(0), 1_000)
    assert clock.nanoseconds(end) == 1_000 + ns


def test_one_object_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    current = [(7, 0, 1)]
    made: list[object] = []

    def make(device: torch.device) -> object:
        made.append(device)
        return object()

    monkeypatch.setattr(streams, "_STREAMS", {})
    monkeypatch.setattr(streams, "_current", lambda index: current[index])
    monkeypatch.setattr(torch.cuda, "current_stream", make)
    device = torch.device("cuda", 0)
    first = current_stream(device)
    assert current_stream(device) is first
    current[0] = (8, 0, 1)
    other = current_stream(device)
    assert other is not first
    current[0] = (7, 0, 1)
    assert current_stream(device) is first
    assert made == [device, device]


def test_the_host_is_timed_by_the_host() -> None:
    clock = clock_for(torch.device("cpu"))
    assert isinstance(clock, HostClock)
    before, mark, after = time.monotonic_ns(), clock.mark(), time.monotonic_ns()
    assert before <= clock.nanoseconds(mark) <= after
    assert clock.passed(mark)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_the_runtime_and_torch_agree() -> None:
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    clock = CudaClock(device)
    start: Any = clock.mark()
    torch.cuda._sleep(1_000_000)  # type: ignore[no-untyped-call]
    end: Any = clock.mark()
    torch.cuda.synchronize(device)
    elapsed = runtime_elapsed()
    if elapsed is None:
        pytest.skip("torch has the CUDA runtime inside")
    assert elapsed(start, end) == start.elapsed_time(end) > 0
    torch.cuda._sleep(200_000_000)  # type: ignore[no-untyped-call]
    later: Any = clock.mark()
    assert elapsed(start, later) is None  # not passed yet
    torch.ones(8, device=device).sum().item()  # and no error is left for it
    assert current_stream(device) == torch.cuda.current_stream(device)
    with torch.cuda.stream(torch.cuda.Stream(device)):
        assert current_stream(device) == torch.cuda.current_stream(device)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_events_lie_between_the_host_times_around_them() -> None:
    clock = CudaClock(torch.device("cuda", 0))
    work = torch.ones(2048, 2048, device="cuda")
    for _ in range(5):
        before = time.monotonic_ns()
        start = clock.mark()
        work = work @ work / 2048
        end = clock.mark()
        clock.wait(end)
        after = time.monotonic_ns()
        clock.anchor(start, before)
        assert before <= clock.nanoseconds(start) < clock.nanoseconds(end) <= after + 100_000


class Queue:
    """A stream on one of a GPU's queues; what was launched on a busy queue has not passed."""

    device = torch.device("cuda", 0)

    def __init__(self, queue: int) -> None:
        self.queue = queue


class GpuOfTwoQueues:
    """Stands in for `torch.cuda`: work on a queue passes only once the GPU is synchronised."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.busy: set[int] = set()
        self.now = [Queue(0)]
        self.made = 0
        gpu = self

        class Event:
            queue: int | None = None

            def record(self, stream: Queue | None = None) -> None:
                self.queue = (stream or gpu.now[-1]).queue

            def query(self) -> bool:
                return self.queue not in gpu.busy

        @contextmanager
        def stream(chosen: Queue) -> Iterator[None]:
            gpu.now.append(chosen)
            yield
            gpu.now.pop()

        def make(device: torch.device, priority: int = 0) -> Queue:
            del device, priority
            gpu.made += 1
            return Queue((gpu.made - 1) % 2)

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "stream", stream)
        monkeypatch.setattr(torch.cuda, "Stream", make)
        monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: gpu.busy.add(gpu.now[-1].queue))
        monkeypatch.setattr(torch.cuda, "synchronize", lambda device: gpu.busy.clear())
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: gpu.now[-1])


def test_a_stream_that_shares_the_queue_of_compute_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = GpuOfTwoQueues(monkeypatch)
    streams = Streams(torch.device("cuda", 0))
    assert streams.of("allreduce").queue == 1  # type: ignore[attr-defined]
    assert gpu.made == 2
    assert streams.of("allreduce") is streams.of("allreduce")


def test_where_every_stream_shares_a_queue_one_is_taken_and_it_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    GpuOfTwoQueues(monkeypatch)
    streams = Streams(torch.device("cuda", 0))
    streams.of("allreduce")
    streams.of("aux")  # both queues are taken
    assert "CUDA_DEVICE_MAX_CONNECTIONS" in caplog.text


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_a_stream_holds_up_itself_and_a_chosen_one_does_not_hold_up_compute() -> None:
    device = torch.device("cuda", 0)
    compute = torch.cuda.current_stream(device)
    assert holds_up(compute, [compute])
    assert not holds_up(Streams(device).of("allreduce"), [compute])
