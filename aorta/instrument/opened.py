"""An open step, and a closed one whose times may not be known yet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from msgspec import Struct

from aorta.artefacts.records import Phase
from aorta.instrument.activity import Kernel
from aorta.instrument.scalars import Scalars
from aorta.instrument.streams import Clock, Mark
from aorta.instrument.tape import Tape
from aorta.instrument.wire import Measured, Memory


class Step(Struct, eq=False):
    """The open step; `result` says what came out of it."""

    epoch: int
    step: int
    global_step: int
    phase: Phase
    detailed: bool = True
    """Timed part by part."""
    samples: int | None = None
    lr: float | None = None
    scalars: Scalars | None = None

    def result(
        self,
        *,
        samples: int,
        lr: float,
        loss: torch.Tensor | float | None = None,
        grad_norm: torch.Tensor | float | None = None,
    ) -> None:
        """State what the step did. Call it once, before the step closes.

        Args:
            samples: samples that this rank consumed.
            lr: learning rate of the update.
            loss: loss of this rank; a tensor on a GPU is read later, without a synchronisation.
            grad_norm: total gradient norm before clipping, of all ranks; None where it was not computed. Of a
                sharded one (DTensor, as FSDP2's) give the `full_tensor()`: that takes a collective, which is
                never made here.
        """
        self.samples, self.lr = samples, lr
        self.scalars = Scalars(loss, grad_norm)


class Closed(Struct, frozen=True, eq=False):
    """A closed step whose times may not be known yet."""

    step: Step
    tape: Tape
    end: Mark
    host_end_ns: int
    memory: Memory | None
    kernels: Sequence[Kernel] | None
    """Of a sampled step."""
    rocm_smi_output: str | None
    observed: bool
    """Whether its communication was."""

    @property
    def scalars(self) -> Scalars:
        """Its loss and gradient norm."""
        assert self.step.scalars is not None
        return self.step.scalars

    def marks(self) -> Iterator[Mark]:
        """Those that are not needed any more once it was read."""
        yield from self.tape.known.values()
        yield self.end

    def read(self, clock: Clock, scalars: Sequence[float | None]) -> Measured:
        """The step in numbers; its end must have passed. Once: its marks are used again afterwards.

        Args:
            clock: of its marks.
            scalars: its loss and gradient norm.
        """
        step, tape = self.step, self.tape
        assert step.samples is not None
        assert step.lr is not None
        loss, grad_norm = scalars
        read = tape.read(clock, self.end)
        return Measured(
            epoch=step.epoch,
            step=step.step,
            global_step=step.global_step,
            phase=step.phase,
            samples=step.samples,
            lr=step.lr,
            loss=loss,
            grad_norm=grad_norm,
            start=read.start,
            end=read.end,
            host_start_ns=tape.host_start_ns,
            host_end_ns=self.host_end_ns,
            wall_start_ns=tape.wall_start_ns,
            boot_start_ns=tape.boot_start_ns,
            pieces=read.pieces,
            waits=read.waits,
            communication_observed=self.observed,
            copies_timed=tape.copies_timed,
            data_wait_ns=tape.data_wait_ns,
            memory=self.memory,
            kernels=None
            if self.kernels is None
            else [(one.stream, one.launched, one.start, one.end) for one in self.kernels],
            rocm_smi_output=self.rocm_smi_output,
            detailed=step.detailed,
        )
