"""A step: open, and then closed while its times may not be known yet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from aorta.artefacts.step_names import Between, Phase
from aorta.errors import RunError
from aorta.instrument.activity import Kernel
from aorta.instrument.scalars import Scalars, kept
from aorta.instrument.streams import Clock, HostClocks, Mark
from aorta.instrument.tape import Read, Tape
from aorta.instrument.wire import AllocatorPeaks, StepMeasurement


@dataclass(slots=True, eq=False)
class Step:
    """The open step; `result` says what came out of it. One object per step: each costs some µs."""

    epoch: int | None
    step: int
    global_step: int
    phase: Phase
    tape: Tape | None = None
    """The tape of its parts, if the step is timed part by part."""
    start: Mark = 0
    host_start_ns: int = 0
    data_wait_ns: int = 0
    samples: int | None = None
    lr: float | None = None
    scalars: Scalars | None = None
    """Its loss and gradient norm."""
    end: Mark = 0
    end_is_shared: bool = False
    """The end is the start of the next step, too."""
    host_end_ns: int = 0
    memory: AllocatorPeaks | None = None
    kernels: Sequence[Kernel] | None = None
    """Kernels of the step, if it was sampled."""
    rocm_smi_output: str | None = None
    communication_observed: bool = False
    before_ms: dict[Between, float] | None = None
    """Time ahead of it that the program gave a name."""

    def result(
        self,
        *,
        samples: int | None,
        lr: float | None,
        loss: torch.Tensor | float | None = None,
        grad_norm: torch.Tensor | float | None = None,
    ) -> None:
        """State what the step did. Call it once, before the step closes.

        Args:
            samples: samples that this rank consumed; None if not counted.
            lr: learning rate of the update; None where it is not known.
            loss: loss of this rank; a tensor on a GPU is read later, without a synchronisation.
            grad_norm: total gradient norm before clipping, of all ranks; None where it was not computed. Of a
                sharded one (DTensor, as FSDP2's) give the `full_tensor()`: that takes a collective, which is
                never made here.
        """
        self.samples, self.lr = samples, lr
        self.scalars = Scalars([kept(loss), kept(grad_norm)])

    def results(self) -> Scalars:
        """Its loss and gradient norm.

        Raises:
            RunError: the step has no result.
        """
        if self.scalars is None:
            raise RunError(
                f"step {self.global_step} was closed without a result",
                "call step.result(...) before the step ends",
            )
        return self.scalars

    def marks(self) -> Iterator[Mark]:
        """Marks that can be used again after `read`. The start mark is kept: it anchors the clock."""
        if self.tape is not None:
            yield from self.tape.known.values()
        if not self.end_is_shared:
            yield self.end

    def read(self, clock: Clock, host: HostClocks, scalars: Sequence[float | None]) -> StepMeasurement:
        """The step in numbers; its end must have passed. Once: its marks are used again afterwards.

        Args:
            clock: of its marks.
            host: the host's clocks, read at about that time.
            scalars: its loss and gradient norm.
        """
        loss, grad_norm = scalars
        tape = self.tape
        if tape is None:
            clock.anchor(self.start, self.host_start_ns)
            read = Read(clock.nanoseconds(self.start), clock.nanoseconds(self.end), [], [])
        else:
            read = tape.read(clock, self.end)
        return StepMeasurement(
            epoch=self.epoch,
            step=self.step,
            global_step=self.global_step,
            phase=self.phase,
            samples=self.samples,
            lr=self.lr,
            loss=loss,
            grad_norm=grad_norm,
            start=read.start,
            end=read.end,
            host_start_ns=self.host_start_ns,
            host_end_ns=self.host_end_ns,
            wall_start_ns=self.host_start_ns + host.wall_ahead_ns,
            boot_start_ns=self.host_start_ns + host.boot_ahead_ns,
            pieces=read.pieces,
            waits=read.waits,
            communication_observed=self.communication_observed,
            copies_timed=tape is not None and tape.copies_timed,
            data_wait_ns=self.data_wait_ns,
            memory=self.memory,
            kernels=None
            if self.kernels is None
            else [(one.stream, one.launched, one.start, one.end) for one in self.kernels],
            rocm_smi_output=self.rocm_smi_output,
            detailed=tape is not None,
            before_ms=self.before_ms,
            untimed_calls=None
            if tape is None or not self.communication_observed
            else {op: calls for op, calls in tape.untimed.items() if calls},
        )
