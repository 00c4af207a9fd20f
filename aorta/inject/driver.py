"""From what the hooks see to the steps of a `StepRecorder`."""

from __future__ import annotations

import contextlib
import os
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from threading import get_ident
from typing import Any

import torch

from aorta.artefacts import names
from aorta.artefacts.layout import RunDir
from aorta.inject.compiled import CompiledUpdates
from aorta.inject.copies import watch_copies
from aorta.inject.cycle import Cycle
from aorta.inject.epochs import Epochs
from aorta.inject.flight import FlightKeeper
from aorta.inject.graphs import Graphs, captured
from aorta.inject.hooks import Hooks, say
from aorta.inject.loaders import LoaderWorkers
from aorta.inject.parts import StepMarks
from aorta.inject.phases import Rare
from aorta.inject.roots import RootModules
from aorta.inject.stacks import Sampler, Stacks
from aorta.inject.status import InstrumentStatus
from aorta.inject.variables import Variables
from aorta.instrument.identity import Identity
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
        self.workers = LoaderWorkers()
        self.graphs, self.compiled = Graphs(self), CompiledUpdates(self)
        self.updates = 0
        """Updates of the training thread so far."""
        self.on_gpu = self.detailed = False
        """The model is on a GPU; the open step is timed part by part."""
        self.epochs = Epochs()
        self._cycle = Cycle()
        self._opened: AbstractContextManager[Step] | None = None
        self._parts: StepMarks | None = None
        self._worked = self._ever_worked = False
        """A backward pass has run since a step ended; at all."""
        self._depth = 0
        """Backward passes that are running, one inside the other."""
        self._ends_after_backward: Any = None
        """The optimizer whose update ends the step, where it updated inside the backward pass."""
        self._validation, self._checkpoint = Rare(), Rare()
        self._status: InstrumentStatus | None = None
        self._stacks: Stacks | None = None
        self._sampler: Sampler | None = None
        self._steady = 0
        self._ended = False
        self._cycles = 0
        """Steps that have ended, but for the first one, from which the cycle was learned."""
        self._variables = Variables()
        most = os.environ.get(names.STEPS, "")
        self._most = int(most) if most.isdigit() else None
        GIVE_WAY.append(self._give_way)

    # --- who is asked --------------------------------------------------------------------------------------

    def here(self) -> StepMarks | None:
        """Return the open step, if this is the thread that trains and its calls run now."""
        parts = self._parts
        if parts is None or get_ident() != self.thread:
            return None
        # What is captured into a CUDA graph runs later, and an event in it cannot be read.
        return None if self.on_gpu and captured() else parts

    def forked(self) -> None:
        """Let go of the parent's step in a child process.

        A child of a process that has not recorded yet may be a rank itself.
        """
        if self.recorder is not None:
            self.thread = NOBODY
            self._parts = self._opened = self.recorder = self._status = self._sampler = None
            self.detailed = False

    # --- updates -------------------------------------------------------------------------------------------

    def update_begins(self, *_: Any) -> None:
        """Note the start of an optimizer's update."""
        parts = self.here()
        if parts is not None and parts.begins("optimizer"):
            self.hooks.seen.add("optimizer")

    def update_ended(self, optimizer: Any, *_: Any) -> None:
        """Note the end of an optimizer's update, and end the step where the cycle says so."""
        if self.thread is None:
            self.thread = get_ident()
        inside = self._depth > 0
        if not inside and get_ident() != self.thread:
            return
        if captured():
            self.graphs.update_captured(optimizer)
            return
        self.updates += 1
        self.epochs.trained = True
        with contextlib.suppress(Exception):  # without them, forward passes of new models are unseen
            self.roots.updated(optimizer, recording=self.recorder is not None)
        parts = self.here()
        if parts is not None and parts.part == "optimizer":
            parts.ended()
        if self._ever_worked and not self._worked:
            return  # one more group of the same update
        if self._cycle.ends(id(optimizer)):
            if inside:
                self._ends_after_backward = optimizer
            else:
                self._end_step(optimizer)

    def scaler_begins(self, _scaler: Any, optimizer: Any, *_: Any) -> tuple[Any, int]:
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

    def _catch_up(self) -> None:
        """End the step of an update in a function that was not compiled by `torch.compile`."""
        if self.compiled.updated.optimizer is not None:
            self.update_ended(self.compiled.take())

    def _end_step(self, optimizer: Any) -> None:
        self._worked = False
        self._cycles += 1
        if self.recorder is None:
            with self._variables.set_again():
                if not self._begin(optimizer):
                    return
        elif self._parts is not None:
            self._close(optimizer, self._parts)
        self._open()
        if self._most is not None and self._cycles >= self._most - 1:
            if os.environ.get("RANK", "0") == "0":
                say(f"{self._most} optimizer steps are done, as asked for: the program ends here")
            raise SystemExit(0)

    def _begin(self, optimizer: Any) -> bool:
        """Make the recorder; False where another process of this rank has one."""
        run = RunDir(Path(os.environ[names.RUN_DIR]))
        if not self._take(run):
            self.thread = NOBODY
            return False
        parameter = next(p for group in optimizer.param_groups for p in group["params"])
        device = parameter.device
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        self.recorder = StepRecorder(run.root, device, injected=True)
        self.on_gpu = device.type == "cuda"
        if self.on_gpu:
            watch_copies(self)
        self.roots.find()
        assert self.thread is not None
        self._stacks = Stacks(self.thread, self._sampled_part)
        flight = FlightKeeper(run.flight(Identity.from_environment().rank), self._going)
        self._sampler = Sampler(self._stacks, self._report, flight.look)
        self._report()
        return True

    def _take(self, run: RunDir) -> bool:
        """Return whether this process is the one that records its rank."""
        rank = Identity.from_environment().rank
        try:
            self._status = InstrumentStatus(run.instrument(rank), rank)
        except BlockingIOError:
            say(f"process {os.getpid()} is not recorded: another process records rank {rank}")
            return False
        return True

    def _open(self) -> None:
        assert self.recorder is not None
        self._opened = self.recorder.step(epoch=None, step=self.recorder.next_step)
        step = self._opened.__enter__()
        self._parts, self.detailed = StepMarks(self.recorder, step), step.tape is not None

    def _close(self, optimizer: Any, parts: StepMarks) -> None:
        step, opened = parts.step, self._opened
        assert opened is not None
        step.epoch, step.step = self.epochs.step()
        border = step.epoch is not None and step.step == 0
        validated = self._validation.happened(parts.no_grad, between_epochs=border)
        saved = self._checkpoint.happened(parts.saved, between_epochs=border)
        if step.phase == "steady" and (validated or saved):
            step.phase = "checkpoint" if saved else "validation"
        rate = optimizer.param_groups[0].get("lr")
        on_device = isinstance(rate, torch.Tensor) and rate.device.type != "cpu"
        step.result(
            samples=parts.samples,
            lr=None if rate is None or on_device else float(rate),
            loss=parts.loss,
            grad_norm=parts.grad_norm,
        )
        self._parts = self._opened = None
        self.detailed = False
        self._steady += step.phase == "steady"
        opened.__exit__(None, None, None)

    # --- parts ---------------------------------------------------------------------------------------------

    def forward_begins(self, module: Any, arguments: Any) -> bool | None:
        """Note the start of a root module's forward pass. Returns None where its end is not wanted."""
        parts = self.here()
        if parts is None:
            return None
        if not torch.is_grad_enabled():
            parts.no_grad = True
            return None
        if not parts.begins("forward"):
            return None
        if module.training:
            parts.saw(module, arguments)
        self.hooks.seen.add("forward")
        return True

    def forward_ended(self) -> None:
        """Note the end of a root module's forward pass."""
        parts = self.here()
        if parts is not None and parts.part == "forward":
            parts.ended()

    def backward_begins(self, tensors: Any = None, *_: Any) -> bool | None:
        """Note the start of a backward pass. Returns None where its end is not wanted."""
        if self.thread is None:
            self.thread = get_ident()
        if get_ident() != self.thread or captured():
            return None
        if not self._depth:
            self._catch_up()
        self._depth += 1
        self.worked()
        parts = self.here()
        if parts is not None and self._depth == 1:
            parts.begins("backward")
            parts.lost(tensors)
            self.hooks.seen.add("backward")
        return True

    def gradients_begin(self, outputs: Any, *_: Any) -> bool | None:
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
        parts = self.here()
        if parts is not None and parts.part == "backward":
            parts.ended()
        if self._ends_after_backward is not None:
            optimizer, self._ends_after_backward = self._ends_after_backward, None
            self._end_step(optimizer)

    def iteration_begins(self, loader: Any) -> tuple[Any, int | None]:
        """Return the loader that is started, and the moment; None where nobody wants to know it."""
        parts = self.here()
        return loader, None if parts is None else parts.waits()

    def iteration_begun(self, begun: tuple[Any, int | None], iterator: Any) -> None:
        """Note that a loader was started."""
        self._waited(begun[1])
        if iterator is not None:
            self.epochs.began(begun[0], iterator)

    def wait_begins(self, iterator: Any) -> tuple[Any, int | None]:
        """Return the iterator that is asked, and the moment; None where nobody wants to know it."""
        parts = self.here()
        self.epochs.asked(iterator, training=get_ident() == self.thread)
        return iterator, None if parts is None else parts.waits()

    def wait_ended(self, begun: tuple[Any, int | None], batch: Any) -> None:
        """Note the loader's answer; None: it has no more."""
        if batch is None:
            self.epochs.ended(begun[0])
        parts = self._waited(begun[1])
        if parts is not None:
            self.workers.gave(begun[0])
            parts.came(batch)

    def _waited(self, start: int | None) -> StepMarks | None:
        parts = self._parts
        if start is None or parts is None:
            return None
        self.hooks.seen.add("loader")
        parts.waited(start)
        return parts

    def copy_begins(self) -> Mark | None:
        """Return the start of a copy to the GPU; None where nobody wants to know."""
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

    def validates(self) -> None:
        """Note that the program validates."""
        parts = self.here()
        if parts is not None:
            parts.no_grad = True

    def clipped(self, norm: Any) -> None:
        """Note the norm of the gradients, as clipping found it."""
        parts = self.here()
        if parts is not None and isinstance(norm, torch.Tensor) and norm.numel() == 1:
            parts.grad_norm = norm.detach()

    def scaled(self, given: Any, result: Any) -> None:
        """Note which loss a scaler has scaled."""
        parts = self.here()
        if parts is not None and isinstance(given, torch.Tensor) and isinstance(result, torch.Tensor):
            parts.scaled = result, given

    # --- the end -------------------------------------------------------------------------------------------

    def _going(self) -> object:
        """Return the number of the next step; None once nothing is recorded."""
        return self.recorder.next_step if self.recorder is not None else None

    def _sampled_part(self) -> str | None:
        """Return the part of the steady step that is open; None outside of one."""
        parts = self._parts
        return parts.part if parts is not None and parts.step.phase == "steady" else None

    def _report(self, note: str | None = None) -> None:
        if self._status is not None:
            self._status.write(
                self.hooks,
                self.roots.names,
                self._steady,
                self._stacks,
                workers=self.workers.most,
                note=note,
                ended=self._ended,
            )

    def _give_way(self) -> None:
        """Leave the rank to a recorder that the program makes itself."""
        self.abandon()
        with self._variables.set_again():
            taken = self._status is not None or self._take(RunDir(Path(os.environ[names.RUN_DIR])))
        if taken:
            self._report("the program has a StepRecorder of its own")

    def _hook_failed(self, name: str) -> None:
        """Keep nothing that the failed hook would have had a part in."""
        if name in ("optimizer", "end"):
            self.abandon()
            self._report("the recording failed")
        elif self.recorder is not None:
            self.recorder.blind()

    def finish(self) -> None:
        """Write what is left; the step that is open has no update, and is no step."""
        if self.recorder is not None:
            # The interpreter keeps an exception that nobody caught.
            self._ended = getattr(sys, "last_type", None) is None
            self.abandon()

    def abandon(self) -> None:
        """End the recording; what was measured until now is written."""
        opened, recorder, sampler = self._opened, self.recorder, self._sampler
        self._parts = self._opened = self.recorder = self._sampler = None
        self.thread, self.detailed = NOBODY, False
        if sampler is not None:
            sampler.stop()
            self._report()
        if opened is not None:
            opened.__exit__(RuntimeError, RuntimeError("the program ended"), None)
        if recorder is not None:
            recorder.__exit__(RuntimeError, None, None)
