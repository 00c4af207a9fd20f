"""The parts of the open step, from what the hooks see of them."""

from __future__ import annotations

import ctypes
import time
from typing import Any

import torch

from aorta.inject.samples import first_size
from aorta.instrument.opened import Step
from aorta.instrument.recorder import StepRecorder
from aorta.instrument.steps import COMPUTE, DATA, HOST
from aorta.instrument.streams import Mark


class StepMarks:
    """One step: the marks at both ends of its parts, and what came out of it.

    Marks are taken only where the step is timed part by part.

    Args:
        recorder: gives the marks.
        step: that is open.
    """

    __slots__ = (
        "_mark", "_start", "_tape", "from_loader", "from_models", "grad_norm", "keeps", "loss",
        "newest", "no_grad", "outer", "part", "quiet", "saved", "scaled", "step", "whole",
    )  # fmt: skip

    def __init__(self, recorder: StepRecorder, step: Step) -> None:
        self.step = step
        self.part = "other"
        """The part that the training thread is in; one of `aorta.artefacts.instrument_record.PARTS`."""
        self.no_grad = self.saved = False
        """A root module ran without gradients; a checkpoint was written."""
        self.whole = step.tape is None
        """The step is timed as a whole: a part that is outside of others takes no mark."""
        self.quiet = False
        """The end of the step may be kept, with those of others."""
        self.keeps = True
        """The loss and the gradient norm are kept."""
        self.loss: torch.Tensor | None = None
        self.grad_norm: torch.Tensor | None = None
        self.scaled: tuple[torch.Tensor, torch.Tensor] | None = None
        """The output of a scaler, and its input."""
        self.newest: Mark | None = None
        """The end of the newest part of compute; None where nothing is timed part by part."""
        self._mark = recorder.mark
        self._tape = step.tape
        self._start: Mark = 0
        self.outer = "other"
        """The part that goes on when the one inside of it ends."""
        self.from_loader = 0
        """Samples of the loaders' batches."""
        self.from_models: dict[int, int] | None = None
        """Samples of what each root module was given, by its identity."""

    @property
    def samples(self) -> int | None:
        """The samples of the loaders' batches, or of the model that saw most; None where none were seen."""
        if self.from_loader or not self.from_models:
            return self.from_loader or None
        return max(self.from_models.values()) or None

    def begins(self, part: str) -> bool:
        """Note the start of a part of compute; False inside another part.

        A closure runs the forward and the backward pass inside of the optimizer's update. The update begins
        again after each of them.
        """
        if self.part == "optimizer" != part:
            self.outer = "optimizer"
        elif self.part != "other":
            return False
        self.part = part
        if self._tape is not None:
            self._start = self._mark()
        return True

    def ended(self) -> None:
        """Note the end of a part of compute."""
        part, self.part = self.part, "other"
        if self._tape is None and self.outer == "other":
            return
        if self._tape is not None:
            self.newest = end = self._mark()
            if part == "backward":
                self._tape.add_backward(self._start, end)
            else:
                self._tape.add(COMPUTE, part, self._start, end)
        outer, self.outer = self.outer, "other"
        if outer != "other":
            self.begins(outer)

    def waits(self) -> int | None:
        """Return the moment at which a loader is asked; None inside another part."""
        if self.part != "other":
            return None
        self.part = "data"
        return time.monotonic_ns()

    def waited(self, start: int) -> None:
        """Note the loader's answer, or that it has no more."""
        end = time.monotonic_ns()
        self.part = "other"
        self.step.data_wait_ns += end - start
        if self._tape is not None:
            self._tape.add(HOST, DATA, start, end)

    def updated(self, start: Mark | None) -> None:
        """Note an update that began at `start` and ends now."""
        if self._tape is not None and start is not None:
            self._tape.add(COMPUTE, "optimizer", start, self._mark())

    def moment(self) -> Mark | None:
        """Return this moment on the clock of the device; None where nothing is timed part by part."""
        return None if self._tape is None else self._mark()

    def copied(self, start: Mark) -> None:
        """Note the end of a copy to the GPU."""
        if self._tape is not None:
            self._tape.add_copy(start, self._mark())

    def came(self, batch: Any) -> None:
        """Count the samples of a loader's batch."""
        self.from_loader += first_size(batch) or 0

    def saw(self, module: Any, arguments: Any) -> None:
        """Count the samples that a root module was given, where no loader gave any.

        Args:
            module: that is called.
            arguments: the tuple of those by position, and those by name.
        """
        # While torch.jit traces, sizes are tensors, and asking for one becomes part of the trace.
        if torch._C._get_tracing_state() is not None:
            return
        one = arguments[0][0] if arguments[0] else None
        shape = one.shape if type(one) is torch.Tensor and not one.is_nested else ()
        size = shape[0] if shape else first_size(arguments)
        if size is not None:
            if self.from_models is None:
                self.from_models = {}
            self.from_models[id(module)] = self.from_models.get(id(module), 0) + size

    def lost(self, tensors: Any) -> None:
        """Keep the loss that a backward pass begins with, before a scaler scaled it."""
        loss = tensors[0] if isinstance(tensors, (list, tuple)) and tensors else tensors
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            return
        if self.scaled is not None and loss is self.scaled[0]:
            loss = self.scaled[1]
        self.loss = loss.detach()


def never_freed(*objects: object) -> None:
    """Keep objects until the process ends.

    They hold events of the GPU. A forked child has no GPU, and freeing an event there aborts it.
    """
    for item in objects:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(item))
