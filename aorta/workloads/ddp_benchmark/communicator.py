"""The all-reduce that every implementation uses, timed where it runs.

On a GPU a collective that overlaps is called synchronously inside the context of a side stream that first
waits for the gradients (producer), and the user of the result makes its own stream wait for the side stream
(consumer); events on the side stream then bracket the collective itself. On the host it is asynchronous and
ends when its future completes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from aorta.instrument.gradients import AllReduce
from aorta.instrument.streams import Clock, Mark, Streams
from aorta.instrument.tape import Tape


class Communicator:
    """Averages tensors over all ranks, in place; notes each collective on the tape of the open step.

    Args:
        device: where the tensors are: CUDA with NCCL, or the host with gloo.
        clock: where marks come from.
        tape: gives the tape of the open step, or None where nothing is timed.
    """

    def __init__(self, device: torch.device, clock: Clock, tape: Callable[[], Tape | None]) -> None:
        self.device = device
        self.clock = clock
        self.tape = tape
        self._size = dist.get_world_size()
        group = dist.group.WORLD
        assert group is not None
        self._side = Streams(device).of("allreduce") if device.type == "cuda" else None
        self._futures: list[torch.futures.Future[torch.Tensor]] = []
        self._sequence = 0
        self._reduce = AllReduce(group, on_gpu=self._side is not None)

    def average(self, tensor: torch.Tensor) -> None:
        """Average `tensor` now: on a GPU in the current stream, on the host blocking."""
        if self._side is None:
            tensor.div_(self._size)
        opened = self._open(tensor)
        self._reduce(tensor)
        self._close(opened)

    def start(self, tensor: torch.Tensor) -> None:
        """Begin to average `tensor`, which is complete on the current stream; it is the collective's until
        `wait`.
        """
        if self._side is None:
            tensor.div_(self._size)
            self._start_on_host(tensor)
            return
        current = torch.cuda.current_stream(self.device)
        self._side.wait_stream(current)
        torch.cuda.set_stream(self._side)  # a fraction of what a context of it costs the host
        try:
            self.average(tensor)
        finally:
            torch.cuda.set_stream(current)

    def wait(self) -> None:
        """Make everything that was started usable: on the current stream of a GPU, or now.

        Raises:
            RuntimeError: a collective failed on the host.
        """
        if self._side is not None:
            torch.cuda.current_stream(self.device).wait_stream(self._side)
            return
        futures, self._futures = self._futures, []
        for future in futures:
            future.wait()

    def _start_on_host(self, tensor: torch.Tensor) -> None:
        opened = self._open(tensor)
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None

        def done(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            reduced = future.value()[0]
            self._close(opened)
            return reduced

        self._futures.append(work.get_future().then(done))

    def _open(self, tensor: torch.Tensor) -> tuple[Tape, Mark, dict[str, Any]] | None:
        """The tape, the start and the description of a collective; None where nothing is timed."""
        self._sequence += 1
        tape = self.tape()
        return None if tape is None else (tape, self.clock.mark(), self._describe(tensor))

    def _close(self, opened: tuple[Tape, Mark, dict[str, Any]] | None) -> None:
        if opened is not None:
            tape, start, metadata = opened
            tape.add("allreduce", "gradients", start, self.clock.mark(), metadata)

    def _describe(self, tensor: torch.Tensor) -> dict[str, Any]:
        return {
            "op": "all_reduce",
            "group": "default",
            "seq": self._sequence,
            "bytes": tensor.numel() * tensor.element_size(),
        }
