"""A program's own calls of `torch.distributed`, put on the dedicated streams and timed, for as long as a
context lasts.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from aorta.instrument.collectives import Collectives

log = logging.getLogger(__name__)

STREAM_OF = {
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "all_gather_into_tensor": "allgather",
    "all_gather_single": "allgather",
    "reduce_scatter": "reducescatter",
    "reduce_scatter_tensor": "reducescatter",
    "reduce_scatter_single": "reducescatter",
}
"""Functions of `torch.distributed` to the stream that they run on; some exist in newer versions only."""

TAG = "intercepted"

OPERATION = {"allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter"}


class StreamWork:
    """What an intercepted asynchronous call returns on a GPU: as much of `dist.Work` as callers use."""

    def __init__(self, end: torch.cuda.Event, device: torch.device, result: object) -> None:
        self._end = end
        self._device = device
        self._result = result

    def wait(self, timeout: object = None) -> bool:
        """Have the current stream wait for the result, as NCCL's own handle does."""
        del timeout
        torch.cuda.current_stream(self._device).wait_event(self._end)
        return True

    def is_completed(self) -> bool:
        """Whether the collective is done on the GPU."""
        return bool(self._end.query())

    def get_future(self) -> torch.futures.Future[Any]:
        """A future of the result; whoever takes its value waits for the collective."""
        future: torch.futures.Future[Any] = torch.futures.Future(devices=[self._device])
        self.wait()
        future.set_result(self._result)
        return future


class Interception:
    """A context that replaces functions of `torch.distributed` while its body runs, and puts back what was
    there. A function that someone else replaced meanwhile stays as it is, with a warning.

    It may be entered again and again: what it puts in their place is made once.

    Args:
        collectives: runs and times the calls.
        names: of `STREAM_OF`; those that this torch does not have are left out.
        before: called with the name of the stream ahead of each call.
    """

    def __init__(
        self,
        collectives: Collectives,
        names: Collection[str] = tuple(STREAM_OF),
        before: Callable[[str], None] | None = None,
    ) -> None:
        self._collectives = collectives
        self._names = [name for name in names if hasattr(dist, name)]
        self._before = before
        self._made: dict[str, Callable[..., Any]] = {}
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    def __enter__(self) -> None:
        for name in self._names:
            original = getattr(dist, name)
            wrapper = self._made.get(name)
            if wrapper is None or wrapper.__wrapped__ is not original:  # type: ignore[attr-defined]
                wrapper = _wrapped(self._collectives, name, original, self._before)
                self._made[name] = wrapper
            for module in (dist, distributed_c10d):
                if getattr(module, name, None) is original:
                    setattr(module, name, wrapper)
                    self._replaced.append((module, name, original, wrapper))

    def __exit__(self, *raised: object) -> None:
        while self._replaced:
            module, name, original, wrapper = self._replaced.pop()
            if getattr(module, name) is wrapper:
                setattr(module, name, original)
            else:
                log.warning("%s.%s was replaced by someone else: left as it is", module.__name__, name)


def _wrapped(
    collectives: Collectives, name: str, original: Callable[..., Any], before: Callable[[str], None] | None
) -> Callable[..., Any]:
    signature = inspect.signature(original)
    stream = STREAM_OF[name]

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        # One public function may call another: the outer one is the collective.
        if collectives.tape() is None or collectives.inside:
            return original(*args, **kwargs)
        if before is not None:
            before(stream)
        bound = signature.bind(*args, **kwargs).arguments
        tensors = list(_tensors(bound.values()))
        group = bound.get("group") or dist.group.WORLD
        assert group is not None
        if not tensors or group is dist.GroupMember.NON_GROUP_MEMBER or group.size() == 1:
            return original(*args, **kwargs)
        size = max(_bytes(value) for value in bound.values())
        metadata = collectives.describe(OPERATION[stream], group, size)
        on_gpu = tensors[0].is_cuda and collectives.on_gpu
        if not bound.get("async_op", False):
            run = collectives.joined if on_gpu else collectives.inline
            done: list[Any] = []
            run(stream, TAG, metadata, lambda: done.append(original(*args, **kwargs)))
            return done[0]
        if on_gpu:
            return _aside(collectives, stream, metadata, tensors, lambda: _blocking(original, bound))
        return _on_host(collectives, stream, metadata, lambda: original(*args, **kwargs))

    wrapper.__name__ = wrapper.__qualname__ = name
    wrapper.__doc__ = original.__doc__
    wrapper.__wrapped__ = original  # type: ignore[attr-defined]
    return wrapper


def _blocking(original: Callable[..., Any], bound: dict[str, Any]) -> Any:
    return original(**{**bound, "async_op": False})


def _aside(
    collectives: Collectives,
    stream: str,
    metadata: dict[str, Any],
    tensors: list[torch.Tensor],
    call: Callable[[], Any],
) -> StreamWork:
    side = collectives.streams.of(stream)
    for tensor in tensors:
        tensor.record_stream(side)  # the caller may let go of it before the collective is done
    collectives.aside(stream, TAG, metadata, call)
    return StreamWork(side.record_event(), collectives.device, tensors[0])


def _on_host(collectives: Collectives, stream: str, metadata: dict[str, Any], call: Callable[[], Any]) -> Any:
    """Asynchronous on the host: its end is taken where its future completes."""
    tape, start = collectives.tape(), collectives.clock.mark()
    work = collectives.own(call)

    def done(future: torch.futures.Future[Any]) -> None:
        del future
        if tape is not None:
            tape.add(stream, TAG, start, collectives.clock.mark(), metadata)

    if work is not None:
        work.get_future().add_done_callback(done)
    return work


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _bytes(value: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in _tensors([value]))
