"""Two clocks with one interface: the host's, and the GPU's as events that are read later.

A mark is a moment. On the host it is an integer (CLOCK_MONOTONIC, ns). On a GPU, it is an event in the
current stream, and its time is known once the stream has passed it. Nothing waits for that during training.
"""

from __future__ import annotations

import ctypes
import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import torch

from aorta.units import NS_PER_MS

log = logging.getLogger(__name__)

Mark: TypeAlias = "int | torch.cuda.Event"


_STREAMS: dict[tuple[int, int, int], torch.cuda.Stream] = {}
_current: Callable[[int], Any] | None = getattr(torch._C, "_cuda_getCurrentStream", None)


def current_stream(device: torch.device) -> torch.cuda.Stream:
    """`torch.cuda.current_stream`, which makes a new object in every call."""
    if _current is None or device.index is None:
        return torch.cuda.current_stream(device)
    key: tuple[int, int, int] = tuple(_current(device.index))
    found = _STREAMS.get(key)
    if found is None:
        found = _STREAMS[key] = torch.cuda.current_stream(device)
    return found


class HostClocks(NamedTuple):
    """Lead of the host's other clocks over the monotonic one, ns."""

    wall_ahead_ns: int
    boot_ahead_ns: int
    """CLOCK_BOOTTIME, which goes on counting while the machine is suspended."""

    @classmethod
    def now(cls) -> HostClocks:
        """Read one after another; a µs lies between them."""
        host_ns = time.monotonic_ns()
        return cls(time.time_ns() - host_ns, time.clock_gettime_ns(time.CLOCK_BOOTTIME) - host_ns)


class Clock(Protocol):
    """Times as the recorder needs them."""

    timing: Literal["host", "event_window", "kernel"]

    def mark(self, stream: torch.cuda.Stream | None = None) -> Mark:
        """This moment, on `stream`; None is the current one."""

    def passed(self, mark: Mark) -> bool:
        """True if the moment is over, so that `nanoseconds` answers at once. Asked before marks are read."""

    def wait(self, mark: Mark) -> None:
        """Block until `passed`."""

    def anchor(self, mark: Mark, host_ns: int) -> None:
        """Count from `mark`, which was taken at `host_ns` of the host's clock."""

    def nanoseconds(self, mark: Mark) -> int:
        """The host clock's ns at which `mark` was passed."""

    def release(self, marks: Iterable[Mark]) -> None:
        """These marks were read and are not needed any more. One may be named twice."""


class HostClock:
    """Marks are the host's monotonic ns."""

    timing: Literal["host", "event_window", "kernel"] = "host"

    def mark(self, stream: torch.cuda.Stream | None = None) -> Mark:  # noqa: ARG002
        """This moment."""
        return time.monotonic_ns()

    def passed(self, mark: Mark) -> bool:  # noqa: ARG002
        """Always: a host mark is known when taken."""
        return True

    def wait(self, mark: Mark) -> None:
        """Nothing to wait for."""

    def anchor(self, mark: Mark, host_ns: int) -> None:
        """Host marks need no anchor."""

    def nanoseconds(self, mark: Mark) -> int:
        """The mark itself."""
        assert isinstance(mark, int)
        return mark

    def release(self, marks: Iterable[Mark]) -> None:
        """Integers need no care."""


def runtime_elapsed() -> Callable[[torch.cuda.Event, torch.cuda.Event], float | None] | None:
    """`cudaEventElapsedTime` of the CUDA runtime that torch has loaded. It costs a fraction of torch's own
    method, and a step has a hundred events to read.

    Returns:
        A function for one thread, from two events of the current device to the ms between them, or to None
        if the runtime refuses. None if torch has no such library.
    """
    if torch.version.cuda is None:
        return None
    name = f"libcudart.so.{torch.version.cuda.split('.')[0]}"
    try:
        # The one that is there already, or none. The call never blocks, so the interpreter stays ours in it.
        library = ctypes.PyDLL(name, mode=os.RTLD_NOW | os.RTLD_NOLOAD)
        elapsed, forget = library.cudaEventElapsedTime, library.cudaGetLastError
    except (OSError, AttributeError):
        return None
    elapsed.argtypes = (ctypes.POINTER(ctypes.c_float), ctypes.c_void_p, ctypes.c_void_p)
    elapsed.restype = forget.restype = ctypes.c_int
    forget.argtypes = ()
    return partial(_elapsed, elapsed, forget, ctypes.c_float())


def _elapsed(
    elapsed: Callable[..., int],
    forget: Callable[[], int],
    found: ctypes.c_float,
    start: torch.cuda.Event,
    end: torch.cuda.Event,
) -> float | None:
    if elapsed(found, start.cuda_event, end.cuda_event):
        forget()  # torch would take it for an error of its next kernel
        return None
    return found.value


