"""What a rank hands to the process that writes its records."""

from __future__ import annotations

from aorta.artefacts.step_record import RankConstants
from aorta.instrument.wire import AllocatorPeaks, StepMeasurement

CONSTANTS = RankConstants(
    run_id="r",
    job_id="7",
    host="h",
    attempt=0,
    rank=3,
    local_rank=1,
    world_size=4,
    device="cuda:1",
    device_uuid="GPU-1",
    memory_total_bytes=100,
    timing="event_window",
)


def measured(step: int = 0, **changes: object) -> StepMeasurement:
    """A step of 100 ns that the host opened 10 ns before: compute until 60, then an all-reduce until 90."""
    start = 1000 * step + 10
    fields: dict[str, object] = {
        "epoch": 0,
        "step": step,
        "global_step": step,
        "phase": "steady",
        "samples": 8,
        "lr": 0.5,
        "loss": 0.0,
        "grad_norm": None,
        "start": start,
        "end": start + 100,
        "host_start_ns": start - 10,
        "host_end_ns": start + 20,
        "wall_start_ns": start - 10 + 5000,
        "boot_start_ns": start - 10 + 70,
        "pieces": [
            ("compute", "forward", start, start + 60, None),
            ("allreduce", "gradients", start + 40, start + 90, {"op": "all_reduce", "seq": 1}),
        ],
        "waits": [],
        "communication_observed": True,
        "copies_timed": True,
        "data_wait_ns": 0,
        "memory": AllocatorPeaks(0, 4, 2, 1),
        "kernels": None,
        "rocm_smi_output": None,
        "detailed": True,
    }
    return StepMeasurement(**{**fields, **changes})  # type: ignore[arg-type]
