"""Ends of steps that are timed as a whole, kept as they are until several are handed over together.

In the step itself a mark and the clock are all that is asked for. The rest takes less time for many steps
in a row than for one after the other, when the program has used all caches in between.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from aorta.inject.outcome import Outcomes
from aorta.instrument.borders import Followed
from aorta.instrument.recorder import StepRecorder

if TYPE_CHECKING:
    from aorta.inject.parts import StepMarks

MOST = 64
"""Steps that are kept."""
MOST_NS = 500_000_000
"""Time that they may take together."""


class QuietSteps:
    """The steps that have ended since the open `Step` began.

    Args:
        outcomes: knows epochs, and of which steps the loss is kept.
    """

    def __init__(self, outcomes: Outcomes) -> None:
        self._outcomes = outcomes
        self.ends: list[Followed] = []
        self._until_ns = 0
        self._recorder: StepRecorder | None = None
        self._last = 0

    def begin(self, recorder: StepRecorder, parts: StepMarks) -> bool:
        """Return whether the steps from the open one on may be kept.

        Args:
            recorder: of the rank.
            parts: of the open step.
        """
        self._recorder = recorder
        self._last = min(recorder.quiet_until - 1, parts.step.global_step + MOST)
        self._until_ns = parts.step.host_start_ns + MOST_NS
        return parts.step.phase == "steady" and recorder.quiet and self._outcomes.usual

    def ended(self, parts: StepMarks, rate: Any) -> bool:
        """Keep the end of the open step; False where it has to be handed over now.

        Args:
            parts: of the open step.
            rate: the learning rate.
        """
        recorder, ends, now = self._recorder, self.ends, time.monotonic_ns()
        step = parts.step
        if recorder is None or step.global_step + len(ends) >= self._last or now > self._until_ns:
            return False
        epoch, number = self._outcomes.epochs.step()
        ends.append(Followed(recorder.border(), now, epoch, number, parts.samples, rate, step.data_wait_ns))
        step.data_wait_ns = 0
        parts.again(keeps=self._outcomes.keeps_at(now))
        return True

    def hand_over(self, parts: StepMarks) -> int:
        """Hand over the steps that have ended. Returns how many."""
        ends, self.ends = self.ends, []
        if ends and self._recorder is not None:
            parts.step = self._recorder.followed_all(parts.step, ends)
        return len(ends)
