"""`StepRecorder`: the public way to time a training loop and write its step records."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from aorta.artefacts.layout import RunDir
from aorta.artefacts.records import Phase
from aorta.config.load import load_config
from aorta.config.schema import Capture
from aorta.errors import RunError
from aorta.instrument.allocator import AllocatorCounts
from aorta.instrument.capture import ExternalCapture, detailed, phase_of
from aorta.instrument.channel import RecordChannel
from aorta.instrument.collectives import Collectives
from aorta.instrument.copies import BatchCopies
from aorta.instrument.gradients import GradientExchange, GradientHook, WatchedGroup
from aorta.instrument.identity import Identity, device_uuid, run_directory
from aorta.instrument.intercept import Interception
from aorta.instrument.nvtx import ranges_for
from aorta.instrument.opened import Closed, Step
from aorta.instrument.pending import PendingSteps
from aorta.instrument.sampler import KernelSampler
from aorta.instrument.sharding import ShardedExchange
from aorta.instrument.steps import COMPUTE, DATA, HOST
from aorta.instrument.streams import Mark, Streams, clock_for, current_stream
from aorta.instrument.tape import Tape
from aorta.instrument.wire import Constants, StepSummary
from aorta.instrument.writer import set_aside

log = logging.getLogger(__name__)


def boottime_ns() -> int:
    """CLOCK_BOOTTIME: monotonic, and counting while the machine is suspended."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class StepRecorder:
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

    FSDP2: `recorder.observe_fsdp(model)` after the last `fully_shard`. A program's own calls of
    `torch.distributed`: `with recorder.intercept():` around the steps. With more than one rank and none of
    these, communication is not observed: records then carry ranges but no breakdown and no overlap.

    Args:
        output_dir: where records go outside a job.
        device: where the model is.
        capture: the steps that count and those that the external profiler sees; None takes them from the
            job's `config.yaml`, or the defaults outside a job.
        stream_priority: of the streams of communication (-1 high, 0 normal); None leaves it to the strategy.
    """

    def __init__(
        self,
        output_dir: str | Path,
        device: torch.device,
        *,
        capture: Capture | None = None,
        stream_priority: int | None = None,
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
        self._cuda = device.type == "cuda"
        self._nvtx_ranges = ranges_for(device)
        self._external = ExternalCapture(capture, device)
        self._sampler = KernelSampler(capture.kernel_interval, device)
        self._listeners: list[Callable[[StepSummary], None]] = []
        self._observed = self.identity.world_size == 1
        self._tape: Tape | None = None
        self._parts: Tape | None = None
        """The tape of a step that is timed part by part."""
        self._global_step = 0
        self._clock = clock_for(device)
        self._allocator = AllocatorCounts(device)
        self._make_room(fresh=job_dir is None)
        self._channel = RecordChannel(self.run.records(self.identity.rank), self._constants())
        self._pending = PendingSteps(self._clock, self._channel, together=self._cuda)
        self._streams = Streams(device, stream_priority)
        self._collectives = Collectives(self._clock, device, lambda: self._parts, self._streams)
        self._copies = BatchCopies(self._clock, device, lambda: self._parts, self._streams)
        self._compute_stream: torch.cuda.Stream | None = None
        self._intercepts: AbstractContextManager[None] = nullcontext()
        self._samples: Callable[[], str | None] = lambda: None

    def _make_room(self, fresh: bool) -> None:
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

    def _constants(self) -> Constants:
        who = self.identity
        properties = torch.cuda.get_device_properties(self._device) if self._cuda else None
        return Constants(
            run_id=who.run_id,
            job_id=who.job_id,
            host=who.host,
            attempt=who.attempt,
            rank=who.rank,
            local_rank=who.local_rank,
            world_size=who.world_size,
            device=str(self._device),
            device_uuid=device_uuid(self._device),
            memory_total_bytes=properties.total_memory if properties is not None else None,
            timing=self._clock.timing,
        )

    # --- the loop's side -----------------------------------------------------------------------------------

    def ddp_group(self, group: dist.ProcessGroup | None = None) -> dist.ProcessGroup:
        """The process group for `DistributedDataParallel(model, process_group=...)`: `group`, or the default
        one, with its all-reduces timed. On a GPU and with a stream priority of -1 it is a new NCCL group,
        whose streams have it: all ranks must call this then.

        It is none of `torch.distributed`'s own groups: `DistributedDataParallel.join` needs `ddp_hook`
        instead. A communication hook of the program's own is timed if this group is its state.
        """
        chosen = group if group is not None else dist.group.WORLD
        if chosen is None:
            raise RunError("no process group to time", "call torch.distributed.init_process_group first")
        if self._cuda and self._streams.priority == -1:
            options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
            chosen = dist.new_group(dist.get_process_group_ranks(chosen), backend="nccl", pg_options=options)
        return WatchedGroup(self._collectives, chosen, self._watched)

    def _watched(self) -> None:
        """A program's own hook may exchange gradients elsewhere: a group that is not called saw nothing."""
        self._observed = True

    def ddp_hook(self, group: dist.ProcessGroup | None = None, overlap: bool = True) -> GradientHook:
        """The communication hook for `DistributedDataParallel.register_comm_hook(None, hook)`.

        It averages gradients like DDP itself and times each all-reduce. With `overlap=False` all of them
        run after the last gradient, one after another. A hook costs the host 0.1 ms a bucket, which
        `ddp_group` does not.
        """
        self._observed = True
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
        exchange = ShardedExchange(
            self._collectives,
            lambda: self._compute_stream,
            overlap_gather=overlap_gather,
            overlap_scatter=overlap_scatter,
            compiled=compiled,
        )
        self._intercepts = Interception(self._collectives, exchange.install(model), exchange.before)
        self._observed = True

    @contextmanager
    def intercept(self) -> Iterator[None]:
        """Time the program's own calls of `torch.distributed` (all-reduce, all-gather, reduce-scatter) while
        the body runs; other collectives are not seen.
        """
        self._observed = True
        with Interception(self._collectives):
            yield

    def all_reduce(self, tensor: torch.Tensor, group: dist.ProcessGroup, tag: str) -> None:
        """Sum `tensor` over `group` in place, as one of the step's collectives."""
        self._collectives.all_reduce(tensor, group, tag)

    def sample(self, source: Callable[[], str | None]) -> None:
        """Put what `source` returns when a step closes into its record, as `rocm_smi_output`."""
        self._samples = source

    @contextmanager
    def step(self, *, epoch: int, step: int, phase: Phase | None = None) -> Iterator[Step]:
        """One optimizer step, from before its batch is fetched until after the update.

        Args:
            epoch: 0-based.
            step: 0-based within the epoch.
            phase: what kind of step it is, where the caller knows better than `capture`. Warm-up always wins.
        """
        usual = phase_of(self._global_step, self._capture, self._external.active)
        if usual == "steady" and self._sampler.slows(self._global_step):
            usual = "profiler"
        parts = usual == "profiler" or detailed(self._global_step, self._capture, self._device)
        opened = Step(epoch, step, self._global_step, phase if phase and usual != "warmup" else usual, parts)
        self._external.before_step(self._global_step)
        self._sampler.start()
        (self._allocator.start if parts else self._allocator.skip)()
        if self._nvtx_ranges is not None:
            self._nvtx_ranges.push("aorta.step")
        # The host's time first: a GPU passes the mark after it, never before.
        host_ns, wall_ns, boot_ns = time.monotonic_ns(), time.time_ns(), boottime_ns()
        if self._cuda:
            self._compute_stream = current_stream(self._device)
        tape = Tape(self._mark(), host_ns, wall_ns, boot_ns)
        self._tape, self._parts = tape, tape if parts else None
        try:
            if parts:
                with self._intercepts:
                    yield opened
            else:
                yield opened
            end, host_end = self._mark(), time.monotonic_ns()
        finally:
            self._tape = self._parts = None
            if self._nvtx_ranges is not None:
                self._nvtx_ranges.pop()
        if opened.samples is None or opened.scalars is None:
            raise RunError(
                f"step {self._global_step} closed without a result", "call step.result(...) inside it"
            )
        kernels = self._sampler.after_step(tape.wall_start_ns)
        memory = self._allocator.read() if parts else None
        closed = Closed(opened, tape, end, host_end, memory, kernels, self._samples(), self._observed)
        self._external.after_step(self._global_step)
        self._global_step += 1
        if self._pending.add(closed):
            self._tell()

    @contextmanager
    def data(self) -> Iterator[None]:
        """Waiting for the loader: host time, whatever the device does meanwhile."""
        tape, ranges, start = self._open_tape(), self._nvtx_ranges, time.monotonic_ns()
        if ranges is not None:
            ranges.push("aorta.data")
        try:
            yield
        finally:
            if ranges is not None:
                ranges.pop()
        end = time.monotonic_ns()
        tape.data_wait_ns += end - start
        if self._parts is not None:
            self._parts.add(HOST, DATA, start, end)

    def to_device(self, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The batch on the device of the model. On a GPU it is copied on the auxiliary stream, so that pinned
        memory crosses while the step before still computes, or on that of compute if it is small; on the
        host nothing is copied or noted.
        """
        self._open_tape()
        ranges = self._nvtx_ranges
        if ranges is None:
            return self._copies.copied(batch, self._compute_stream)
        ranges.push("aorta.copy")
        try:
            return self._copies.copied(batch, self._compute_stream)
        finally:
            ranges.pop()

    def forward(self) -> AbstractContextManager[None]:
        """The forward pass and the loss."""
        return _Part(self, "forward")

    def backward(self) -> AbstractContextManager[None]:
        """The backward pass; with `ddp_hook`, compute ends where the last bucket's gradients are ready."""
        return _Part(self, "backward")

    def optimizer(self) -> AbstractContextManager[None]:
        """Clipping, the update, and clearing the gradients."""
        return _Part(self, "optimizer")

    def drain(self) -> None:
        """Write every closed step, waiting for the GPU where needed. For the end of an epoch, never inside
        a step.
        """
        self._pending.drain()
        self._channel.settle()
        self._tell()

    def listen(self, listener: Callable[[StepSummary], None]) -> None:
        """Have `listener` called with the summary of each record that is in the file, in order of the steps:
        when a later step closes, or in `drain` and `close`.
        """
        self._listeners.append(listener)

    def close(self) -> None:
        """Write what is left; the file is complete then."""
        self._external.close()
        self._sampler.close()
        self.drain()
        self._channel.close()

    def __enter__(self) -> StepRecorder:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self.close()
            return
        try:
            self._pending.last_words()
        except RuntimeError as error:
            # A GPU that failed answers nothing any more. What the program raised says why, not this.
            log.warning("the last steps could not be read: %s", str(error).partition("\n")[0])
        finally:
            self._channel.close()

    # --- inside --------------------------------------------------------------------------------------------

    def _open_tape(self) -> Tape:
        if self._tape is None:
            raise RunError(
                "a part of a step was timed outside of a step", "open it with `with recorder.step(...)`"
            )
        return self._tape

    def _mark(self) -> Mark:
        """This moment on the stream of the model's compute."""
        return self._clock.mark(self._compute_stream)

    def _tell(self) -> None:
        for summary in self._channel.received():
            for listener in self._listeners:
                listener(summary)


class _Part:
    """A part of a step that is compute, from mark to mark. Entered once a step and more: no generator."""

    __slots__ = ("_recorder", "_start", "_tag", "_tape")

    def __init__(self, recorder: StepRecorder, tag: str) -> None:
        self._recorder = recorder
        self._tag = tag

    def __enter__(self) -> None:
        self._recorder._open_tape()
        self._tape = self._recorder._parts
        if self._tape is not None:
            self._start = self._recorder._mark()
        if self._recorder._nvtx_ranges is not None:
            self._recorder._nvtx_ranges.push(f"aorta.{self._tag}")

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if self._recorder._nvtx_ranges is not None:
            self._recorder._nvtx_ranges.pop()
        if kind is not None or self._tape is None:
            return
        end = self._recorder._mark()
        if self._tag == "backward":
            self._tape.add_backward(self._start, end)
        else:
            self._tape.add(COMPUTE, self._tag, self._start, end)
