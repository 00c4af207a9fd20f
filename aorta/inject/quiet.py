"""Ends of steps that are timed as a whole, kept as they are until several are handed over together.

In the step itself a mark and the clock are all that is asked for. The rest takes less time for many steps
in a row than for one after the other, when the program has used all caches in between.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from aorta.inject.outcome import SCALARS_NS, Outcomes
from aorta.instrument.borders import Followed
from aorta.instrument.recorder import StepRecorder

if TYPE_CHECKING:
    from aorta.inject.parts import StepMarks
    from aorta.instrument.streams import Mark

MOST = 64
"""Steps that are kept."""
MOST_NS = 500_000_000
"""Time that they may take together."""


_End = tuple["Mark", int, "int | None", int, "int | None", float, int]
"""The fields of a `Followed`, which takes longer to make than a tuple."""


class QuietSteps:
    """The steps that have ended since the open `Step` began.

    Args:
        outcomes: knows epochs, and of which steps the loss is kept.
    """

    def __init__(self, outcomes: Outcomes) -> None:
        self._outcomes = outcomes
        self.ends: list[_End] = []
        self._until_ns = 0
        self._recorder: StepRecorder | None = None
        self._border: Callable[[], Mark] = time.monotonic_ns
        self._most = 0

    def begin(self, recorder: StepRecorder, parts: StepMarks) -> bool:
        """Return whether the steps from the open one on may be kept.

        Args:
            recorder: of the rank.
            parts: of the open step.
        """
        step = parts.step
        self._recorder, self._border = recorder, recorder.border()
        self._most = min(recorder.quiet_until - 1, step.global_step + MOST) - step.global_step
        self._until_ns = step.host_start_ns + MOST_NS
        return step.phase == "steady" and recorder.quiet and self._outcomes.usual

    def ended(self, parts: StepMarks, rate: float) -> bool:
        """Keep the end of the open step; False where it has to be handed over now.

        This runs in each step, so it calls little.

        Args:
            parts: of the open step.
            rate: the learning rate.
        """
        ends, now = self.ends, time.monotonic_ns()
        if len(ends) >= self._most or now > self._until_ns:
            return False
        step, outcomes = parts.step, self._outcomes
        samples = parts.from_loader or (parts.samples if parts.from_models else None)
        epoch, number = outcomes.epochs.step()
        ends.append((self._border(), now, epoch, number, samples, rate, step.data_wait_ns))
        # Another step that is timed as a whole begins where this one ends.
        step.data_wait_ns = parts.from_loader = 0
        parts.part, parts.from_models, parts.scaled = "other", None, None
        parts.keeps = now - outcomes.kept_ns >= SCALARS_NS
        if parts.keeps:
            outcomes.kept_ns = now
        return True

    def hand_over(self, parts: StepMarks) -> int:
        """Hand over the steps that have ended. Returns how many."""
        ends, self.ends = self.ends, []
        if ends and self._recorder is not None:
            parts.step = self._recorder.followed_all(parts.step, [Followed(*end) for end in ends])
        return len(ends)
