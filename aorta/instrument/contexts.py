"""The open step, and the contexts of its parts.

They are entered in every step of a program that may be host-bound. The CPU's caches then contain the program
and none of this code, so each function call and each new object costs a few µs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, get_args

import torch

from aorta.artefacts import names
from aorta.artefacts.step_names import Between
from aorta.errors import RunError
from aorta.instrument.nvtx import NvtxRanges
from aorta.instrument.opened import Step
from aorta.instrument.steps import COMPUTE, DATA, HOST
from aorta.instrument.streams import Clock, Mark, current_stream
from aorta.instrument.tape import Tape
from aorta.units import NS_PER_MS


class Nothing:
    """A context that does nothing, in no line of Python: both ends are calls of C. Several threads may be in
    it at once: autograd's thread repeats the forward pass of a checkpoint while the training thread is in
    the backward pass.
    """

    __slots__ = ()
    __enter__: Any = [].clear
    """Returns None."""
    __exit__: Any = "".format
    """Returns an empty text, whatever was raised: it counts as False."""


class OpenStep:
    """The step and the part that the training thread is in.

    Args:
        clock: where marks come from.
        device: where the model is.
        ranges: NVTX ranges, if a profiler listens.
    """

    __slots__ = ("_cuda", "clock", "device", "nothing", "parts", "quiet", "ranges", "step", "stream")

    def __init__(self, clock: Clock, device: torch.device, ranges: NvtxRanges | None) -> None:
        self.clock, self.device, self.ranges = clock, device, ranges
        self._cuda = device.type == "cuda"
        self.stream: torch.cuda.Stream | None = None
        """The stream of the model's compute; None without a GPU."""
        self.step: Step | None = None
        self.parts: Tape | None = None
        """The tape of a step that is timed part by part."""
        self.quiet = False
        """A step is open, but its parts are not needed."""
        self.nothing = Nothing()

    def begin(self, step: Step, parts: bool) -> None:
        """`step` is the open one from here on."""
        if self.ranges is not None:
            self.ranges.push(names.STEP_RANGE)
        # The host's time first: a GPU passes the mark after it, never before.
        step.host_start_ns = time.monotonic_ns()
        if self._cuda:
            self.stream = current_stream(self.device)
        step.start = self.clock.mark(self.stream)
        if parts:
            self.parts = step.tape = Tape(step.start, step.host_start_ns)
        else:
            self.quiet = self.ranges is None
        self.step = step

    def end(self) -> None:
        """Notes that no step is open any more."""
        self.step = self.parts = None
        self.quiet = False
        if self.ranges is not None:
            self.ranges.pop()

    def mark(self) -> Mark:
        """A mark of this moment on the stream of the model's compute."""
        return self.clock.mark(self.stream)


def outside() -> RunError:
    """The error to raise where no step is open."""
    return RunError("a part of a step was timed outside of a step", "open it with `with recorder.step(...)`")


class ComputePart:
    """A part of a step that is compute, from mark to mark. Entered again and again, but not inside itself."""

    __slots__ = ("_now", "_start", "_tape", "inside", "tag")

    def __init__(self, now: OpenStep, tag: str) -> None:
        self._now, self.tag = now, tag
        self.inside = False

    def __enter__(self) -> None:
        now = self._now
        if now.step is None:
            raise outside()
        self._tape, self.inside = now.parts, True
        if self._tape is not None:
            self._start = now.mark()
        if now.ranges is not None:
            now.ranges.push(names.part_range(self.tag))

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        now, tape = self._now, self._tape
        self.inside = False
        if now.ranges is not None:
            now.ranges.pop()
        if kind is not None or tape is None:
            return
        end = now.mark()
        if self.tag == "backward":
            tape.add_backward(self._start, end)
        else:
            tape.add(COMPUTE, self.tag, self._start, end)


class LoaderWait:
    """Waiting for a batch: time of the host. Entered again and again, but not inside itself."""

    __slots__ = ("_now", "_start", "_step", "inside")

    def __init__(self, now: OpenStep) -> None:
        self._now = now
        self.inside = False

    def __enter__(self) -> None:
        now = self._now
        if now.step is None:
            raise outside()
        self._step, self.inside = now.step, True
        if now.ranges is not None:
            now.ranges.push(names.LOADER_RANGE)
        self._start = time.monotonic_ns()

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        end, now = time.monotonic_ns(), self._now
        self.inside = False
        if now.ranges is not None:
            now.ranges.pop()
        if kind is not None:
            return
        self._step.data_wait_ns += end - self._start
        if now.parts is not None:
            now.parts.add(HOST, DATA, self._start, end)


class NamedGaps:
    """Gives time between steps a name. Call it with what the program does; it must be outside of a step."""

    __slots__ = ("_named", "_now")

    def __init__(self, now: OpenStep) -> None:
        self._now = now
        self._named: dict[Between, float] = {}

    @contextmanager
    def __call__(self, what: Between) -> Iterator[None]:
        """Count the time of the block as `validation`, `checkpoint` or `logging`.

        Raises:
            RunError: the block lies within a step, or has another name.
        """
        if self._now.step is not None or what not in get_args(Between):
            known = ", ".join(get_args(Between))
            raise RunError(
                f"recorder.between({what!r}) is inside a step" if self._now.step else f"no name: {what!r}",
                f"call it between two steps, with one of: {known}",
            )
        start = time.monotonic_ns()
        try:
            yield
        finally:
            taken = (time.monotonic_ns() - start) / NS_PER_MS
            self._named[what] = self._named.get(what, 0.0) + taken

    def taken(self) -> dict[Between, float] | None:
        """Return what was named since the last call. None if nothing was."""
        if not self._named:
            return None
        named, self._named = self._named, {}
        return named
