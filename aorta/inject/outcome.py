"""Completes a step when it ends: epoch, kind, samples, loss, learning rate."""

from __future__ import annotations

import time
from typing import Any

import torch

from aorta.inject.epochs import Epochs
from aorta.inject.parts import StepMarks
from aorta.inject.phases import Rare
from aorta.instrument.borders import NO_SCALARS

SCALARS_NS = 250_000_000
"""Time from a loss that is read to the next one in steps that are timed as a whole. Each takes several calls
of torch, for which a program that is bound by its host has no time to spare.
"""


class Outcomes:
    """Completes steps, and knows of which ones the loss and the gradient norm are kept."""

    def __init__(self) -> None:
        self.epochs = Epochs()
        self._validation, self._checkpoint = Rare(), Rare()
        self._began_ns = 0
        self.kept_ns = 0
        """Time at which the newest step began whose loss is kept."""
        self.evaluates = False
        """The open step evaluates: the program says so, or a model that trains ran without gradients in
        evaluation mode or on batches of another loader.
        """

    def keeps(self, parts: StepMarks) -> bool:
        """Return whether the loss and the gradient norm of a step that begins are kept."""
        step = parts.step
        self._began_ns = self._began_ns or step.host_start_ns
        if step.tape is None:
            return self.keeps_at(step.host_start_ns)
        self.kept_ns = step.host_start_ns
        return True

    def keeps_at(self, now_ns: int) -> bool:
        """Return whether the loss of a step that is timed as a whole and begins now is kept."""
        if now_ns - self.kept_ns < SCALARS_NS:
            return False
        self.kept_ns = now_ns
        return True

    @property
    def usual(self) -> bool:
        """Return whether no recent step held a validation or a checkpoint."""
        return not (self._validation.past or self._checkpoint.past)

    def complete(self, parts: StepMarks, optimizer: Any) -> None:
        """State what came out of a step whose last update was that of `optimizer`."""
        step = parts.step
        step.epoch, step.step = self.epochs.step()
        border = step.epoch is not None and step.step == 0
        if parts.no_grad or parts.saved or self._validation.past or self._checkpoint.past:
            now = time.monotonic_ns()
            spans = {"took_ns": now - step.host_start_ns, "since_ns": now - self._began_ns}
            if self.evaluates:  # however much time it takes, it collects no data to train with
                self.evaluates, spans = False, {}
            validated = self._validation.happened(parts.no_grad, between_epochs=border, **spans)
            saved = self._checkpoint.happened(parts.saved, between_epochs=border)
            if (validated or saved) and step.phase == "steady":
                step.phase = "checkpoint" if saved else "validation"
        rate = optimizer.param_groups[0].get("lr")
        on_device = isinstance(rate, torch.Tensor) and rate.device.type != "cpu"
        lr = None if rate is None or on_device else float(rate)
        if parts.keeps:
            step.result(samples=parts.samples, lr=lr, loss=parts.loss, grad_norm=parts.grad_norm)
        else:
            step.samples, step.lr, step.scalars = parts.samples, lr, NO_SCALARS
