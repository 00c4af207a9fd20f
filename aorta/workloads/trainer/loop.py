"""The training loop, one for every workload."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from aorta.artefacts.io import write_json
from aorta.artefacts.records import Planned
from aorta.artefacts.step_names import Phase
from aorta.config import schema
from aorta.instrument import Step, StepRecorder
from aorta.workloads.trainer.checkpoint import save_checkpoint
from aorta.workloads.trainer.data import Batches
from aorta.workloads.trainer.faults import FaultInjector
from aorta.workloads.trainer.optim import Updater
from aorta.workloads.trainer.parallel import parallelize
from aorta.workloads.trainer.profiling import LoopProfiler
from aorta.workloads.trainer.summary import Observer
from aorta.workloads.trainer.validation import Validator
from aorta.workloads.trainer.workload import Batch, Workload
from aorta.workloads.trainer.world import StopSignal, World

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrainingOutcome:
    """The way in which training ended."""

    steps: int
    stopped_by: int
    """The signal that ended it early, 0 for none."""
    model: nn.Module


class Loop:
    """Trains one workload on one rank."""

    def __init__(
        self,
        config: schema.Config,
        workload: Workload,
        world: World,
        recorder: StepRecorder,
        observer: Observer,
    ) -> None:
        self._config = config
        self._workload = workload
        self._world = world
        self._recorder = recorder
        self._observer = observer
        self._profiler = LoopProfiler(config, recorder.run.torch_profiler / f"rank{world.rank}")
        self._batches = Batches(workload.dataset(), config, world)
        # The same seed builds the same weights everywhere; after that each rank drops out its own units.
        torch.manual_seed(config.training.seed)
        self._model = parallelize(config, workload, world, recorder)
        torch.manual_seed(config.training.seed + 1 + world.rank)
        self._updater = Updater(self._model.weights, config, world.device)
        validation = workload.validation()
        self._validator = Validator(validation, config, world) if validation is not None else None
        self._faults = FaultInjector(config.faults, world, recorder)
        self._done = 0
        # The first step compiles, also where a run has no warm-up.
        self._after: Phase | None = "warmup" if config.compile.enabled else None
        """Phase before the next step: after anything but a step of its epoch, the next step is not steady."""

    def run(self, stop: StopSignal) -> TrainingOutcome:
        """Train until the configured end, or until the ranks agree to stop; records and rows are complete
        then.
        """
        self._announce()
        try:
            with self._profiler.running():
                stopped = self._epochs(stop)
            stop.settle()
        finally:
            self._batches.close()
        return TrainingOutcome(self._done, stopped, self._model.module)

    def _announce(self) -> None:
        """Write how many steps there are to be, for those who watch."""
        if self._world.rank == 0:
            limit = self._config.training.max_steps
            steps = self._config.training.epochs * self._steps_per_epoch
            planned = Planned(steps=min(steps, limit) if limit else steps)
            with contextlib.suppress(OSError):
                write_json(self._recorder.run.planned, planned)

    @property
    def _steps_per_epoch(self) -> int:
        return len(self._batches) // self._config.training.gradient_accumulation

    def _epochs(self, stop: StopSignal) -> int:
        for epoch in range(self._config.training.epochs):
            if self._finished():
                break
            stopped = self._epoch(epoch, stop)
            self._recorder.drain()
            found = None if stopped else self._validate()
            with self._recorder.between("logging"):
                self._observer.end_epoch(epoch, found)
            if stopped:
                return stopped
            self._checkpoint(epoch)
        return 0

    def _validate(self) -> dict[str, float] | None:
        """Validates between steps, so in no record."""
        if self._validator is None:
            return None
        self._after = "validation"
        module = self._model.module
        module.eval()
        with self._recorder.between("validation"), self._updater.autocast():
            found = self._validator.run(self._model)
        module.train()
        return found

    def _checkpoint(self, epoch: int) -> None:
        interval = self._config.training.checkpoint_interval
        if interval and (epoch + 1) % interval == 0:
            self._after = "checkpoint"
            path = self._recorder.run.checkpoint(epoch)
            with self._recorder.between("checkpoint"):
                save_checkpoint(path, self._model.module, self._world, epoch=epoch, steps=self._done)

    def _finished(self) -> bool:
        limit = self._config.training.max_steps
        return limit > 0 and self._done >= limit

    def _epoch(self, epoch: int, stop: StopSignal) -> int:
        batches = self._faults.batches(self._batches.epoch(epoch))
        for index in range(self._steps_per_epoch):
            phase = self._profiler.phase() or self._after
            with self._recorder.step(epoch=epoch, step=index, phase=phase) as step:
                self._train(batches, step)
            self._done += 1
            self._after = None
            self._profiler.after_step()
            self._faults.end_step()
            number = stop.agreed()
            if number:
                return number
            if self._finished():
                break
        return 0

    def _train(self, batches: Iterator[Batch], step: Step) -> None:
        """One optimizer step."""
        recorder, parts = self._recorder, self._config.training.gradient_accumulation
        total = torch.zeros((), device=self._world.device)
        samples = 0
        for part in range(parts):
            with recorder.data():
                batch = next(batches)
            batch = recorder.to_device(batch)
            if part == 0:
                self._faults.before_forward()
            with self._model.exchange(last=part == parts - 1):
                with recorder.forward(), self._updater.autocast():
                    if part == 0:
                        self._faults.in_forward()
                    loss = self._workload.loss(self._model(batch), batch) / parts
                with recorder.backward():
                    self._updater.backward(loss)
            total += loss.detach()
            samples += len(next(iter(batch.values())))
        self._faults.after_backward()
        lr = self._updater.lr
        with recorder.optimizer():
            norm = self._updater.update()
        step.result(samples=samples, lr=lr, loss=total, grad_norm=norm)
