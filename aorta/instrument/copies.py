"""Batches on their way to the GPU."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from aorta.instrument.steps import COPY
from aorta.instrument.streams import Clock, Streams
from aorta.instrument.tape import Tape

SMALL_BATCH = 1 << 20
"""Bytes up to which a batch is copied on the stream of compute: another stream would cost the host more time
than the copy takes.
"""


class BatchCopies:
    """Copies batches, and notes it on the tape of the open step.

    Args:
        clock: where marks come from.
        device: where the model is.
        streams: the streams of this GPU.
    """

    def __init__(self, clock: Clock, device: torch.device, streams: Streams) -> None:
        self._clock = clock
        self._device = device
        self._streams = streams

    def copied(
        self, batch: Mapping[str, torch.Tensor], compute: torch.cuda.Stream | None, tape: Tape | None
    ) -> dict[str, torch.Tensor]:
        """The batch on the device: a large one by way of the auxiliary stream, so that pinned memory crosses
        while the step before still computes.

        Args:
            batch: on the host.
            compute: the current stream; None without a GPU, where nothing is copied or noted.
            tape: of a step that is timed part by part, or None.
        """
        size = 0
        for value in batch.values():
            size += value.nbytes
        if compute is not None and size > SMALL_BATCH:
            return self._aside(batch, compute, tape)
        if compute is None or tape is None:
            return self._moved(batch)
        start = self._clock.mark(compute)
        moved = self._moved(batch)
        tape.add_copy(start, self._clock.mark(compute))
        return moved

    def _aside(
        self, batch: Mapping[str, torch.Tensor], compute: torch.cuda.Stream, tape: Tape | None
    ) -> dict[str, torch.Tensor]:
        aux = self._streams.of(COPY)
        torch.cuda.set_stream(aux)  # a fraction of what a context of it costs
        try:
            start = self._clock.mark(aux) if tape is not None else None
            moved = self._moved(batch)
        finally:
            torch.cuda.set_stream(compute)
        if tape is None or start is None:
            compute.wait_stream(aux)
        else:
            end = self._clock.mark(aux)
            assert not isinstance(end, int)
            compute.wait_event(end)
            tape.add_copy(start, end)
        for value in moved.values():
            value.record_stream(compute)  # its memory belongs to the auxiliary stream
        return moved

    def _moved(self, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: value.to(self._device, non_blocking=True) for name, value in batch.items()}
