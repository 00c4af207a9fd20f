"""DDP's gradient exchange as a communication hook, timed.

A hook in Python can hold buckets back, but its futures cost the host about 0.1 ms per bucket. Without a hook
DDP's reducer calls its collectives from C++, where `aorta.instrument.watching` sees them.

No `from __future__ import annotations` here: DDP compares the hook's annotations with the real classes.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from aorta.instrument.collectives import CollectiveRunner, blocking, finished
from aorta.instrument.streams import Mark, current_stream
from aorta.instrument.tape import Tape

log = logging.getLogger(__name__)

GradientHook = Callable[[object, dist.GradBucket], torch.futures.Future[torch.Tensor]]  # type: ignore[name-defined]


def _metadata(shared: CollectiveRunner, group: dist.ProcessGroup, tensor: torch.Tensor) -> dict[str, Any]:
    return shared.describe("all_reduce", group, tensor.numel() * tensor.element_size())


def high_priority(group: dist.ProcessGroup) -> dist.ProcessGroup:
    """A new NCCL group of the ranks of `group`, all of the job, whose streams have CUDA's priority of -1.

    For a smaller group, it is `group` itself, with a warning. To create a group, torch needs all ranks of
    the job (NCCL splits their communicator), but ranks outside of `group` do not call this.
    """
    ranks = dist.get_process_group_ranks(group)
    if len(ranks) < dist.get_world_size():
        log.warning(
            "stream_priority is -1, but ranks %s are not all ranks of the job: their group keeps its own"
            " priority; create it with pg_options=ProcessGroupNCCL.Options(is_high_priority_stream=True)",
            ranks,
        )
        return group
    options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
    return dist.new_group(ranks, backend="nccl", pg_options=options)


class AllReduce:
    """Reduces gradients as `dist.all_reduce` does, without its checks of every argument in every call.

    NCCL averages while it reduces. gloo cannot, so the tensors are divided first.

    Args:
        group: over which.
        on_gpu: by NCCL.
    """

    def __init__(self, group: dist.ProcessGroup, on_gpu: bool) -> None:
        self._group = group
        self._options = blocking(dist.AllreduceOptions())
        self._options.reduceOp = dist.ReduceOp(dist.ReduceOp.AVG if on_gpu else dist.ReduceOp.SUM)

    def __call__(self, tensor: torch.Tensor) -> None:
        """Reduce `tensor` in place: in the current stream of a GPU, or blocking on the host."""
        finished(self._group.allreduce([tensor], self._options))


@dataclass(frozen=True, slots=True)
class _Bucket:
    """A bucket on its way: its averaged-to-be gradients and the future that DDP waits for."""

    tensor: torch.Tensor
    future: torch.futures.Future[torch.Tensor]


class GradientExchange:
    """Averages gradients over a process group, one all-reduce a bucket, each noted on the tape of the open
    step.

    For a `DistributedDataParallel` that has its process group already, and for the serial baseline.

    Args:
        collectives: runs and times them. group: the process group; None is the default one. overlap: start a
        bucket's all-reduce as soon as its gradients are ready. False holds back all of them until the last
        gradient of the backward pass is ready, and then runs them one after another. This is the serial
        baseline without overlap.
    """

    def __init__(
        self, collectives: CollectiveRunner, group: dist.ProcessGroup | None = None, overlap: bool = True
    ) -> None:
        chosen = group if group is not None else dist.group.WORLD
        assert chosen is not None
        self._collectives = collectives
        self._group = chosen
        self._size = dist.get_world_size(chosen)
        self._overlap = overlap
        self._held: list[_Bucket] = []
        self._side: torch.cuda.Stream | None = None
        self._reduce = AllReduce(chosen, collectives.on_gpu)

    def hook(
        self,
        state: object,
        bucket: dist.GradBucket,  # type: ignore[name-defined]
    ) -> torch.futures.Future[torch.Tensor]:
        """The hook to register with `DistributedDataParallel.register_comm_hook(None, hook)`."""
        del state
        tensor = bucket.buffer()
        if self._collectives.on_gpu:
            return self._on_gpu(tensor, bucket.is_last())
        # NCCL averages on its way, gloo cannot. DDP multiplies: three ranks would round a quotient otherwise.
        tensor.mul_(1 / self._size)
        tape, ready = self._collectives.tape(), self._collectives.clock.mark()
        if tape is not None:
            tape.gradients_ready = ready
        if self._overlap:
            return self._reduce_async(tensor, tape, ready)
        item = _Bucket(tensor, torch.futures.Future())
        self._held.append(item)
        if bucket.is_last():
            held, self._held = self._held, []
            for one in held:
                metadata = _metadata(self._collectives, self._group, one.tensor)
                self._collectives.inline(
                    "allreduce", "gradients", metadata, partial(self._reduce, one.tensor)
                )
                one.future.set_result(one.tensor)
        return item.future

    def _on_gpu(self, tensor: torch.Tensor, last: bool) -> torch.futures.Future[torch.Tensor]:
        """On the dedicated stream, after what the backward pass has queued. It runs once a bucket in every
        backward pass of a program that may be bound by its host: nothing here that need not be.
        """
        shared = self._collectives
        clock, tape = shared.clock, shared.tape()
        current = current_stream(shared.device)
        side = self._side if self._side is not None else shared.streams.of("allreduce")
        self._side = side
        ready = None if tape is None else clock.mark(current)
        if tape is not None:
            tape.gradients_ready = ready
        item = _Bucket(tensor, torch.futures.Future(devices=[shared.device]))
        self._held.append(item)
        if self._overlap or last:
            if ready is None or isinstance(ready, int):
                side.wait_stream(current)
            else:
                side.wait_event(ready)
            torch.cuda.set_stream(side)
            try:
                for one in self._held:
                    self._reduce(one.tensor)
                    if tape is not None and ready is not None:
                        metadata = _metadata(shared, self._group, one.tensor)
                        tape.add_queued("allreduce", "gradients", ready, clock.mark(side), metadata)
                    # The future remembers the current stream: whoever consumes the value waits for it.
                    one.future.set_result(one.tensor)
            finally:
                torch.cuda.set_stream(current)
            self._held = []
        return item.future

    def _reduce_async(
        self, tensor: torch.Tensor, tape: Tape | None, start: Mark
    ) -> torch.futures.Future[torch.Tensor]:
        """Host, overlapping: the reducer goes on; the end is taken where the future completes."""
        metadata = _metadata(self._collectives, self._group, tensor)
        work = self._collectives.own(lambda: dist.all_reduce(tensor, group=self._group, async_op=True))
        assert work is not None
        clock = self._collectives.clock

        def done(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:  # see `_on_host`
            reduced = future.value()[0]
            if tape is not None:
                tape.add("allreduce", "gradients", start, clock.mark(), metadata)
            return reduced

        chained: torch.futures.Future[torch.Tensor] = work.get_future().then(done)
        return chained
