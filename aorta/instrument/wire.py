"""Messages between a rank and the process that writes its records: frames of `marshal`. No torch.

Both ends use the same interpreter, and one has started the other. In the standard library, `marshal` is the
quickest way to pass tuples and numbers.
"""

from __future__ import annotations

import marshal
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, NamedTuple

from aorta.artefacts.step_names import Between, Phase
from aorta.artefacts.step_record import RankConstants

LENGTH_BYTES = 4
"""Each frame begins with its length, little-endian. An empty one says that no more will come."""

Piece = tuple[str, str, int, int, dict[str, Any] | None]
"""Stream, tag, start, end, metadata."""


class AllocatorPeaks(NamedTuple):
    """Use of the GPU's allocator in one step."""

    peak_bytes: int
    """Peak of the memory in tensors."""
    reserved_bytes: int
    """Peak of the GPU memory that the allocator held: tensors, cached blocks and split ones."""
    retries: int
    ooms: int


class StepMeasurement(NamedTuple):
    """One step, as far as the training process knows it. Times are ns of the host's monotonic clock."""

    epoch: int | None
    step: int
    global_step: int
    phase: Phase
    samples: int | None
    lr: float | None
    loss: float | None
    grad_norm: float | None
    start: int
    end: int
    host_start_ns: int
    """Time at which the host opened the step: the wall clock and CLOCK_BOOTTIME were read with it."""
    host_end_ns: int
    wall_start_ns: int
    boot_start_ns: int
    pieces: list[Piece]
    waits: list[tuple[str, int, int]]
    """Stretches of compute that may have stood still: stream, start, end."""
    communication_observed: bool
    copies_timed: bool
    data_wait_ns: int
    memory: AllocatorPeaks | None
    """Use of the GPU's memory; None without a GPU, and for steps that are timed as a whole."""
    kernels: list[tuple[str, int, int, int]] | None
    """Kernels of a sampled step: stream, launch, start, end; ns of the wall clock. None if not sampled."""
    rocm_smi_output: str | None
    detailed: bool
    """Timed part by part; otherwise there are no pieces."""
    untimed_calls: dict[str, int] | None = None
    """Calls of `torch.distributed` that were seen and not timed, by operation; None if not counted."""
    before_ms: dict[Between, float] | None = None
    """Time ahead of the step that the program gave a name."""


class StepSummary(NamedTuple):
    """The answer of the writer when a record is in the file: enough to say how training goes."""

    epoch: int | None
    global_step: int
    samples: int | None
    lr: float | None
    loss: float | None
    mono_start_ns: int
    mono_end_ns: int
    data_wait_ns: int
    """The loader's blocking time."""
    compute_ns: int | None
    """Compute in the step. None, here and below, if the step has no breakdown: it was timed as a whole, or
    its communication was not observed.
    """
    exposed_comm_ns: int | None
    steady: bool = True
    """Neither warm-up nor slowed by a profiler."""


def packed(message: RankConstants | StepMeasurement | StepSummary) -> bytes:
    """Returns the message as bytes; its class is not among them.

    Raises:
        ValueError: a field holds something else than numbers, texts, None, lists, tuples, dicts.
    """
    if isinstance(message, RankConstants):
        return marshal.dumps(asdict(message))
    if isinstance(message, StepMeasurement) and message.memory is not None:
        message = message._replace(memory=tuple(message.memory))  # type: ignore[arg-type]
    return marshal.dumps(tuple(message))


def read_constants(content: bytes) -> RankConstants:
    """Returns the constants that `packed` was given.

    Raises:
        EOFError, TypeError, ValueError: the bytes are no such message.
    """
    return RankConstants(**marshal.loads(content))  # noqa: S302 - written by the process that started this one


def read_measured(content: bytes) -> StepMeasurement:
    """The step that `packed` was given; see `read_constants`."""
    made = StepMeasurement(*marshal.loads(content))  # noqa: S302
    return made if made.memory is None else made._replace(memory=AllocatorPeaks(*made.memory))


def read_summary(content: bytes) -> StepSummary:
    """The summary that `packed` was given; see `read_constants`."""
    return StepSummary(*marshal.loads(content))  # noqa: S302


def frame(content: bytes) -> bytes:
    """`content` with its length."""
    return len(content).to_bytes(LENGTH_BYTES, "little") + content


class Frames:
    """Cuts a stream of bytes into frames; what is incomplete waits for more."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The contents that are complete with `data`."""
        self._buffer += data
        while len(self._buffer) >= LENGTH_BYTES:
            end = LENGTH_BYTES + int.from_bytes(self._buffer[:LENGTH_BYTES], "little")
            if len(self._buffer) < end:
                return
            content = bytes(self._buffer[LENGTH_BYTES:end])
            del self._buffer[:end]
            yield content
