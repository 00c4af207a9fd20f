"""The times of each step, on the clock and by the definitions of `aorta.instrument`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch.profiler import record_function

from aorta.instrument.scalars import Landing, Scalars, kept
from aorta.instrument.steps import COMPUTE, HOST, TakenTimes, describe
from aorta.instrument.streams import Mark, clock_for
from aorta.instrument.tape import Tape

FORWARD, BACKWARD, SYNC = "forward_pass", "backward_pass", "gradient_sync"
CLIP, UPDATE, RATE = "gradient_clipping_warmup", "optimizer_step", "lr_scheduling"
"""Ranges of a step, as they are named in traces."""

_WAITS = (SYNC, "gradient_wait")


@dataclass(frozen=True, slots=True)
class StepSample:
    """One step of one rank, in ns; communication is None where it was not observed."""

    step: int
    start: int
    end: int
    forward: int
    backward: int
    sync: int
    optimizer: int
    """Clipping included."""
    comm: int | None
    hidden: int | None
    exposed: int | None
    collectives: int
    bytes: int
    loss: float | None


@dataclass(slots=True)
class _Closed:
    """A step whose times are not known yet."""

    step: int
    tape: Tape
    loss: Landing
    end: Mark


class StepTimer:
    """Times steps without stopping the device; `samples` reads everything at the end.

    Args:
        device: where the work is.
        observed: whether every collective is noted on the tape.
    """

    def __init__(self, device: torch.device, observed: bool) -> None:
        self.clock = clock_for(device)
        self.tape: Tape | None = None
        self._observed = observed
        self._closed: list[_Closed] = []
        self._loss: torch.Tensor | None = None

    def open_tape(self) -> Tape | None:
        """The tape of the open step; None outside of one."""
        return self.tape

    @contextmanager
    def step(self, index: int) -> Iterator[None]:
        """Times one step; `loss` must be called inside."""
        host_ns = time.monotonic_ns()
        self.tape = Tape(self.clock.mark(), host_ns)
        try:
            yield
            assert self._loss is not None
            loss = Landing([Scalars([kept(self._loss)])])
            self._closed.append(_Closed(index, self.tape, loss, self.clock.mark()))
        finally:
            self.tape = None

    def loss(self, value: torch.Tensor) -> None:
        """State the step's loss."""
        self._loss = value

    @contextmanager
    def range(self, name: str) -> Iterator[None]:
        """A part of a step, named in a trace, and timed if a step is open. Waiting is not compute."""
        tape = self.tape
        if tape is None:
            with record_function(name):
                yield
            return
        start = self.clock.mark()
        with record_function(name):
            yield
        end = self.clock.mark()
        if name == BACKWARD:
            tape.add_backward(start, end)
        else:
            tape.add(HOST if name in (SYNC, RATE) else COMPUTE, name, start, end)

    def passed(self, index: int) -> bool:
        """True if the device has done step `index`; does not wait."""
        return self.clock.passed(self._closed[index].end)

    def loss_of(self, index: int) -> float | None:
        """The loss of step `index`, waiting for it if need be."""
        self.clock.wait(self._closed[index].end)
        return self._closed[index].loss.read()[0][0]

    def samples(self) -> list[StepSample]:
        """Every step, waiting for the device."""
        for closed in self._closed:
            self.clock.wait(closed.end)
        return [
            sample_of(
                closed.step,
                closed.tape.resolve(self.clock, closed.end, self._observed),
                closed.loss.read()[0][0],
            )
            for closed in self._closed
        ]


def sample_of(step: int, times: TakenTimes, loss: float | None) -> StepSample:
    """The parts of a step from its timed pieces."""
    breakdown, _ = describe(times, step)
    by_tag: dict[str, int] = {}
    for piece in times.pieces:
        by_tag[piece.tag] = by_tag.get(piece.tag, 0) + piece.end - piece.start
    collectives = [piece for piece in times.pieces if piece.metadata is not None]
    return StepSample(
        step=step,
        start=times.start,
        end=times.end,
        forward=by_tag.get(FORWARD, 0),
        backward=by_tag.get("backward", 0),
        sync=sum(by_tag.get(tag, 0) for tag in _WAITS),
        optimizer=by_tag.get(UPDATE, 0) + by_tag.get(CLIP, 0),
        comm=breakdown.comm_ns if breakdown else None,
        hidden=breakdown.hidden_comm_ns if breakdown else None,
        exposed=breakdown.exposed_comm_ns if breakdown else None,
        collectives=len(collectives),
        bytes=sum(piece.metadata["bytes"] for piece in collectives if piece.metadata is not None),
        loss=loss,
    )
