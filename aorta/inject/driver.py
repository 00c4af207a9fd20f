"""Turns what the hooks see into steps of a `StepRecorder`."""

from __future__ import annotations

import contextlib
import os
import sys
from threading import get_ident
from typing import Any

import torch

from aorta.artefacts import names
from aorta.artefacts.instrument_record import CHECKPOINT
from aorta.inject.compiled import CompiledUpdates
from aorta.inject.copies import CopyHooks
from aorta.inject.cycle import Cycle, Optimizers
from aorta.inject.graphs import CAPTURES, Graphs, captured
from aorta.inject.hooks import Hooks, say
from aorta.inject.inner import LAST
from aorta.inject.loaders import LoaderHooks
from aorta.inject.outcome import Outcomes
from aorta.inject.parts import StepMarks, never_freed
from aorta.inject.quiet import QuietSteps
from aorta.inject.rank import Rank
from aorta.inject.roots import RootModules
from aorta.instrument.opened import Step
from aorta.instrument.recorder import GIVE_WAY, StepRecorder
from aorta.instrument.streams import Mark

NOBODY = -1
"""Identity of no thread: nothing is recorded any more."""


class Driver:
    """The training thread of this process: which step is open, and which part of it.

    A step reaches from the end of one update to the end of the next. The steps of a rank thus follow each
    other without a gap: what happens between two steps of the program's loop is part of one of them.
    """

    def __init__(self) -> None:
        self.recorder: StepRecorder | None = None
        self.thread: int | None = None
        """The thread that trains: the first one with a backward pass or an update."""
        self.hooks = Hooks(self._hook_failed)
        self.roots = RootModules(self)
        self.graphs, self.compiled = Graphs(self), CompiledUpdates(self)
        self.updates = 0
        """Updates of the training thread so far."""
        self.detailed = False
        """The open step is timed part by part."""
        self.loaders = LoaderHooks(self)
        self.rank = Rank(self.hooks, self.roots, self.loaders.workers)
        self._outcomes = Outcomes()
        self.epochs = self._outcomes.epochs
        self._quiet = QuietSteps(self._outcomes)
        self._made: StepRecorder | None = None
        """The recorder, also after the recording has ended: a child that is forked later must not free it."""
        self._cycle, self._optimizers = Cycle(), Optimizers()
        self._parts: StepMarks | None = None
        self._worked = self._ever_worked = False
        """A backward pass has run since a step ended; at all."""
        self._depth = 0
        """Backward passes that are running, one inside the other."""
        self._ends_after_backward: Any = None
        """The optimizer whose update ends the step, where it updated inside the backward pass."""
        self._cycles = 0
        """Steps that have ended, but for the first one, from which the cycle was learned."""
        most = os.environ.get(names.STEPS, "")
        self._most = int(most) if most.isdigit() else None
        GIVE_WAY.append(self._give_way)

    # --- who is asked --------------------------------------------------------------------------------------

    @property
    def open_step(self) -> StepMarks | None:
        """The open step, from any thread."""
        return self._parts

    def here(self) -> StepMarks | None:
        """Return the open step, if this is the thread that trains and its calls run now."""
        parts = self._parts
        if parts is None or get_ident() != self.thread:
            return None
        # What is captured into a CUDA graph runs later, and an event in it cannot be read.
        return None if CAPTURES.begun and captured() else parts

    def forked(self) -> None:
        """Let go of the parent's step in a child process.

        A child of a process that has not recorded yet may be a rank itself.
        """
        if self._made is not None:
            never_freed(self._made, self._parts, self._quiet.ends)
            self.thread = NOBODY
            self._parts = self.recorder = self._made = None
            self.detailed = False
            self._quiet.ends = []
            self.rank.forget()

    # --- updates -------------------------------------------------------------------------------------------

    # The hooks below run in each step of programs that may be bound by their host. After the program's own
    # code no function of ours is in a cache: each one that is called costs a µs and more.

    def update_begins(self, *_: Any) -> None:
        """Note the start of an optimizer's update."""
        parts = self._parts
        if parts is None or get_ident() != self.thread or (CAPTURES.begun and captured()):
            return
        if parts.whole and parts.part == "other":
            parts.part = "optimizer"
        elif not parts.begins("optimizer"):
            return
        self.hooks.seen.add("optimizer")

    def update_ended(self, optimizer: Any, *_: Any) -> None:
        """Note the end of an optimizer's update, and end the step where the cycle says so."""
        parts = self._parts
        if parts is not None and parts.quiet and parts.part == "optimizer" and self._worked:
            # Most often it is the usual update of a step of which nothing else is to be said.
            told = parts.keeps or parts.no_grad or parts.saved or self._depth or CAPTURES.begun
            if not told and get_ident() == self.thread and self._optimizers.asked() is optimizer:
                rate = optimizer.param_groups[0].get("lr")
                if type(rate) is float and self._quiet.ended(parts, rate):
                    self.updates += 1
                    self._cycles += 1
                    self._worked = False
                    return
        self._updated(optimizer)

    def _updated(self, optimizer: Any) -> None:
        if self.thread is None:
            self.thread = get_ident()
        inside = self._depth > 0
        if not inside and get_ident() != self.thread:
            if self.updates or self.recorder is not None or self.thread == NOBODY:
                return
            # Another thread runs the backward passes, which no hook sees then.
            self.thread = get_ident()
            self._worked = self._ever_worked = False
        if captured(surely=True):
            self.graphs.update_captured(optimizer)
            return
        self.updates += 1
        self.epochs.trained = True
        if self._optimizers.is_new(optimizer) and self.recorder is not None:
            self.roots.look_again()
        parts = self._parts
        if parts is not None and parts.part == "optimizer" and get_ident() == self.thread:
            parts.ended()
        if self._ever_worked and not self._worked:
            return  # one more group of the same update
        if self._cycle.ends(self._optimizers.newest):
            if inside:
                self._ends_after_backward = optimizer
            else:
                self._end_step(optimizer)

    def scaler_begins(self, _scaler: Any, optimizer: Any, *_: Any, **__: Any) -> tuple[Any, int]:
        """Return what `scaler_ended` needs to see whether a scaler skipped the update."""
        self.hooks.seen.add("scaler")
        return optimizer, self.updates

    def scaler_ended(self, begun: tuple[Any, int], _: Any) -> None:
        """End the step of an update that a scaler has skipped."""
        optimizer, updates = begun
        if self.updates == updates:
            self.update_ended(optimizer)

    def worked(self) -> None:
        """Note that gradients were computed since a step ended."""
        self._worked = self._ever_worked = True

    def _end_step(self, optimizer: Any) -> None:
        self._worked = False
        self._cycles += 1
        if self._cycles <= LAST:
            self.roots.learn(self._cycles, forward="forward" in self.hooks.seen)
        recorder, parts = self.recorder, self._parts
        if recorder is None or parts is None:
            with self.rank.variables():
                recorder = recorder or self._begin(optimizer)
                if recorder is None:
                    return
                self._open(recorder, recorder.opened(epoch=None, step=recorder.next_step))
        else:
            self._parts = None
            try:
                self.rank.steady += self._quiet.hand_over(parts)
                self._outcomes.complete(parts, optimizer)
                following = recorder.followed(parts.step)
            except BaseException:  # no step begins where one ended that was handed over
                recorder.skipped()
                raise
            self.rank.steady += parts.step.phase == "steady"
            self._open(recorder, following)
        if self._most is not None and self._cycles >= self._most - 1:
            if os.environ.get("RANK", "0") == "0":
                say(f"{self._most} optimizer steps are done, as requested: the program ends here")
            raise SystemExit(0)

    def _begin(self, optimizer: Any) -> StepRecorder | None:
        """Make the recorder. Returns None where another process of this rank has one."""
        if not self.rank.take():
            self.thread = NOBODY
            return None
        parameter = next(p for group in optimizer.param_groups for p in group["params"])
        device = parameter.device
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        self.recorder = self._made = StepRecorder(self.rank.run().root, device, injected=True)
        if device.type == "cuda":
            self.recorder.also_watch(CopyHooks(self).watch)
        self.roots.find()
        assert self.thread is not None
        self.rank.watch(self.thread, self._sampled_part, self._going)
        return self.recorder

    def _open(self, recorder: StepRecorder, step: Step) -> None:
        self._parts = parts = StepMarks(recorder, step)
        self.detailed = step.tape is not None
        parts.keeps = self._outcomes.keeps(parts)
        alone = self._most is None and self._cycle.alone(self._optimizers.newest)
        parts.quiet = not self.detailed and alone and self._quiet.begin(recorder, parts)

    # --- parts ---------------------------------------------------------------------------------------------

    def forward_begins(self, module: Any, arguments: Any) -> bool | None:
        """Note the start of a root module's forward pass. Returns None where its end is not wanted."""
        parts = self._parts
        if parts is None or get_ident() != self.thread or (CAPTURES.begun and captured()):
            return None
        gradients = torch.is_grad_enabled()
        if not gradients:
            parts.no_grad = True
            if id(module) not in self.roots.frozen and (not module.training or self.loaders.another):
                self._outcomes.evaluates = True
        if parts.whole and parts.part == "other":
            parts.part = "forward"
        elif not parts.begins("forward"):
            return None
        if not gradients or id(module) in self.roots.frozen:
            return True  # a teacher's pass is compute, and not the one that trains
        if not parts.from_loader and module.training and id(module) not in self.roots.inner.known:
            parts.saw(module, arguments)
        self.loaders.trained = self.loaders.newest
        self.hooks.seen.add("forward")
        return True

    def forward_ended(self) -> None:
        """Note the end of a root module's forward pass."""
        parts = self._parts
        if parts is not None and parts.part == "forward":
            if parts.whole and parts.outer == "other":
                parts.part = "other"
            else:
                parts.ended()

    def backward_begins(self, tensors: Any = None, *_: Any, **__: Any) -> bool | None:
        """Note the start of a backward pass. Returns None where its end is not wanted."""
        if self.thread is None:
            self.thread = get_ident()
        if get_ident() != self.thread or (CAPTURES.begun and captured()):
            return None
        if self.compiled.updated.optimizer is not None and not self._depth:
            # An update in a function that was not compiled by `torch.compile` has ended a step.
            self.update_ended(self.compiled.take())
        self._depth += 1
        self._worked = self._ever_worked = True
        parts = self._parts
        if parts is not None and self._depth == 1:
            if parts.whole and parts.part == "other":
                parts.part = "backward"
            else:
                parts.begins("backward")
            if parts.keeps:
                parts.lost(tensors)
            self.hooks.seen.add("backward")
        return True

    def gradients_begin(self, outputs: Any, *_: Any, **__: Any) -> bool | None:
        """Note the start of `torch.autograd.grad`. Returns None where its end is not wanted.

        Outside of every other part it is a backward pass. Inside another part it belongs to that part.
        """
        parts = self.here()
        inside = parts is not None and parts.part != "other"
        if inside or self._depth:
            return None
        known = parts.loss if parts is not None else None
        begun = self.backward_begins(outputs)
        if parts is not None and known is not None:
            parts.loss = known
        return begun

    def backward_ended(self, *_: object) -> None:
        """Note the end of a backward pass, and of the step where the optimizers updated inside of it."""
        self._depth -= 1
        if self._depth:
            return
        parts = self._parts
        if parts is not None and parts.part == "backward":
            if parts.whole and parts.outer == "other":
                parts.part = "other"
            else:
                parts.ended()
        if self._ends_after_backward is not None:
            optimizer, self._ends_after_backward = self._ends_after_backward, None
            self._end_step(optimizer)

    def copy_begins(self) -> Mark | None:
        """Return the start of a copy to the GPU; None if it is not needed."""
        parts = self.here()
        return None if parts is None else parts.moment()

    def copy_ended(self, start: Mark, result: Any) -> None:
        """Note the end of a copy, if it went to a GPU."""
        parts = self.here()
        if parts is not None and result is not None and result.is_cuda:
            self.hooks.seen.add("copy")
            parts.copied(start)

    def saves(self, _: Any = None) -> None:
        """Note that a checkpoint is written."""
        parts = self.here()
        if parts is not None:
            parts.saved = True
            self.rank.note(CHECKPOINT, sys._getframe(1))

    def validates(self) -> None:
        """Note that the program validates."""
        parts = self.here()
        if parts is not None:
            parts.no_grad = self._outcomes.evaluates = True

    def clipped(self, norm: Any) -> None:
        """Note the norm of the gradients, as clipping found it."""
        parts = self._parts
        if parts is None or not parts.keeps or get_ident() != self.thread:
            return
        if self.here() is not None and isinstance(norm, torch.Tensor) and norm.numel() == 1:
            parts.grad_norm = norm.detach()

    def scaled(self, given: Any, result: Any) -> None:
        """Note which loss a scaler has scaled."""
        parts = self.here()
        if parts is not None and isinstance(given, torch.Tensor) and isinstance(result, torch.Tensor):
            parts.scaled = result, given

    # --- the end -------------------------------------------------------------------------------------------

    def _going(self) -> object:
        """Return the number of the next step; None once nothing is recorded."""
        return self.recorder.next_step + len(self._quiet.ends) if self.recorder is not None else None

    def _sampled_part(self) -> str | None:
        """Return the part of the steady step that is open; None outside of one."""
        parts = self._parts
        return parts.part if parts is not None and parts.step.phase == "steady" else None

    def _give_way(self) -> None:
        """Leave the rank to a recorder that the program makes itself."""
        self.abandon()
        with self.rank.variables():
            if self.rank.take():
                self.rank.report("the program uses its own StepRecorder")

    def _hook_failed(self, name: str) -> None:
        """Keep nothing that the failed hook would have had a part in."""
        if name in ("optimizer", "end"):
            self.abandon()
            self.rank.report("the recording failed")
        elif self.recorder is not None:
            self.recorder.blind()

    def finish(self, code: int = 0) -> None:
        """Write what is left; the step that is open has no update, and is no step.

        Args:
            code: with which the process ends, where it is known.
        """
        if self.recorder is not None:
            # The interpreter keeps an exception that nobody caught.
            self.rank.ended = getattr(sys, "last_type", None) is None and not code
            self.abandon()

    def exits(self, code: int) -> None:
        """Write what is left before the training thread ends the process at once."""
        if get_ident() == self.thread:
            self.finish(code)

    def abandon(self) -> None:
        """End the recording; what was measured until now is written."""
        parts, recorder = self._parts, self.recorder
        self._parts = self.recorder = None
        self.thread, self.detailed = NOBODY, False
        if recorder is not None:
            recorder.hurries()
        if parts is not None:
            with contextlib.suppress(RuntimeError):  # a GPU that failed answers nothing any more
                self.rank.steady += self._quiet.hand_over(parts)
        self.rank.stop()
        if recorder is not None:
            if parts is not None:
                recorder.skipped()
            recorder.__exit__(RuntimeError, None, None)
