"""Memory that the GPUs' allocators held over steady steps, and how often they had to give their cache back.

Steps timed as a whole do not say.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from aorta.artefacts.step_columns import StepColumns
from aorta.metrics.steady import Steady


@dataclass(frozen=True, slots=True)
class AllocatorUse:
    """Use of memory over the ranks that recorded it; each number is from the rank where it is largest."""

    tensors_pct: float | None
    """Peak of the tensors over the GPU's memory."""
    reserved_pct: float | None
    """Peak of all that the allocator held over the GPU's memory."""
    fragmentation: float | None
    """1 - allocated / reserved at their peaks, 0 to 1: held, and no tensor's, since blocks do not fit."""
    total_bytes: int | None
    """Memory of the GPU."""
    retries_per_step: float | None
    """Calls of cudaMalloc that failed and were repeated after the cache was given back."""


def allocator_use(steady: Steady) -> AllocatorUse | None:
    """Over these steps; None where no rank recorded anything of it."""
    found = [item for steps in steady.by_rank.values() for item in _of_rank(steps)]
    if not found:
        return None
    return AllocatorUse(
        tensors_pct=_largest(item.tensors_pct for item in found),
        reserved_pct=_largest(item.reserved_pct for item in found),
        fragmentation=_largest(item.fragmentation for item in found),
        total_bytes=max(item.total_bytes or 0 for item in found) or None,
        retries_per_step=_largest(item.retries_per_step for item in found),
    )


def _of_rank(steps: StepColumns) -> list[AllocatorUse]:
    """One for each GPU that the rank had, which is one."""
    found = []
    for label in steps.labels:
        mine = steps.where(steps.labelled(label))
        peaks, held, retries = (
            values[values >= 0]
            for values in map(mine.column, ("memory_peak_bytes", "memory_reserved_bytes", "alloc_retries"))
        )
        total, peak = label.memory_total_bytes, int(peaks.max()) if len(peaks) else None
        reserved = int(held.max()) if len(held) else None
        if total and peak is not None:
            found.append(
                AllocatorUse(
                    tensors_pct=100.0 * peak / total,
                    reserved_pct=None if reserved is None else 100.0 * reserved / total,
                    total_bytes=total,
                    fragmentation=max(1.0 - peak / reserved, 0.0) if reserved else None,
                    retries_per_step=float(retries.mean()) if len(retries) else None,
                )
            )
    return found


def _largest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
