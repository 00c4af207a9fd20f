"""Collectives where they can be timed, and DDP's gradient exchange as a communication hook on top of them.

Events around an asynchronous collective would bracket its enqueueing. So each one is called synchronously in
the context of a stream that waits for an event of the producer of its data, and an event of that stream
follows it; whoever uses the result waits for that. The window of a collective is therefore *ready to done*:
from the moment its data are there until its result is. On the host, a blocking collective is timed by the
calling thread, and an asynchronous one until its future completes.

No `from __future__ import annotations` here: DDP compares the hook's annotations with the real classes.
"""

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from aorta.instrument.streams import Clock, Mark, Streams, current_stream
from aorta.instrument.tape import Gate, Tape

GradientHook = Callable[[object, dist.GradBucket], torch.futures.Future[torch.Tensor]]  # type: ignore[name-defined]


class Collectives:
    """Runs collectives and notes each one on the tape of the open step.

    Args:
        clock: where marks come from.
        device: where the model is.
        tape: gives the tape of the open step, or None outside of one.
        streams: the streams of this GPU; None makes a set of its own.
    """

    def __init__(
        self,
        clock: Clock,
        device: torch.device,
        tape: Callable[[], Tape | None],
        streams: Streams | None = None,
    ) -> None:
        self.clock = clock
        self.device = device
        self.tape = tape
        self.on_gpu = device.type == "cuda"
        self.streams = streams if streams is not None else Streams(device)
        self._count: Counter[str] = Counter()
        self._local = threading.local()

    @property
    def inside(self) -> bool:
        """Whether this thread is in a collective that is timed already."""
        return getattr(self._local, "inside", False)

    def own(self, call: Callable[[], Any]) -> Any:
        """Call a collective that is timed here: whoever intercepts calls lets it through."""
        before, self._local.inside = self.inside, True
        try:
            return call()
        finally:
            self._local.inside = before

    def describe(self, op: str, group: dist.ProcessGroup, size_bytes: int) -> dict[str, Any]:
        """The metadata of the next collective of `group`: ranks agree on `seq` because they call alike."""
        name = group.group_name
        self._count[name] += 1
        return {"op": op, "group": name, "seq": self._count[name], "bytes": size_bytes}

    def inline(
        self,
        stream: str,
        tag: str,
        metadata: dict[str, Any],
        call: Callable[[], Any],
    ) -> Mark:
        """Call a blocking collective on the current stream; `stream` is its name in the record.

        On the host the calling thread stands still meanwhile, and so does its compute.

        Args:
            stream: its name in the record.
            tag: what it is for.
            metadata: from `describe`.
            call: the collective.

        Returns:
            The mark after it.
        """
        on = current_stream(self.device) if self.on_gpu else None
        tape, start = self.tape(), self.clock.mark(on)
        self.own(call)
        end = self.clock.mark(on)
        if tape is not None:
            tape.add(stream, tag, start, end, metadata)
            if not self.on_gpu:
                tape.gates.append(Gate(stream, start, end))
        return end

    def aside(
        self,
        stream: str,
        tag: str,
        metadata: dict[str, Any],
        call: Callable[[], Any],
    ) -> Mark:
        """Call it on the stream of that name, after all that the current stream has queued. The caller's
        stream does not wait: wait for the mark returned before the result is used.
        """
        if not self.on_gpu:
            return self.inline(stream, tag, metadata, call)
        return self._beside(stream, tag, metadata, call)[2]

    def joined(
        self, stream: str, tag: str, metadata: dict[str, Any], call: Callable[[], Any], gate: bool = False
    ) -> Mark:
        """`aside`, and the current stream waits for the result; with `gate` that is the stream of compute,
        which stands still meanwhile.
        """
        if not self.on_gpu:
            return self.inline(stream, tag, metadata, call)
        current, ready, end = self._beside(stream, tag, metadata, call)
        current.wait_event(end)
        tape = self.tape()
        if gate and tape is not None:
            tape.gates.append(Gate(stream, ready, end))
        return end

    def _beside(
        self, stream: str, tag: str, metadata: dict[str, Any], call: Callable[[], Any]
    ) -> tuple[torch.cuda.Stream, torch.cuda.Event, torch.cuda.Event]:
        """`aside` on a GPU. Returns the current stream, the mark of what it had queued, and the one after the
        collective.
        """
        side, tape, current = self.streams.of(stream), self.tape(), current_stream(self.device)
        ready = self.clock.mark(current)
        assert not isinstance(ready, int)
        side.wait_event(ready)
        torch.cuda.set_stream(side)  # a fraction of what a context of it costs
        try:
            self.own(call)
            end = self.clock.mark(side)
        finally:
            torch.cuda.set_stream(current)
        if tape is not None:
            tape.add_queued(stream, tag, ready, end, metadata)
        assert not isinstance(end, int)
        return current, ready, end

    def all_reduce(self, tensor: torch.Tensor, group: dist.ProcessGroup, tag: str) -> None:
        """Sum `tensor` over `group` in place; the current stream waits for it."""
        metadata = self.describe("all_reduce", group, tensor.numel() * tensor.element_size())
        self.joined("allreduce", tag, metadata, lambda: dist.all_reduce(tensor, group=group), gate=True)


