"""The borders of steps: they open, close, and follow each other."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from aorta.artefacts.step_names import Phase
from aorta.errors import RunError
from aorta.instrument.allocator import AllocatorCounts
from aorta.instrument.capture import ExternalCapture
from aorta.instrument.channel import RecordChannel
from aorta.instrument.contexts import NamedGaps, OpenStep
from aorta.instrument.dispatch import DISPATCH
from aorta.instrument.opened import Step
from aorta.instrument.pending import PendingSteps
from aorta.instrument.sampler import KernelSampler
from aorta.instrument.scalars import Scalars
from aorta.instrument.streams import HostClocks, Mark
from aorta.instrument.watched_steps import WatchedSteps
from aorta.instrument.watching import Watching
from aorta.instrument.wire import StepSummary


class Followed(NamedTuple):
    """The end of a step that was timed as a whole, which is the start of the next one."""

    mark: Mark
    host_ns: int
    epoch: int | None
    step: int
    samples: int | None
    lr: float | None
    data_wait_ns: int


NO_SCALARS = Scalars([None, None])
"""Neither a loss nor a gradient norm."""


class StepBorders:
    """The part of a recorder that every step passes. A step that is timed as a whole passes little else."""

    between: NamedGaps
    _now: OpenStep
    _steps: WatchedSteps
    _allocator: AllocatorCounts
    _external: ExternalCapture
    _sampler: KernelSampler
    _recorded: bool
    """True if a profiler records some of the steps."""
    _calls: Watching | None
    """Watches calls of `torch.distributed`. None if there is one rank."""
    _blind: bool
    """Something happened that is not seen."""
    _samples: Callable[[], str | None] | None
    _pending: PendingSteps
    _channel: RecordChannel
    _listeners: list[Callable[[StepSummary], None]]
    _global_step: int

    def opened(self, *, epoch: int | None, step: int, phase: Phase | None = None) -> Step:
        """Open a step without a context; see `step`."""
        index = self._global_step
        if self._now.step is not None:
            raise RunError(f"step {index} was opened twice", "close a step before the next one begins")
        steps = self._steps
        if index >= steps.asked_until:
            steps.ask(index)
        usual, parts = steps.kind
        if phase is None or usual == "warmup":
            phase = usual
        if self._recorded:
            self._external.before_step(index)
            self._sampler.start()
        if parts:
            self._allocator.start()
        opened = Step(epoch, step, index, phase)
        opened.before_ms = self.between.taken()
        self._now.begin(opened, parts)
        return opened

    def closed(self, opened: Step) -> None:
        """Close the open step, and hand it over."""
        now = self._now
        if opened.tape is not None and self._calls is not None:
            self._calls.close(opened.tape)
        try:
            opened.end = now.clock.mark(now.stream)
            opened.host_end_ns = time.monotonic_ns()
        finally:
            now.end()
        self._hand_over(opened)

    @property
    def quiet(self) -> bool:
        """For steps that are timed as a whole, only their ends are needed."""
        return not self._recorded and self._now.ranges is None and self._samples is None

    @property
    def quiet_until(self) -> int:
        """The first step that may be of another kind than the open one."""
        return self._steps.asked_until

    def followed_all(self, opened: Step, ends: Sequence[Followed]) -> Step:
        """Close the open step and the ones that followed it until now; returns the step that is open then.

        Args:
            opened: timed as a whole, as all the others.
            ends: of it, and of the ones that followed.
        """
        waited_ns = opened.data_wait_ns
        for end in ends:
            opened.epoch, opened.step, opened.samples, opened.lr = end.epoch, end.step, end.samples, end.lr
            opened.data_wait_ns, opened.scalars = end.data_wait_ns, NO_SCALARS
            number = opened.global_step + 1
            following = Step(None, number, number, opened.phase, start=end.mark, host_start_ns=end.host_ns)
            opened.end, opened.host_end_ns, opened.end_is_shared = end.mark, end.host_ns, True
            self._hand_over(opened)
            opened = self._now.step = following
        opened.data_wait_ns = waited_ns
        return opened

    def followed(self, opened: Step) -> Step:
        """Close the open step, and open the next one where it ends.

        Both share the mark between them if their parts are not needed: each event costs the host some µs.
        """
        now, number = self._now, self._global_step + 1
        quiet = opened.tape is None and not self._recorded and now.ranges is None
        if not quiet or number >= self._steps.asked_until:
            self.closed(opened)
            return self.opened(epoch=None, step=number)
        following = Step(None, number, number, self._steps.kind[0])
        now.begin(following, parts=False)
        opened.end, opened.host_end_ns = following.start, following.host_start_ns
        opened.end_is_shared = True
        self._hand_over(opened)
        return following

    def skipped(self) -> None:
        """Forget the open step: it has failed, or the program ends in it."""
        self._now.end()
        self._allocator.skip()

    def _hand_over(self, opened: Step) -> None:
        if opened.scalars is None:
            opened.results()
        opened.communication_observed = not self._blind and (self._calls is None or not DISPATCH.taken)
        if self._recorded or opened.tape is not None or self._samples is not None:
            self._note(opened)
        self._global_step = opened.global_step + 1
        if self._pending.add(opened):
            self._tell()

    def _note(self, step: Step) -> None:
        """Add what else is known of a step that has closed."""
        if self._recorded:
            wall_start_ns = step.host_start_ns + HostClocks.now().wall_ahead_ns
            step.kernels = self._sampler.after_step(wall_start_ns)
            self._external.after_step(step.global_step)
        if step.tape is not None:
            step.memory = self._allocator.read()
        if self._samples is not None:
            step.rocm_smi_output = self._samples()

    def _tell(self) -> None:
        for summary in self._channel.received():
            for listener in self._listeners:
                listener(summary)


@dataclass(slots=True, eq=False)
class Opening:
    """The context of a step."""

    recorder: StepBorders
    epoch: int | None
    step: int
    phase: Phase | None
    open: Step | None = None

    def __enter__(self) -> Step:
        self.open = self.recorder.opened(epoch=self.epoch, step=self.step, phase=self.phase)
        return self.open

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        del rest
        assert self.open is not None
        if kind is None:
            self.recorder.closed(self.open)
        else:
            self.recorder.skipped()
