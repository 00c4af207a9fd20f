"""From what the hooks see to the steps of a `StepRecorder`."""

from __future__ import annotations

import os
import threading
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from aorta.artefacts import names
from aorta.artefacts.layout import RunDir
from aorta.inject.cycle import Cycle
from aorta.inject.hooks import Hooks, say
from aorta.inject.phases import Rare
from aorta.inject.roots import RootModules
from aorta.inject.samples import first_size
from aorta.inject.stacks import Sampler, Stacks
from aorta.inject.status import Status
from aorta.instrument.identity import Identity
from aorta.instrument.opened import Step
from aorta.instrument.recorder import GIVE_WAY, StepRecorder
from aorta.instrument.steps import COMPUTE, DATA, HOST
from aorta.instrument.streams import Mark


class Driver:
    """The training thread of this process: which step is open, and which part of it.

    A step reaches from the end of one update to the end of the next. The steps of a rank thus follow each
    other without a gap: what happens between two steps of the program's loop is part of one of them.
    """

    def __init__(self) -> None:
        self.recorder: StepRecorder | None = None
        self.thread: int | None = None
        """The thread that trains: the first one with a backward pass or an update."""
        self.part = "other"
        """What the thread is in; one of `aorta.artefacts.instrument_record.PARTS`."""
        self._status: Status | None = None
        self._stacks: Stacks | None = None
        self._sampler: Sampler | None = None
        self._steady = 0
        GIVE_WAY.append(self._give_way)
        self.hooks = Hooks(self._hook_failed)
        self.roots = RootModules(self)
        self._pid = os.getpid()
        self._cycle = Cycle()
        self._opened: AbstractContextManager[Step] | None = None
        self._step: Step | None = None
        self._worked = self._ever_worked = False
        """A backward pass has run since a step ended; at all."""
        self._ends_after_backward: Any = None
        """The optimizer whose update ends the step, where it updated inside the backward pass."""
        self._forward: Mark | None = None
        self._update: Mark | None = None
        self._backward: Mark | None = None
        self.depth = 0
        """Backward passes that are running, one inside the other."""
        self._loss: torch.Tensor | None = None
        self._grad_norm: torch.Tensor | None = None
        self._from_loader = 0
        self._from_models: dict[int, int] = {}
        self._no_grad = self._saved = self._waiting = False
        self._validation, self._checkpoint = Rare(), Rare()

    # --- who is asked --------------------------------------------------------------------------------------

    def here(self) -> bool:
        """Return whether a step is open and this is the thread that trains."""
        return self._step is not None and threading.get_ident() == self.thread and os.getpid() == self._pid

    def forked(self) -> None:
        """Let go of the parent's step in a child process.

        A child of a process that has not recorded yet may be a rank itself.
        """
        self._pid = os.getpid()
        if self.recorder is not None:
            self.thread = -1
            self._step = self._opened = self.recorder = self._status = self._sampler = None

    # --- updates -------------------------------------------------------------------------------------------

    def update_begins(self) -> None:
        """Note the start of an optimizer's update."""
        if self.here() and not self.depth and self._update is None:
            self._update, self.part = self._mark(), "optimizer"
            self.hooks.seen.add("optimizer")

    def update_ended(self, optimizer: Any) -> None:
        """Note the end of an optimizer's update, and end the step where the cycle says so."""
        if self.thread is None:
            self.thread = threading.get_ident()
        inside = self.depth > 0
        if not inside and threading.get_ident() != self.thread:
            return
        if self.here() and self._update is not None and self._step is not None:
            if self._step.tape is not None:
                self._step.tape.add(COMPUTE, "optimizer", self._update, self._mark())
            self._update, self.part = None, "other"
        if self._ever_worked and not self._worked:
            return  # one more group of the same update
        if self._cycle.ends(id(optimizer)):
            if inside:
                self._ends_after_backward = optimizer
            else:
                self._end_step(optimizer)

    def _end_step(self, optimizer: Any) -> None:
        self._worked = False
        if self.recorder is None:
            if not self._begin(optimizer):
                return
        elif self._step is not None and self._opened is not None:
            self._close(optimizer)
        self._open()

    def _begin(self, optimizer: Any) -> bool:
        """Make the recorder; False where another process of this rank has one."""
        run = RunDir(Path(os.environ[names.RUN_DIR]))
        if not self._take(run):
            self.thread = -1
            return False
        parameter = next(p for group in optimizer.param_groups for p in group["params"])
        device = parameter.device
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        self.recorder = StepRecorder(run.root, device, injected=True)
        self.roots.find()
        assert self.thread is not None
        self._stacks = Stacks(self.thread, self._sampled_part)
        self._sampler = Sampler(self._stacks, self._report)
        self._report()
        return True

    def _take(self, run: RunDir) -> bool:
        """Return whether this process is the one that records its rank."""
        rank = Identity.from_environment().rank
        try:
            self._status = Status(run.instrument(rank), rank)
        except BlockingIOError:
            say(f"process {os.getpid()} is not recorded: another process records rank {rank}")
            return False
        return True

    def _open(self) -> None:
        assert self.recorder is not None
        self._opened = self.recorder.step(epoch=0, step=self.recorder.next_step)
        self._step = self._opened.__enter__()
        self._loss = self._grad_norm = None
        self._from_loader, self._from_models = 0, {}
        self._no_grad = self._saved = False
        self._forward = self._update = self._backward = None

    def _close(self, optimizer: Any) -> None:
        step, opened = self._step, self._opened
        assert step is not None
        assert opened is not None
        validated, saved = self._validation.happened(self._no_grad), self._checkpoint.happened(self._saved)
        if step.phase == "steady" and (validated or saved):
            step.phase = "checkpoint" if saved else "validation"
        samples = self._from_loader or max(self._from_models.values(), default=0)
        rate = optimizer.param_groups[0].get("lr")
        on_device = isinstance(rate, torch.Tensor) and rate.device.type != "cpu"
        step.result(
            samples=samples or None,
            lr=None if rate is None or on_device else float(rate),
            loss=self._loss,
            grad_norm=self._grad_norm,
        )
        self._step = self._opened = None
        self._steady += step.phase == "steady"
        opened.__exit__(None, None, None)

    # --- parts ---------------------------------------------------------------------------------------------

    def forward_begins(self, module: Any, args: Any, kwargs: Any) -> bool:
        """Note the start of a root module's forward pass. Returns whether its end is wanted."""
        if not self.here() or self._forward is not None or self.depth:
            return False
        if not torch.is_grad_enabled():
            self._no_grad = True
            return False
        if module.training:
            size = first_size((args, kwargs))
            if size is not None:
                self._from_models[id(module)] = self._from_models.get(id(module), 0) + size
        self._forward, self.part = self._mark(), "forward"
        self.hooks.seen.add("forward")
        return True

    def forward_ended(self) -> None:
        """Note the end of a root module's forward pass."""
        start, self._forward, self.part = self._forward, None, "other"
        if self._step is not None and self._step.tape is not None and start is not None:
            self._step.tape.add(COMPUTE, "forward", start, self._mark())

    def backward_begins(self, tensors: Any = None, *_: Any) -> bool | None:
        """Note the start of a backward pass. Returns None where its end is not wanted."""
        if self.thread is None:
            self.thread = threading.get_ident()
        if threading.get_ident() != self.thread or os.getpid() != self._pid:
            return None
        self.depth += 1
        self._worked = self._ever_worked = True
        if self.depth == 1 and self._step is not None:
            self._backward, self.part = self._mark(), "backward"
            loss = tensors[0] if isinstance(tensors, (list, tuple)) and tensors else tensors
            if isinstance(loss, torch.Tensor) and loss.numel() == 1:
                self._loss = loss.detach()
        return True

    def backward_ended(self, _: object = None) -> None:
        """Note the end of a backward pass, and of the step where the optimizers updated inside of it."""
        self.depth -= 1
        if self.depth:
            return
        if self._step is not None and self._backward is not None:
            end = self._mark()
            if self._step.tape is not None:
                self._step.tape.add_backward(self._backward, end)
            if self._update is not None:
                self._update = end  # a closure inside the update
        self._backward, self.part = None, "other" if self._update is None else "optimizer"
        if self._ends_after_backward is not None:
            optimizer, self._ends_after_backward = self._ends_after_backward, None
            self._end_step(optimizer)

    def wait_begins(self, *_: Any) -> int | None:
        """Return the moment at which the loader is asked; None where nobody wants to know."""
        if not self.here() or self._waiting or self._step is None:
            return None
        self._waiting, self.part = True, "data"
        return time.monotonic_ns()

    def wait_ended(self, start: int) -> None:
        """Note the loader's answer, or that it has no more."""
        self._waiting, self.part = False, "other"
        if self._step is None:
            return
        end = time.monotonic_ns()
        self._step.data_wait_ns += end - start
        if self._step.tape is not None:
            self._step.tape.add(HOST, DATA, start, end)

    def batch_came(self, batch: Any) -> None:
        """Note what a loader gave."""
        if self.here():
            self._from_loader += first_size(batch) or 0

    def saves(self) -> None:
        """Note that a checkpoint is written."""
        if self.here():
            self._saved = True

    def clipped(self, norm: Any) -> None:
        """Note the norm of the gradients, as clipping found it."""
        if self.here() and isinstance(norm, torch.Tensor) and norm.numel() == 1:
            self._grad_norm = norm.detach()

    def _sampled_part(self) -> str | None:
        """Return the part of the steady step that is open; None outside of one."""
        step = self._step
        return self.part if step is not None and step.phase == "steady" else None

    def _report(self, note: str | None = None) -> None:
        if self._status is not None:
            self._status.write(self.hooks, self.roots.names, self._steady, self._stacks, note)

    def _give_way(self) -> None:
        """Leave the rank to a recorder that the program makes itself."""
        if os.getpid() != self._pid:
            return
        self.abandon()
        if self._status is not None or self._take(RunDir(Path(os.environ[names.RUN_DIR]))):
            self._report("the program has a StepRecorder of its own")

    def _hook_failed(self, name: str) -> None:
        """Keep nothing that the failed hook would have had a part in."""
        if name in ("optimizer", "end"):
            self.abandon()
        elif self.recorder is not None:
            self.recorder.blind()

    def _mark(self) -> Mark:
        assert self.recorder is not None
        return self.recorder.mark()

    # --- the end -------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Write what is left; the step that is open has no update, and is no step."""
        if self.recorder is not None and os.getpid() == self._pid:
            self.abandon()

    def abandon(self) -> None:
        """End the recording; what was measured until now is written."""
        opened, recorder = self._opened, self.recorder
        self._step = self._opened = self.recorder = None
        self.thread = -1
        if self._sampler is not None:
            self._sampler.stop()
            self._report()
        if opened is not None:
            opened.__exit__(RuntimeError, RuntimeError("the program ended"), None)
        if recorder is not None:
            recorder.__exit__(RuntimeError, None, None)