def blocking(options: Any) -> Any:
    """Options of a collective whose result the current stream waits for, in the call or in `finished`."""
    if hasattr(options, "asyncOp"):
        options.asyncOp = False
    return options


def finished(work: Any) -> None:
    """Wait for a collective, where the backend has not made the current stream wait already."""
    if work is not None:
        work.wait()


class AllReduce:
    """What `dist.all_reduce` does to gradients, without its checks of every argument in every call.

    NCCL averages on its way; gloo cannot, so there the tensors have to be divided before.

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

    DDP's reducer calls collectives from C++, where no patch of `torch.distributed` sees them; the hook is the
    public way in.

    Args:
        collectives: runs and times them.
        group: the process group; None is the default one.
        overlap: start a bucket's all-reduce as soon as its gradients are ready. False holds all of them
            until the last gradient of the backward pass is ready and then runs them one after another: the
            serial baseline, in which nothing is hidden.
    """

    def __init__(
        self, collectives: Collectives, group: dist.ProcessGroup | None = None, overlap: bool = True
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
        tensor.div_(self._size)  # NCCL averages on its way, gloo cannot
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
                self._collectives.inline(
                    "allreduce", "gradients", self._describe(one.tensor), partial(self._reduce, one.tensor)
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
        ready = clock.mark(current)
        assert not isinstance(ready, int)
        if tape is not None:
            tape.gradients_ready = ready
        item = _Bucket(tensor, torch.futures.Future(devices=[shared.device]))
        self._held.append(item)
        if self._overlap or last:
            side.wait_event(ready)
            torch.cuda.set_stream(side)
            try:
                for one in self._held:
                    self._reduce(one.tensor)
                    end = clock.mark(side)
                    if tape is not None:
                        tape.add_queued("allreduce", "gradients", ready, end, self._describe(one.tensor))
                    # The future remembers the current stream: whoever consumes the value waits for it.
                    one.future.set_result(one.tensor)
            finally:
                torch.cuda.set_stream(current)
            self._held = []
        return item.future

    def _describe(self, tensor: torch.Tensor) -> dict[str, Any]:
        size = tensor.numel() * tensor.element_size()
        return self._collectives.describe("all_reduce", self._group, size)

    def _reduce_async(
        self, tensor: torch.Tensor, tape: Tape | None, start: Mark
    ) -> torch.futures.Future[torch.Tensor]:
        """Host, overlapping: the reducer goes on; the end is taken where the future completes."""
        metadata = self._describe(tensor)
        work = self._collectives.own(lambda: dist.all_reduce(tensor, group=self._group, async_op=True))
        assert work is not None

        def done(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            reduced = future.value()[0]
            if tape is not None:
                tape.add("allreduce", "gradients", start, self._collectives.clock.mark(), metadata)
            return reduced

        chained: torch.futures.Future[torch.Tensor] = work.get_future().then(done)
        return chained
