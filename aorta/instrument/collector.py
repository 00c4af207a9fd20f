"""Pauses of Python's garbage collector: while it runs, no thread of the process runs Python."""

from __future__ import annotations

import gc
import time
from typing import Any

from aorta.instrument.contexts import OpenStep
from aorta.instrument.steps import HOST
from aorta.instrument.tape import Tape

SHORTEST_NS = 100_000
"""Shorter pauses come hundreds of times per step and take next to nothing."""


class CollectorPauses:
    """Notes the collector's pauses in steps that are timed part by part.

    They are on the stream `host` with the tag `gc`, in addition to the parts of the step: a pause in the
    forward pass belongs to both. In other steps nothing is called.
    """

    def __init__(self, now: OpenStep) -> None:
        self._now = now
        self._tape: Tape | None = None
        self._start = 0

    def watch(self, on: bool) -> None:
        """Switches the calls by the garbage collector on or off."""
        if on and self._called not in gc.callbacks:
            gc.callbacks.append(self._called)
        elif not on and self._called in gc.callbacks:
            gc.callbacks.remove(self._called)

    def _called(self, phase: str, _: dict[str, Any]) -> None:
        if phase == "start":
            self._tape, self._start = self._now.parts, time.monotonic_ns()
            return
        tape, end = self._tape, time.monotonic_ns()
        self._tape = None
        if tape is not None and tape is self._now.parts and end - self._start >= SHORTEST_NS:
            tape.add(HOST, "gc", self._start, end)
