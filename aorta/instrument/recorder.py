"""`StepRecorder`: the public way to time a training loop and write its step records."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist
from torch import nn

from aorta.artefacts import names
from aorta.artefacts.layout import RunDir
from aorta.artefacts.step_names import Phase
from aorta.errors import RunError
from aorta.instrument.allocator import AllocatorCounts
from aorta.instrument.borders import Opening, StepBorders
from aorta.instrument.capture import CaptureFields, CaptureSteps, ExternalCapture, StepSchedule
from aorta.instrument.channel import RecordChannel
from aorta.instrument.collectives import CollectiveRunner
from aorta.instrument.collector import CollectorPauses
from aorta.instrument.contexts import ComputePart, LoaderWait, NamedGaps, OpenStep, outside
from aorta.instrument.copies import BatchCopies
from aorta.instrument.gradients import GradientExchange, GradientHook, high_priority
from aorta.instrument.identity import Identity, constants, run_directory
from aorta.instrument.nvtx import ranges_for
from aorta.instrument.opened import Step
from aorta.instrument.pending import PendingSteps
from aorta.instrument.sampler import KernelSampler
from aorta.instrument.stages import Stages
from aorta.instrument.streams import Mark, Streams, clock_for
from aorta.instrument.watched_steps import WatchedSteps
from aorta.instrument.watching import Watching
from aorta.instrument.wire import StepSummary
from aorta.instrument.writer import set_aside

log = logging.getLogger(__name__)


GIVE_WAY: list[Callable[[], None]] = []
"""Called before a program makes a recorder of its own: hooks that record for it stop then."""


class StepRecorder(StepBorders):
    """Times the parts of every step and writes `rank_<rank>_metrics.jsonl`.

    Usage, around any loop::

        with StepRecorder("artifacts", device) as recorder:
            model = DistributedDataParallel(model, process_group=recorder.ddp_group())
            for index in range(steps):
                with recorder.step(epoch=0, step=index) as step:
                    with recorder.data():
                        batch = next(batches)
                    batch = recorder.to_device(batch)
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

    Every call of `torch.distributed` on every process group is timed. This includes calls of DDP's reducer,
    functional collectives (DTensor), sends and receives, and the program's own calls. Records count what was
    seen and could not be timed (`untimed_calls`). FSDP2: `recorder.observe_fsdp(model)` after the last
    `fully_shard` also shows where compute waits for weights.

    Args:
        output_dir: where records go outside a job.
        device: where the model is.
        capture: the steps that count and those that the external profiler sees; None takes them from the
            job's configuration, or the defaults outside a job.
        stream_priority: of the streams of communication (-1 high, 0 normal); None leaves it to the strategy.
        injected: made by the hooks of `aorta.inject`, not by the program.
    """

    def __init__(
        self,
        output_dir: str | Path,
        device: torch.device,
        *,
        capture: CaptureFields | None = None,
        stream_priority: int | None = None,
        injected: bool = False,
    ) -> None:
        if not injected:
            for give_way in GIVE_WAY:
                give_way()
        self.identity = Identity.from_environment()
        job_dir = run_directory()
        self.run = RunDir(job_dir if job_dir is not None else Path(output_dir))
        if capture is None:
            capture = CaptureSteps.from_environment()
        self._device = device
        self._cuda = device.type == "cuda"
        self._external = ExternalCapture(capture, device)
        self._sampler = KernelSampler(capture.kernel_interval, device)
        self._recorded = self._external.active or self._sampler.active
        """True if a profiler records some of the steps."""
        slows = self._sampler.slows if self._sampler.active else None
        self._allocator = AllocatorCounts(device)
        schedule = StepSchedule(capture, device, self._external.active, slows)
        self._steps = WatchedSteps(schedule, self._allocator)
        self._listeners: list[Callable[[StepSummary], None]] = []
        self._global_step = 0
        self._clock = clock_for(device)
        self._now = now = OpenStep(self._clock, device, ranges_for(device))
        self._steps.add(CollectorPauses(now).watch)
        self._wait = LoaderWait(now)
        self.between = NamedGaps(now)
        """`with recorder.between("logging")`: names what the program does between two steps."""
        self._forward, self._backward, self._optimizer = (
            ComputePart(now, tag) for tag in ("forward", "backward", "optimizer")
        )
        self._make_room(fresh=job_dir is None)
        self._channel = RecordChannel(
            self.run.records(self.identity.rank), constants(self.identity, device, self._clock.timing)
        )
        self._pending = PendingSteps(self._clock, self._channel, together=self._cuda or injected)
        self._streams = Streams(device, stream_priority)
        self._collectives = CollectiveRunner(self._clock, device, lambda: now.parts, self._streams)
        self._copies = BatchCopies(self._clock, device, self._streams)
        self._stages = Stages(now)
        self._steps.add(self._stages.watch)
        self._blind = False
        """Something happened that is not seen."""
        self._calls: Watching | None = None
        """Watches calls of `torch.distributed`. None if there is one rank."""
        if self.identity.world_size > 1:
            self._calls = Watching(self._collectives, lambda: now.stream)
            self._steps.add(self._calls.watch)
        self._samples: Callable[[], str | None] | None = None

    def _make_room(self, fresh: bool) -> None:
        if self.identity.world_size > 1 and not dist.is_initialized():
            raise RunError(
                f"StepRecorder on rank {self.identity.rank} of {self.identity.world_size}: no process group",
                "call torch.distributed.init_process_group first",
            )
        if fresh and self.identity.rank == 0:
            set_aside(self.run)
        if fresh and self.identity.world_size > 1:
            # No rank may open its file before rank 0 has moved the old ones.
            dist.barrier(device_ids=[self._device.index] if dist.get_backend() == "nccl" else None)

    # --- the loop's side -----------------------------------------------------------------------------------

    def ddp_group(self, group: dist.ProcessGroup | None = None) -> dist.ProcessGroup:
        """The process group for `DistributedDataParallel(model, process_group=...)`: `group`, or the default
        one. On a GPU, with a stream priority of -1, the default group is replaced with a new NCCL group of
        that priority. All ranks must then call this. A smaller group keeps its own priority.
        """
        chosen = group if group is not None else dist.group.WORLD
        if chosen is None:
            raise RunError(
                "there is no process group to time", "call torch.distributed.init_process_group first"
            )
        return high_priority(chosen) if self._cuda and self._streams.priority == -1 else chosen

    def ddp_hook(self, group: dist.ProcessGroup | None = None, overlap: bool = True) -> GradientHook:
        """The communication hook for `DistributedDataParallel.register_comm_hook(None, hook)`.

        It averages gradients like DDP itself and times each all-reduce. With `overlap=False` all of them
        run after the last gradient, one after another. A hook costs the host 0.1 ms per bucket. DDP without a
        hook is timed as well, at no such cost.
        """
        return GradientExchange(self._collectives, group, overlap).hook

    def observe_fsdp(
        self,
        model: nn.Module,
        *,
        overlap_gather: bool = True,
        overlap_scatter: bool = True,
        compiled: bool = True,
    ) -> None:
        """Time the collectives of a model that `fully_shard` was applied to; see `ShardedExchange`."""
        from aorta.instrument.sharding import ShardedExchange  # it imports torch's FSDP, which takes long

        exchange = ShardedExchange(
            self._collectives,
            lambda: self._now.stream,
            overlap_gather=overlap_gather,
            overlap_scatter=overlap_scatter,
            compiled=compiled,
        )
        exchange.install(model)
        if self._calls is not None:
            self._calls.before = exchange.before
        self._steps.add(exchange.watch)

    def intercept(self) -> AbstractContextManager[None]:
        """A context that does nothing. Calls of `torch.distributed` are timed without it; programs that were
        written for earlier versions go on working.
        """
        return nullcontext()

    def also_watch(self, watcher: Callable[[bool], None]) -> None:
        """Have `watcher` told when steps that are timed part by part begin, and when they are over."""
        self._steps.add(watcher)

    def blind(self) -> None:
        """Say that not everything is seen from now on: records have no breakdown any more."""
        self._blind = True

    @property
    def next_step(self) -> int:
        """The number of the step that is opened next."""
        return self._global_step

    def mark(self) -> Mark:
        """Return this moment on the clock of the model's device."""
        return self._now.mark()

    def border(self) -> Callable[[], Mark]:
        """Return what gives the moment at which it is called, on the stream that is current then."""
        return self._clock.mark

    def all_reduce(self, tensor: torch.Tensor, group: dist.ProcessGroup, tag: str) -> None:
        """Sum `tensor` over `group` in place, as one of the step's collectives."""
        self._collectives.all_reduce(tensor, group, tag)

    def sample(self, source: Callable[[], str | None]) -> None:
        """Put what `source` returns when a step closes into its record, as `rocm_smi_output`."""
        self._samples = source

    def step(
        self, *, epoch: int | None, step: int, phase: Phase | None = None
    ) -> AbstractContextManager[Step]:
        """One optimizer step, from before its batch is fetched until after the update.

        Args:
            epoch: 0-based; None where it is not known.
            step: 0-based within the epoch.
            phase: what kind of step it is, where the caller knows better than `capture`. Warm-up always wins.
        """
        return Opening(self, epoch, step, phase)

    def data(self) -> AbstractContextManager[None]:
        """Waiting for the loader: host time, whatever the device does meanwhile."""
        wait = self._wait
        return LoaderWait(self._now) if wait.inside else wait

    def to_device(self, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The batch on the device of the model. On a GPU, it is copied on the auxiliary stream, so that
        pinned memory is copied while the previous step still computes. A small batch is copied on the
        compute stream. On a CPU, nothing is copied or noted.
        """
        now = self._now
        if now.step is None:
            raise outside()
        if now.ranges is None:
            return self._copies.copied(batch, now.stream, now.parts)
        now.ranges.push(names.COPY_RANGE)
        try:
            return self._copies.copied(batch, now.stream, now.parts)
        finally:
            now.ranges.pop()

    def forward(self) -> AbstractContextManager[None]:
        """The forward pass and the loss."""
        now = self._now
        return now.nothing if now.quiet else self._part(self._forward)

    def backward(self) -> AbstractContextManager[None]:
        """The backward pass; with `ddp_hook`, compute ends where the last bucket's gradients are ready."""
        now = self._now
        return now.nothing if now.quiet else self._part(self._backward)

    def optimizer(self) -> AbstractContextManager[None]:
        """Clipping, the update, and clearing the gradients."""
        now = self._now
        return now.nothing if now.quiet else self._part(self._optimizer)

    def microbatch(
        self, index: int, *, stage: int, kind: Literal["forward", "backward", "weight"] = "forward"
    ) -> AbstractContextManager[None]:
        """One pass of a microbatch through a stage of a pipeline, both counted from 0.

        Schedules of `torch.distributed.pipelining` need no marks.
        """
        return self._stages.marked(kind, index, stage)

    def drain(self) -> None:
        """Write every closed step, waiting for the GPU where needed. For the end of an epoch, never inside
        a step.
        """
        self._pending.drain()
        self._channel.settle()
        self._tell()

    def listen(self, listener: Callable[[StepSummary], None]) -> None:
        """Call `listener` with the summary of each record that is in the file, in the order of steps. This
        happens when a later step closes, or in `drain` and `close`.
        """
        self._listeners.append(listener)

    def close(self) -> None:
        """Write what is left; the file is complete then."""
        self._external.close()
        self._sampler.close()
        self._steps.close()
        self.drain()
        self._channel.close()

    def hurries(self) -> None:
        """Wait for the GPU no more when steps close: the program ends, and the GPU may hang."""
        self._pending.waits = False

    def __enter__(self) -> StepRecorder:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self.close()
            return
        self._steps.close()
        try:
            self._pending.last_words()
        except RuntimeError as error:
            # A GPU that failed answers nothing any more. What the program raised says why, not this.
            log.warning("the last steps could not be read: %s", str(error).partition("\n")[0])
        finally:
            self._channel.close()

    # --- inside --------------------------------------------------------------------------------------------

    def _part(self, usual: ComputePart) -> ComputePart:
        return ComputePart(self._now, usual.tag) if usual.inside else usual
