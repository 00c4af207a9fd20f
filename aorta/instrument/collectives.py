"""DDP's gradient exchange as a communication hook that says when each collective ran.

DDP's reducer calls collectives from C++, where no patch of `torch.distributed` sees them; the hook is the
public way in.

On a GPU the all-reduce is called synchronously inside the context of a side stream that first waits for the
gradients, so that events on that stream bracket the collective itself: events around an asynchronous call
would bracket its enqueueing. On the host the collective is asynchronous and its end is the moment at which
its future completes.

No `from __future__ import annotations` here: DDP compares the hook's annotations with the real classes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from aorta.instrument.streams import Clock, Mark
from aorta.instrument.tape import Tape

GradientHook = Callable[[object, dist.GradBucket], torch.futures.Future[torch.Tensor]]  # type: ignore[name-defined]


@dataclass(frozen=True, slots=True)
class _Bucket:
    """A bucket on its way: its averaged-to-be gradients and the future that DDP waits for."""

    tensor: torch.Tensor
    metadata: dict[str, Any]
    future: torch.futures.Future[torch.Tensor]


class GradientExchange:
    """Averages gradients over a process group, one all-reduce a bucket, each noted on the tape of the open
    step.

    Args:
        clock: where marks come from.
        device: where the gradients are.
        tape: gives the tape of the open step, or None outside of one.
        group: the process group; None is the default one.
        overlap: start a bucket's all-reduce as soon as its gradients are ready. False holds all of them
            until the last gradient of the backward pass is ready and then runs them one after another: the
            serial baseline, in which nothing is hidden.
    """

    def __init__(
        self,
        clock: Clock,
        device: torch.device,
        tape: Callable[[], Tape | None],
        group: dist.ProcessGroup | None = None,
        overlap: bool = True,
    ) -> None:
        self._clock = clock
        self._device = device
        self._tape = tape
        self._group = group if group is not None else dist.group.WORLD
        self._size = dist.get_world_size(self._group)
        self._overlap = overlap
        self._held: list[_Bucket] = []
        self._sequence = 0
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None

    def hook(
        self,
        state: object,
        bucket: dist.GradBucket,  # type: ignore[name-defined]
    ) -> torch.futures.Future[torch.Tensor]:
        """The hook to register with `DistributedDataParallel.register_comm_hook(None, hook)`."""
        del state
        tensor = bucket.buffer()
        tensor.div_(self._size)
        tape, ready = self._tape(), self._clock.mark()
        if tape is not None:
            tape.gradients_ready = ready
        if self._overlap and self._side is None:
            return self._reduce_async(tensor, tape, ready)
        item = _Bucket(tensor, self._describe(tensor), self._future())
        self._held.append(item)
        if self._overlap or bucket.is_last():
            held, self._held = self._held, []
            for one in held:
                self._reduce(one, tape, ready)
        return item.future

    def _describe(self, tensor: torch.Tensor) -> dict[str, Any]:
        assert self._group is not None
        self._sequence += 1
        return {
            "op": "all_reduce",
            "group": self._group.group_name,
            "seq": self._sequence,
            "bytes": tensor.numel() * tensor.element_size(),
        }

    def _future(self) -> torch.futures.Future[torch.Tensor]:
        if self._side is None:
            return torch.futures.Future()
        return torch.futures.Future(devices=[self._device])

    def _reduce_async(
        self, tensor: torch.Tensor, tape: Tape | None, start: Mark
    ) -> torch.futures.Future[torch.Tensor]:
        """Host, overlapping: the reducer goes on; the end is taken where the future completes."""
        metadata = self._describe(tensor)
        work = dist.all_reduce(tensor, group=self._group, async_op=True)
        assert work is not None

        def done(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            reduced = future.value()[0]
            if tape is not None:
                tape.add("allreduce", "gradients", start, self._clock.mark(), metadata)
            return reduced

        chained: torch.futures.Future[torch.Tensor] = work.get_future().then(done)
        return chained

    def _reduce(self, bucket: _Bucket, tape: Tape | None, ready: Mark) -> None:
        """One synchronous all-reduce: on the side stream of a GPU, or blocking on the host."""
        if self._side is None:
            start = self._clock.mark()
            dist.all_reduce(bucket.tensor, group=self._group)
            end = self._clock.mark()
            bucket.future.set_result(bucket.tensor)
        else:
            assert not isinstance(ready, int)
            self._side.wait_event(ready)
            bucket.tensor.record_stream(self._side)
            with torch.cuda.stream(self._side):
                start = self._clock.mark()
                dist.all_reduce(bucket.tensor, group=self._group)
                end = self._clock.mark()
                # The future remembers this stream: whoever consumes the value waits for it.
                bucket.future.set_result(bucket.tensor)
        if tape is not None:
            tape.add("allreduce", "gradients", start, end, bucket.metadata)
