"""Turns a measured step into the record that is written. No torch: this runs outside the training process."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from aorta.artefacts.step_record import Execution, RankConstants, StepRecord
from aorta.instrument.steps import TakenTimes, describe, step_times
from aorta.instrument.wire import StepMeasurement, StepSummary
from aorta.units import NS_PER_MS, ns_to_ms

_CONSTANT = tuple(item.name for item in fields(RankConstants))
_MEASURED = (
    *("epoch", "step", "global_step", "phase", "samples", "lr", "loss", "grad_norm"),
    *("rocm_smi_output", "detailed", "untimed_calls", "before_ms"),
)
"""Fields that the record takes over from the measurement."""


def record_of(constants: RankConstants, measured: StepMeasurement) -> StepRecord:
    """The record of a step."""
    times = step_times(
        measured.start,
        measured.end,
        measured.pieces,
        measured.waits,
        communication_observed=measured.communication_observed and measured.detailed,
        copies_timed=measured.copies_timed,
    )
    # One reading of all host clocks per step: the others follow the monotonic clock within it.
    wall = measured.wall_start_ns - measured.host_start_ns
    memory = measured.memory
    breakdown, profile = describe(times, measured.global_step, _markers(constants, measured))
    return StepRecord(
        **{name: getattr(constants, name) for name in _CONSTANT},
        **{name: getattr(measured, name) for name in _MEASURED},
        wall_start_ns=times.start + wall,
        wall_end_ns=times.end + wall,
        mono_start_ns=times.start,
        mono_end_ns=times.end,
        boot_start_ns=times.start + measured.boot_start_ns - measured.host_start_ns,
        data_wait_ms=ns_to_ms(measured.data_wait_ns),
        breakdown=breakdown,
        memory_peak_bytes=memory.peak_bytes if memory else None,
        memory_reserved_bytes=memory.reserved_bytes if memory else None,
        alloc_retries=memory.retries if memory else None,
        alloc_ooms=memory.ooms if memory else None,
        profile=profile,
        execution=_execution(measured, times),
    )


def summary_of(record: StepRecord) -> StepSummary:
    """The summary of a record that the training gets back."""
    parts = record.breakdown
    return StepSummary(
        epoch=record.epoch,
        global_step=record.global_step,
        samples=record.samples,
        lr=record.lr,
        loss=record.loss,
        mono_start_ns=record.mono_start_ns,
        mono_end_ns=record.mono_end_ns,
        data_wait_ns=round(record.data_wait_ms * NS_PER_MS),
        compute_ns=parts.compute_ns if parts else None,
        exposed_comm_ns=parts.exposed_comm_ns if parts else None,
        steady=record.phase == "steady",
    )


def _execution(measured: StepMeasurement, times: TakenTimes) -> Execution | None:
    if measured.kernels is None:
        return None
    # Only sampled steps need array arithmetic, and most runs have none.
    from aorta.instrument.activity import Kernel, execution_of

    return execution_of([Kernel(*kernel) for kernel in measured.kernels], times.pieces)


def _markers(constants: RankConstants, measured: StepMeasurement) -> list[dict[str, Any]]:
    """On a GPU: when the host opened and closed the step, so that a reader sees how far it ran ahead."""
    if constants.timing == "host":
        return []
    moments = {"host_step_start": measured.host_start_ns, "host_step_end": measured.host_end_ns}
    return [{"name": name, "time_ms": ns_to_ms(ns - measured.start)} for name, ns in moments.items()]
