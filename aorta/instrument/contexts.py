"""The open step, and the contexts of its parts.

They are entered in every step of a program that may be bound by its host, with caches that hold the program
and nothing of ours: each function that is called costs some µs there, and so does each object that is made.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext

import torch

from aorta.errors import RunError
from aorta.instrument.nvtx import Ranges
from aorta.instrument.steps import COMPUTE, DATA, HOST
from aorta.instrument.streams import Clock, Mark, current_stream
from aorta.instrument.tape import Tape


class OpenStep:
    """What the training thread is in.

    Args:
        clock: where marks come from.
        device: where the model is.
        ranges: NVTX's, where somebody listens.
    """

    __slots__ = ("_cuda", "clock", "device", "parts", "quiet", "ranges", "stream", "tape")

    def __init__(self, clock: Clock, device: torch.device, ranges: Ranges | None) -> None:
        self.clock, self.device, self.ranges = clock, device, ranges
        self._cuda = device.type == "cuda"
        self.stream: torch.cuda.Stream | None = None
        """Of the model's compute, on a GPU."""
        self.tape: Tape | None = None
        self.parts: Tape | None = None
        """The tape of a step that is timed part by part."""
        self.quiet = False
        """A step is open, and nobody wants to know of its parts."""

    def begin(self, parts: bool) -> Tape:
        """A new tape."""
        if self.ranges is not None:
            self.ranges.push("aorta.step")
        # The host's time first: a GPU passes the mark after it, never before.
        host_ns, wall_ns = time.monotonic_ns(), time.time_ns()
        boot_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)  # monotonic, and counting while suspended
        if self._cuda:
            self.stream = current_stream(self.device)
        tape = Tape(self.clock.mark(self.stream), host_ns, wall_ns, boot_ns)
        self.tape, self.parts = tape, tape if parts else None
        self.quiet = not parts and self.ranges is None
        return tape

    def end(self) -> None:
        """No step is open any more."""
        self.tape = self.parts = None
        self.quiet = False
        if self.ranges is not None:
            self.ranges.pop()

    def mark(self) -> Mark:
        """This moment on the stream of the model's compute."""
        return self.clock.mark(self.stream)


def outside() -> RunError:
    """What to raise where no step is open."""
    return RunError("a part of a step was timed outside of a step", "open it with `with recorder.step(...)`")


_NOTHING = nullcontext()


class Part:
    """A part of a step that is compute, from mark to mark. Entered again and again, but not inside itself."""

    __slots__ = ("_now", "_start", "_tag", "_tape", "inside")

    def __init__(self, now: OpenStep, tag: str) -> None:
        self._now, self._tag = now, tag
        self.inside = False

    def free(self) -> AbstractContextManager[None]:
        """This one, or one like it where it is entered already; one that does nothing in a quiet step."""
        if self._now.quiet:
            return _NOTHING
        return Part(self._now, self._tag) if self.inside else self

    def __enter__(self) -> None:
        now = self._now
        if now.tape is None:
            raise outside()
        self._tape, self.inside = now.parts, True
        if self._tape is not None:
            self._start = now.mark()
        if now.ranges is not None:
            now.ranges.push(f"aorta.{self._tag}")

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        now, tape = self._now, self._tape
        self.inside = False
        if now.ranges is not None:
            now.ranges.pop()
        if kind is not None or tape is None:
            return
        end = now.mark()
        if self._tag == "backward":
            tape.add_backward(self._start, end)
        else:
            tape.add(COMPUTE, self._tag, self._start, end)


class Wait:
    """Waiting for a batch: time of the host. Entered again and again, but not inside itself."""

    __slots__ = ("_now", "_start", "_tape", "inside")

    def __init__(self, now: OpenStep) -> None:
        self._now = now
        self.inside = False

    def free(self) -> Wait:
        """This one, or one like it where it is entered already."""
        return Wait(self._now) if self.inside else self

    def __enter__(self) -> None:
        now = self._now
        if now.tape is None:
            raise outside()
        self._tape, self._start, self.inside = now.tape, time.monotonic_ns(), True
        if now.ranges is not None:
            now.ranges.push("aorta.data")

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        now, tape = self._now, self._tape
        self.inside = False
        if now.ranges is not None:
            now.ranges.pop()
        if kind is not None:
            return
        end = time.monotonic_ns()
        tape.data_wait_ns += end - self._start
        if now.parts is not None:
            tape.add(HOST, DATA, self._start, end)
