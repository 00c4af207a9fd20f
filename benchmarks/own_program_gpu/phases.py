"""Compares windows of events with the kernels of the same phases, as Kineto records them.

A window reaches from an event before a phase to one after it. The GPU passes an event when the host has
recorded it and all kernels ahead of it have run. So a window holds all time in which the GPU waits for the
host. It is compared with

- the phase: the same two moments, from Kineto's kernels and the host's clock;
- the span from the start of the phase's first kernel to the end of its last one;
- the kernels' own time, which is like it only where the GPU is busy all the time.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from aorta.inject.parts import StepMarks
from aorta.instrument.activity import Kernel
from aorta.instrument.sampler import KernelSampler

Phase = tuple[str, int, int]
"""Its part, and both ends on the wall clock of the host, ns."""


class Phases:
    """Keeps the phases and kernels of sampled steps. Make it before the hooks are installed."""

    def __init__(self) -> None:
        self._open: list[Phase] = []
        self._steps: list[tuple[list[Phase], list[Kernel]]] = []
        begins, ended, after = StepMarks.begins, StepMarks.ended, KernelSampler.after_step
        began: dict[str, int] = {}

        def begins_too(marks: Any, part: str) -> bool:
            done = begins(marks, part)
            if done:
                began[part] = time.time_ns()
            return done

        def ended_too(marks: Any) -> None:
            part = marks.part
            ended(marks)
            self._open.append((part, began[part], time.time_ns()))

        def after_too(sampler: Any, start_ns: int) -> Any:
            kernels = after(sampler, start_ns)
            if kernels is not None:
                self._steps.append((self._open, kernels))
            self._open = []
            return kernels

        StepMarks.begins, StepMarks.ended = begins_too, ended_too  # type: ignore[method-assign]
        KernelSampler.after_step = after_too  # type: ignore[method-assign]

    def write(self, path: Path) -> None:
        """Write, for each sampled step, per phase: its part, its own time, its span, its kernels', in ms."""
        found = [[_measured(phase, kernels) for phase in phases] for phases, kernels in self._steps]
        path.write_text(json.dumps(found))


def _measured(phase: Phase, kernels: list[Kernel]) -> tuple[str, float, float, float]:
    part, began, ended = phase
    computed = [one for one in kernels if one.stream == "compute" and one.launched <= ended]
    own = sorted((one.start, one.end) for one in computed if began <= one.launched)
    ahead = max((one.end for one in computed if one.launched < began), default=0)
    passed = max(ended, *(one.end for one in computed), 0) - max(began, ahead)
    busy, until = 0, 0
    for start, end in own:
        busy += max(end - max(start, until), 0)
        until = max(until, end)
    span = until - own[0][0] if own else 0
    return part, passed / 1e6, span / 1e6, busy / 1e6


def compared(path: Path, steps: list[dict[str, Any]]) -> str:
    """Return windows over phases, spans and kernels, for the parts that both saw as often.

    Args:
        path: written by `Phases`.
        steps: records of the sampled steps, in order.
    """
    if not path.is_file():
        return "nothing was sampled"
    said = []
    for phases, step in zip(json.loads(path.read_text()), steps, strict=False):
        ranges = [one for one in step["profile"]["ranges"] if one["stream"] == "compute"]
        windows = [(one["tag"], one["duration_ms"]) for one in ranges]
        if [part for part, *_ in phases] != [tag for tag, _ in windows]:
            said.append(
                f"phases {[part for part, *_ in phases]} are not windows {[tag for tag, _ in windows]}"
            )
            continue
        window = sum(ms for _, ms in windows)
        phase, span, busy = (sum(one[at] for one in phases) for at in (1, 2, 3))
        each = " ".join(
            f"{part} {ms:.2f}/{own:.2f}" for (part, own, *_), (_, ms) in zip(phases, windows, strict=True)
        )
        said.append(
            f"over phases {window / phase:.4f}, spans {window / span:.4f}, kernels {window / busy:.4f}"
            f" ({each} ms)"
        )
    return "; ".join(said)
