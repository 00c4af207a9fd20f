"""Finds which steps are timed part by part, and who watches during these."""

from __future__ import annotations

from collections.abc import Callable

from aorta.artefacts.step_names import Phase
from aorta.errors import RunError
from aorta.instrument.allocator import AllocatorCounts
from aorta.instrument.capture import StepSchedule


class WatchedSteps:
    """Says of what kind each step is, and switches watchers on for steps that are timed part by part.

    Steps that are timed as a whole need no watching and cost as much as without the recorder.
    """

    def __init__(self, schedule: StepSchedule, allocator: AllocatorCounts) -> None:
        self.kind: tuple[Phase, bool] = "warmup", True
        """Phase of the steps before `asked_until`, and True if they are timed part by part."""
        self.asked_until = 0
        self._schedule = schedule
        self._allocator = allocator
        self._watchers: list[Callable[[bool], None]] = []
        self._watching: bool | None = None
        """True if the watchers were told to watch. None if not all of them were told."""
        self._closed = False

    def add(self, watcher: Callable[[bool], None]) -> None:
        """Have `watcher` told when to watch."""
        self._watchers.append(watcher)
        self._watching = None
        self.asked_until = 0

    def ask(self, index: int) -> None:
        """Find out of what kind the steps from `index` on are, and tell the watchers.

        Raises:
            RunError: the recorder is closed.
        """
        if self._closed:
            raise RunError(
                "a step was opened after the recorder was closed", "close the recorder after the last step"
            )
        phase, parts, self.asked_until = self._schedule.of(index)
        self.kind = phase, parts
        if parts is not self._watching:
            self._watch(parts)

    def close(self) -> None:
        """Stop watching: the program may go on with what was watched, without the recorder."""
        self._watch(False)
        self._watchers.clear()
        self._closed, self.asked_until = True, 0

    def _watch(self, on: bool) -> None:
        for watcher in self._watchers:
            watcher(on)
        if not on:
            # The counts of steps that are timed as a whole belong to no step.
            self._allocator.skip()
        self._watching = on
