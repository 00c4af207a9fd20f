"""A closed step to the record that is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from aorta.artefacts.records import Phase, StepRecord
from aorta.instrument.activity import Kernel, execution_of
from aorta.instrument.identity import Identity
from aorta.instrument.scalars import Scalars
from aorta.instrument.steps import describe
from aorta.instrument.streams import Clock, Mark
from aorta.instrument.tape import Tape
from aorta.units import ns_to_ms


@dataclass(slots=True)
class Step:
    """The open step; `result` says what came out of it."""

    epoch: int
    step: int
    global_step: int
    phase: Phase
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
            grad_norm: total gradient norm before clipping, of all ranks; None where it was not computed.
        """
        self.samples, self.lr = samples, lr
        self.scalars = Scalars(loss, grad_norm)


@dataclass(frozen=True, slots=True)
class Closed:
    """A closed step whose times may not be known yet."""

    step: Step
    tape: Tape
    end: Mark
    host_end_ns: int
    memory_peak_bytes: int | None
    kernels: Sequence[Kernel] | None
    """Of a sampled step."""
    rocm_smi_output: str | None


@dataclass(frozen=True, slots=True)
class Assembler:
    """What stays the same from record to record.

    Args:
        who: this rank.
        clock: resolves marks.
        device: where the model is.
        device_uuid: of a GPU, as NVML writes it.
        memory_total_bytes: of a GPU.
    """

    who: Identity
    clock: Clock
    device: torch.device
    device_uuid: str | None
    memory_total_bytes: int | None

    def record(self, closed: Closed, observed: bool) -> StepRecord:
        """The record of a step whose end has passed.

        Args:
            closed: the step.
            observed: whether its communication was.
        """
        step, tape, who = closed.step, closed.tape, self.who
        times = tape.resolve(self.clock, closed.end, observed)
        # One reading of all host clocks a step: the others follow the monotonic clock within it.
        wall = tape.wall_start_ns - tape.host_start_ns
        assert step.samples is not None
        assert step.lr is not None
        assert step.scalars is not None
        loss, grad_norm = step.scalars.read()
        breakdown, profile = describe(times, step.global_step, self._markers(closed, times.start))
        return StepRecord(
            run_id=who.run_id,
            job_id=who.job_id,
            host=who.host,
            attempt=who.attempt,
            rank=who.rank,
            local_rank=who.local_rank,
            world_size=who.world_size,
            device=str(self.device),
            device_uuid=self.device_uuid,
            epoch=step.epoch,
            step=step.step,
            global_step=step.global_step,
            phase=step.phase,
            wall_start_ns=times.start + wall,
            wall_end_ns=times.end + wall,
            mono_start_ns=times.start,
            mono_end_ns=times.end,
            boot_start_ns=times.start + tape.boot_start_ns - tape.host_start_ns,
            samples=step.samples,
            data_wait_ms=ns_to_ms(tape.data_wait_ns),
            timing=self.clock.timing,
            breakdown=breakdown,
            loss=loss,
            grad_norm=grad_norm,
            lr=step.lr,
            memory_peak_bytes=closed.memory_peak_bytes,
            memory_total_bytes=self.memory_total_bytes,
            profile=profile,
            execution=execution_of(closed.kernels, times.pieces) if closed.kernels is not None else None,
            rocm_smi_output=closed.rocm_smi_output,
        )

    def _markers(self, closed: Closed, start_ns: int) -> list[dict[str, Any]]:
        """On a GPU: when the host opened and closed the step, so that a reader sees how far it ran ahead."""
        if self.device.type != "cuda":
            return []
        moments = {"host_step_start": closed.tape.host_start_ns, "host_step_end": closed.host_end_ns}
        return [{"name": name, "time_ms": ns_to_ms(ns - start_ns)} for name, ns in moments.items()]
