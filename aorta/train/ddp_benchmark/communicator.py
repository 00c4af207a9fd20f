"""The all-reduce that every implementation uses, timed where it runs.

On a GPU a collective that overlaps is called synchronously inside the context of a side stream that first
waits for the gradients (producer), and whoever uses the result makes its own stream wait for the side stream
(consumer); events on the side stream then bracket the collective itself. On the host it is asynchronous and
ends when its future completes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from aorta.instrument.streams import Clock, Mark
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
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._futures: list[torch.futures.Future[torch.Tensor]] = []
        self._sequence = 0

    def average(self, tensor: torch.Tensor) -> None:
        """Average `tensor` now: on a GPU in the current stream, on the host blocking."""
        tape, metadata = self.tape(), self._describe(tensor)
        if self._side is None:
            tensor.div_(self._size)
        start = self._mark(tape)
        dist.all_reduce(tensor, op=self._operation)
        self._note(tape, start, metadata)

    def start(self, tensor: torch.Tensor) -> None:
        """Begin to average `tensor`, which is complete on the current stream; it is the collective's until
        `wait`.
        """
        tape, metadata = self.tape(), self._describe(tensor)
        if self._side is None:
            tensor.div_(self._size)
            self._start_on_host(tensor, tape, metadata)
            return
        self._side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._side):
            start = self._mark(tape)
            dist.all_reduce(tensor, op=self._operation)
            self._note(tape, start, metadata)

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

    @property
    def _operation(self) -> dist.ReduceOp.RedOpType:
        """NCCL averages on its way; gloo cannot, so tensors on the host are divided first."""
        return dist.ReduceOp.SUM if self._side is None else dist.ReduceOp.AVG

    def _start_on_host(self, tensor: torch.Tensor, tape: Tape | None, metadata: dict[str, Any]) -> None:
        start = self._mark(tape)
        work = dist.all_reduce(tensor, op=self._operation, async_op=True)
        assert work is not None

        def done(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            reduced = future.value()[0]
            self._note(tape, start, metadata)
            return reduced

        self._futures.append(work.get_future().then(done))

    def _mark(self, tape: Tape | None) -> Mark | None:
        return None if tape is None else self.clock.mark()

    def _note(self, tape: Tape | None, start: Mark | None, metadata: dict[str, Any]) -> None:
        if tape is not None and start is not None:
            tape.add("allreduce", "gradients", start, self.clock.mark(), metadata)

    def _describe(self, tensor: torch.Tensor) -> dict[str, Any]:
        self._sequence += 1
        return {
            "op": "all_reduce",
            "group": "default",
            "seq": self._sequence,
            "bytes": tensor.numel() * tensor.element_size(),
        }
