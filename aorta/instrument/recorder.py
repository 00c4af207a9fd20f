"""`StepRecorder`: the public way to time a training loop and write its step records."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from aorta.artefacts.layout import RunDir
from aorta.artefacts.records import Phase, StepRecord
from aorta.config.load import load_config
from aorta.config.schema import Capture
from aorta.errors import RunError
from aorta.instrument.capture import ExternalCapture, phase_of
from aorta.instrument.collectives import GradientExchange, GradientHook
from aorta.instrument.identity import Identity, device_uuid, run_directory
from aorta.instrument.scalars import Scalars
from aorta.instrument.steps import COMPUTE, COPY, DATA, HOST, describe
from aorta.instrument.streams import Mark, clock_for
from aorta.instrument.tape import Tape
from aorta.instrument.writer import RecordWriter, set_aside
from aorta.units import ns_to_ms

MAX_PENDING = 64
"""Steps whose events may be unread; beyond that the recorder waits for the oldest, so memory stays bounded.
"""


@dataclass(slots=True)
class Step:
    """The open step; `result` says what came out of it."""

    epoch: int
    step: int
    global_step: int
    phase: Phase
    samples: int | None = None
    lr: float | None = None
    scalars: Scalars | None = None

    def result(
        self,
        *,
        samples: int,
        lr: float,
        loss: torch.Tensor | float | None = None,
        grad_norm: torch.Tensor | float | None = None,
    ) -> None:
        """State what the step did. Call it once, before the step closes.

        Args:
            samples: samples that this rank consumed.
            lr: learning rate of the update.
            loss: loss of this rank; a tensor on a GPU is read later, without a synchronisation.
            grad_norm: total gradient norm before clipping, of all ranks; None where it was not computed.
        """
        self.samples, self.lr = samples, lr
        self.scalars = Scalars(loss, grad_norm)


@dataclass(frozen=True, slots=True)
class _Pending:
    """A closed step whose times are not known yet."""

    step: Step
    tape: Tape
    end: Mark
    host_end_ns: int
    memory_peak_bytes: int | None


class StepRecorder:
    """Times the parts of every step and writes `rank_<rank>_metrics.jsonl`.

    Usage, around any loop::

        with StepRecorder("artifacts", device) as recorder:
            model = DistributedDataParallel(model)
            model.register_comm_hook(None, recorder.ddp_hook())
            for index in range(steps):
                with recorder.step(epoch=0, step=index) as step:
                    with recorder.data():
                        batch = next(batches)
                    with recorder.forward():
                        loss = loss_of(model(batch))
                    with recorder.backward():
                        loss.backward()
                    with recorder.optimizer():
                        optimizer.step()
                        optimizer.zero_grad()
                    step.result(samples=len(batch), lr=1e-3, loss=loss)

    Inside a job (`AORTA_RUN_DIR`) records go to the run directory, otherwise to `output_dir`, where an
    earlier run's files are moved aside first. With several ranks, create it on all of them, after
    `init_process_group`: they meet in a barrier there. A step whose body raises is not recorded.

    With more than one rank and no `ddp_hook()`, communication is not observed: records then carry ranges
    but neither a breakdown nor an overlap.

    Args:
        output_dir: where records go outside a job.
        device: where the model is.
        capture: the steps that count and those that the external profiler sees; None takes them from the
            job's `config.yaml`, or the defaults outside a job.
    """

    def __init__(
        self,
        output_dir: str | Path,
        device: torch.device,
        *,
        capture: Capture | None = None,
    ) -> None:
        self.identity = Identity.from_environment()
        job_dir = run_directory()
        self.run = RunDir(job_dir if job_dir is not None else Path(output_dir))
        if capture is None:
            capture = (
                load_config(self.run.config).capture if job_dir and self.run.config.is_file() else Capture()
            )
        self._capture = capture
        self._device = device
        self._device_uuid = device_uuid(device)
        self._cuda = device.type == "cuda"
        self._memory_total = torch.cuda.get_device_properties(device).total_memory if self._cuda else None
        self._external = ExternalCapture(capture, device)
        self._listeners: list[Callable[[StepRecord], None]] = []
        self._observed = self.identity.world_size == 1
        self._tape: Tape | None = None
        self._pending: deque[_Pending] = deque()
        self._global_step = 0
        self._writer = self._open_writer(fresh=job_dir is None)
        self._clock = clock_for(device)

    def _open_writer(self, fresh: bool) -> RecordWriter:
        if self.identity.world_size > 1 and not dist.is_initialized():
            raise RunError(
                f"StepRecorder on rank {self.identity.rank} of {self.identity.world_size}: no process group",
                "call torch.distributed.init_process_group first",
            )
        if fresh and self.identity.rank == 0:
            set_aside(self.run)
        if self.identity.world_size > 1:
            # No rank may open its file before rank 0 has moved the old ones.
            dist.barrier(device_ids=[self._device.index] if dist.get_backend() == "nccl" else None)
        return RecordWriter(self.run.records(self.identity.rank))

    # --- the loop's side -----------------------------------------------------------------------------------

    def ddp_hook(self, group: dist.ProcessGroup | None = None, overlap: bool = True) -> GradientHook:
        """The communication hook for `DistributedDataParallel.register_comm_hook(None, hook)`.

        It averages gradients like DDP itself and times each all-reduce. With `overlap=False` all of them
        run after the last gradient, one after another.
        """
        self._observed = True
        return GradientExchange(self._clock, self._device, lambda: self._tape, group, overlap).hook

    @contextmanager
    def step(self, *, epoch: int, step: int, phase: Phase | None = None) -> Iterator[Step]:
        """One optimizer step, from before its batch is fetched until after the update.

        Args:
            epoch: 0-based.
            step: 0-based within the epoch.
            phase: what kind of step it is, where the caller knows better than `capture`. Warm-up always wins.
        """
        usual = phase_of(self._global_step, self._capture, self._external.active)
        opened = Step(epoch, step, self._global_step, phase if phase and usual != "warmup" else usual)
        self._external.before_step(self._global_step)
        if self._cuda:
            torch.cuda.reset_peak_memory_stats(self._device)
            torch.cuda.nvtx.range_push("aorta.step")
        # The host's time first: a GPU passes the mark after it, never before.
        host_ns, wall_ns = time.monotonic_ns(), time.time_ns()
        tape = Tape(self._clock.mark(), host_ns, wall_ns)
        self._tape = tape
        try:
            yield opened
            end, host_end = self._clock.mark(), time.monotonic_ns()
        finally:
            self._tape = None
            if self._cuda:
                torch.cuda.nvtx.range_pop()
        if opened.samples is None or opened.scalars is None:
            raise RunError(
                f"step {self._global_step} closed without a result", "call step.result(...) inside it"
            )
        peak = torch.cuda.max_memory_allocated(self._device) if self._cuda else None
        self._pending.append(_Pending(opened, tape, end, host_end, peak))
        self._external.after_step(self._global_step)
        self._global_step += 1
        self._write_passed()

    @contextmanager
    def data(self) -> Iterator[None]:
        """Waiting for the loader: host time, whatever the device does meanwhile."""
        tape, start = self._open_tape(), time.monotonic_ns()
        with self._nvtx("aorta.data"):
            yield
        end = time.monotonic_ns()
        tape.data_wait_ns += end - start
        tape.add(HOST, DATA, start, end)

    @contextmanager
    def copy(self) -> Iterator[None]:
        """Copies of the batch to the GPU. On the host there is nothing to copy, and nothing is noted."""
        tape = self._open_tape()
        if not self._cuda:
            yield
            return
        tape.copies_timed = True
        start = self._clock.mark()
        with self._nvtx("aorta.copy"):
            yield
        tape.add(COPY, "h2d", start, self._clock.mark())

    @contextmanager
    def forward(self) -> Iterator[None]:
        """The forward pass and the loss."""
        yield from self._compute("forward")

    @contextmanager
    def backward(self) -> Iterator[None]:
        """The backward pass; with `ddp_hook`, compute ends where the last bucket's gradients are ready."""
        tape, start = self._open_tape(), self._clock.mark()
        with self._nvtx("aorta.backward"):
            yield
        tape.add_backward(start, self._clock.mark())

    @contextmanager
    def optimizer(self) -> Iterator[None]:
        """Clipping, the update, and clearing the gradients."""
        yield from self._compute("optimizer")

    def drain(self) -> None:
        """Write every closed step, waiting for the GPU where needed. For the end of an epoch, never inside
        a step.
        """
        while self._pending:
            self._clock.wait(self._pending[0].end)
            self._write(self._pending.popleft())

    def listen(self, listener: Callable[[StepRecord], None]) -> None:
        """Have `listener` called with each record after it is written, in order of the steps."""
        self._listeners.append(listener)

    def close(self) -> None:
        """Write what is left and close the file."""
        self._external.close()
        self.drain()
        self._writer.close()

    def __enter__(self) -> StepRecorder:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self.close()
            return
        # The GPU may wait for a rank that is gone: write what is known and go.
        self._write_passed()
        self._writer.close()

    # --- inside --------------------------------------------------------------------------------------------

    def _open_tape(self) -> Tape:
        if self._tape is None:
            raise RunError(
                "a part of a step was timed outside of a step", "open it with `with recorder.step(...)`"
            )
        return self._tape

    def _compute(self, tag: str) -> Iterator[None]:
        tape, start = self._open_tape(), self._clock.mark()
        with self._nvtx(f"aorta.{tag}"):
            yield
        tape.add(COMPUTE, tag, start, self._clock.mark())

    @contextmanager
    def _nvtx(self, name: str) -> Iterator[None]:
        if not self._cuda:
            yield
            return
        torch.cuda.nvtx.range_push(name)
        try:
            yield
        finally:
            torch.cuda.nvtx.range_pop()

    def _write_passed(self) -> None:
        while self._pending and self._clock.passed(self._pending[0].end):
            self._write(self._pending.popleft())
        if len(self._pending) > MAX_PENDING:
            self._clock.wait(self._pending[0].end)
            self._write(self._pending.popleft())

    def _write(self, pending: _Pending) -> None:
        record = self._record(pending)
        self._writer.write(record)
        for listener in self._listeners:
            listener(record)

    def _record(self, pending: _Pending) -> StepRecord:
        step, tape, who = pending.step, pending.tape, self.identity
        times = tape.resolve(self._clock, pending.end, self._observed)
        # One reading of both host clocks a step: wall time follows the monotonic clock within it.
        wall = tape.wall_start_ns - tape.host_start_ns
        assert step.samples is not None
        assert step.lr is not None
        assert step.scalars is not None
        loss, grad_norm = step.scalars.read()
        markers = self._host_markers(pending, times.start)
        breakdown, profile = describe(times, step.global_step, markers)
        return StepRecord(
            run_id=who.run_id,
            job_id=who.job_id,
            host=who.host,
            attempt=who.attempt,
            rank=who.rank,
            local_rank=who.local_rank,
            world_size=who.world_size,
            device=str(self._device),
            device_uuid=self._device_uuid,
            epoch=step.epoch,
            step=step.step,
            global_step=step.global_step,
            phase=step.phase,
            wall_start_ns=times.start + wall,
            wall_end_ns=times.end + wall,
            mono_start_ns=times.start,
            mono_end_ns=times.end,
            samples=step.samples,
            data_wait_ms=ns_to_ms(tape.data_wait_ns),
            timing=self._clock.timing,
            breakdown=breakdown,
            loss=loss,
            grad_norm=grad_norm,
            lr=step.lr,
            memory_peak_bytes=pending.memory_peak_bytes,
            memory_total_bytes=self._memory_total,
            profile=profile,
        )

    def _host_markers(self, pending: _Pending, start_ns: int) -> list[dict[str, Any]]:
        """On a GPU: when the host opened and closed the step, so that a reader sees how far it ran ahead."""
        if not self._cuda:
            return []
        moments = {"host_step_start": pending.tape.host_start_ns, "host_step_end": pending.host_end_ns}
        return [{"name": name, "time_ms": ns_to_ms(ns - start_ns)} for name, ns in moments.items()]