class CudaClock:
    """Marks are CUDA events, placed on the host's monotonic clock.

    Events give differences only. The start event of each step is chained to the previous one. Causality ties
    the chain to the host's clock: an event cannot have been passed before it was recorded. If the GPU was
    idle at a step's start, this bound is tight, so drift between the two clocks cannot grow. In the first
    step, the GPU is idle, because the constructor waits for it. A chain instead of one long difference,
    because `elapsed_time` is a 32-bit float of ms that loses µs after some seconds.
    """

    timing: Literal["host", "event_window", "kernel"] = "event_window"

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._origin: torch.cuda.Event | None = None
        self._origin_ns = 0
        self._free: list[torch.cuda.Event] = []
        self._runtime = runtime_elapsed()
        self._here = False
        torch.cuda.synchronize(device)

    def mark(self, stream: torch.cuda.Stream | None = None) -> Mark:
        """An event in `stream`, or in the current stream of this device."""
        # Creating an event costs the host more than recording it, and a step has a hundred of them.
        event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)
        event.record(stream if stream is not None else current_stream(self._device))
        return event

    def passed(self, mark: Mark) -> bool:
        """True if the stream has passed the event; does not wait."""
        if isinstance(mark, int):
            return True
        if self._runtime is not None:
            # Unlike torch, the runtime asks the current device, which is the program's to choose.
            self._here = self._device.index in (None, torch.cuda.current_device())
        return bool(mark.query())

    def wait(self, mark: Mark) -> None:
        """Wait for the event."""
        if not isinstance(mark, int):
            mark.synchronize()

    def anchor(self, mark: Mark, host_ns: int) -> None:
        """Make `mark`, an event recorded at `host_ns`, the origin of `nanoseconds`."""
        assert not isinstance(mark, int)
        if self._origin is None:
            self._origin_ns = host_ns
        else:
            self._origin_ns = max(host_ns, self._origin_ns + self._elapsed_ns(self._origin, mark))
            self._free.append(self._origin)
        self._origin = mark

    def nanoseconds(self, mark: Mark) -> int:
        """The host clock's ns at which the GPU passed `mark`; a host mark is returned as it is."""
        if isinstance(mark, int):
            return mark
        assert self._origin is not None
        return self._origin_ns + (self._elapsed_ns(self._origin, mark) if mark is not self._origin else 0)

    def _elapsed_ns(self, start: torch.cuda.Event, end: torch.cuda.Event) -> int:
        ms = self._runtime(start, end) if self._here and self._runtime is not None else None
        # Torch's own way says what is wrong, where something is.
        return round((start.elapsed_time(end) if ms is None else ms) * NS_PER_MS)

    def release(self, marks: Iterable[Mark]) -> None:
        """Keep the events for later marks; the origin stays what it is."""
        unique = {id(mark): mark for mark in marks if not isinstance(mark, int) and mark is not self._origin}
        self._free.extend(unique.values())


_CANDIDATES = 32
"""torch hands out its pool of streams in turn; after so many all of them were tried."""
_BUSY_CYCLES = 20_000_000
"""About 10 ms on a GPU of 2 GHz."""
_PATIENCE_S = 0.004


class Streams:
    """The streams of one GPU by name: the current one, and others that are made when first asked for.

    A GPU has fewer queues than a program has streams (CUDA_DEVICE_MAX_CONNECTIONS, 8 by default). Two
    streams of one queue run their work in launch order, as if they were one stream. A collective that waits
    for a slow rank then blocks the compute launched after it. So a stream is tried before it is used.

    Args:
        device: a GPU.
        priority: of the streams of communication, as CUDA counts it (-1 before 0); None leaves each strategy
            to what it would use without us.
    """

    def __init__(self, device: torch.device, priority: int | None = None) -> None:
        self._device = device
        self._made: dict[str, torch.cuda.Stream] = {}
        self.priority = priority

    def of(self, name: str) -> torch.cuda.Stream:
        """The stream called `name`: allreduce, reducescatter, allgather, aux."""
        if name not in self._made:
            priority = 0 if name == "aux" or self.priority is None else self.priority
            others = [torch.cuda.current_stream(self._device), *self._made.values()]
            self._made[name] = _beside(others, lambda: torch.cuda.Stream(self._device, priority=priority))
        return self._made[name]


def _beside(others: Sequence[torch.cuda.Stream], make: Callable[[], torch.cuda.Stream]) -> torch.cuda.Stream:
    """A stream on which work does not hold up any of `others`; one that does, with a warning, if all do."""
    for _ in range(_CANDIDATES):
        stream = make()
        if not holds_up(stream, others):
            return stream
    log.warning(
        "every stream shares a GPU queue with compute, so nothing can overlap: raise "
        "CUDA_DEVICE_MAX_CONNECTIONS, or use fewer streams"
    )
    return stream


def holds_up(stream: torch.cuda.Stream, others: Sequence[torch.cuda.Stream]) -> bool:
    """True if work launched on `others` waits for work that was launched before it on `stream`.

    Takes up to 15 ms, and waits for what runs on the GPU.
    """
    torch.cuda.synchronize(stream.device)
    busy, passed = torch.cuda.Event(), [torch.cuda.Event() for _ in others]
    with torch.cuda.stream(stream):
        torch.cuda._sleep(_BUSY_CYCLES)
        busy.record()
    for other, event in zip(others, passed, strict=True):
        event.record(other)
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline and not all(event.query() for event in passed):
        pass
    waiting = not all(event.query() for event in passed)
    overslept = busy.query()  # the host was held up for longer than the GPU: it cannot be told
    torch.cuda.synchronize(stream.device)
    return waiting and not overslept


def clock_for(device: torch.device) -> Clock:
    """The clock on which work of `device` is timed."""
    return CudaClock(device) if device.type == "cuda" else HostClock()
