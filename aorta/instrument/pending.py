"""Closed steps until their numbers are known and handed over."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from aorta.instrument.channel import RecordChannel
from aorta.instrument.opened import Step
from aorta.instrument.scalars import Landing, Scalars
from aorta.instrument.streams import Clock, HostClocks, Mark
from aorta.units import NS_PER_MS

MAX_PENDING = 128
"""Steps whose marks may be unread; beyond that the training waits for the oldest, so memory stays bounded."""
BATCH_STEPS = 64
BATCH_NS = 500 * NS_PER_MS
"""Number of steps, timed as a whole, or time until steps on a GPU are read and handed over. Each hand-over
costs a host that does other things in between about 1 ms.
"""
BATCH_DETAILED = 16
"""Detailed steps have a hundred marks each, so only a few steps are read at a time. No step then becomes
much longer than its neighbours.
"""
LAST_WORDS_S = 1.0
"""Seconds that a run that failed waits for the GPU to pass what it has measured."""


@dataclass(frozen=True, slots=True)
class _Batch:
    """Steps whose losses are on their way, and the mark behind those losses."""

    steps: Sequence[Step]
    landing: Landing
    mark: Mark
    host: HostClocks


class PendingSteps:
    """A queue of closed steps.

    Args:
        clock: of their marks.
        channel: where they go.
        together: several at a time; False hands each one over at once.
    """

    def __init__(self, clock: Clock, channel: RecordChannel, together: bool) -> None:
        self._clock = clock
        self._channel = channel
        self._together = together
        self._open: list[Step] = []
        self._since_ns = 0
        self.waits = True
        """Many steps that the GPU has not passed make the training wait."""
        self._batches: deque[_Batch] = deque()

    def add(self, closed: Step) -> bool:
        """Takes the next step. Returns True if it was time to hand over what is known."""
        self._open.append(closed)
        waited = closed.host_end_ns - self._since_ns
        most = BATCH_STEPS if closed.tape is None else BATCH_DETAILED
        if self._together and len(self._open) < most and waited < BATCH_NS:
            return False
        self._since_ns = closed.host_end_ns
        self._fetch()
        self._hand_over()
        if self.waits and sum(len(batch.steps) for batch in self._batches) > MAX_PENDING:
            self._clock.wait(self._batches[0].mark)
            self._hand_over()
        return True

    def drain(self) -> None:
        """Hand over all of them, waiting for the GPU where needed."""
        self._fetch()
        while self._batches:
            self._clock.wait(self._batches[0].mark)
            self._hand_over()

    def last_words(self) -> None:
        """Hand over what is known. The GPU may wait for a rank that is gone: not for long, then."""
        self._fetch()
        deadline = time.monotonic() + LAST_WORDS_S
        self._hand_over()
        while self._batches and time.monotonic() < deadline:
            time.sleep(0.01)
            self._hand_over()
        # Where the GPU hangs, so do the losses of steps that it had passed before.
        waiting = [(closed, batch.host) for batch in self._batches for closed in batch.steps]
        for closed, host in waiting:
            if not self._clock.passed(closed.end):
                break
            self._channel.send([closed.read(self._clock, host, (None, None))])

    def _fetch(self) -> None:
        """Have the losses of the newest steps sent here, behind all that these have queued."""
        if not self._open:
            return
        try:
            landing = Landing([closed.results() for closed in self._open])
        except torch.OutOfMemoryError:  # the program has used all memory: the times of steps need none
            landing = Landing([Scalars([None, None]) for _ in self._open])
        mark = self._clock.mark() if landing.queued else self._open[-1].end
        self._batches.append(_Batch(self._open, landing, mark, HostClocks.now()))
        self._open = []

    def _hand_over(self) -> None:
        while self._batches and self._clock.passed(self._batches[0].mark):
            batch = self._batches.popleft()
            numbers = zip(batch.steps, batch.landing.read(), strict=True)
            self._channel.send([closed.read(self._clock, batch.host, scalars) for closed, scalars in numbers])
            used = [mark for closed in batch.steps for mark in closed.marks()]
            if batch.landing.queued:
                used.append(batch.mark)
            self._clock.release(used)
