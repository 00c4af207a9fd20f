"""Describes what GPUs computed in traced steps: time by kind, and rates where work is known."""

from __future__ import annotations

from aorta.artefacts.records import Record


class KindUse(Record, frozen=True, kw_only=True):
    """One kind of GPU work, per step, as the mean over ranks."""

    kind: str
    ms: float
    """Sum of the durations; work of several streams may overlap."""
    launches: float
    known_ms: float | None
    """Time of the work whose operations or bytes are recorded; null: none is."""
    tflops: float | None
    """Reached in that time; null: operations are not recorded."""
    gb_s: float | None
    """Reached in that time by copies; null: bytes are not recorded."""
    attainable_pct: float | None
    """Reached rate over the peak of the card and the numbers' type; null: one of them is not known."""


class ComputeUse(Record, frozen=True, kw_only=True):
    """Time of GPU work by kind, and model FLOP utilisation."""

    gpu: str | None
    """The driver's name; null: the traces do not say."""
    peak_tflops: float | None
    """Dense, of tensor cores in bf16, without sparsity; null: the card is not in the table."""
    memory_gb_s: float | None
    link_gb_s: float | None
    source: str | None
    """Source of the peaks."""
    kinds: list[KindUse]
    """The one that takes longest first."""
    model_tflop: float | None
    """Operations of the model per step and rank, without recomputation; null: not known for all products."""
    mfu_pct: float | None
    """`model_tflop` over what the card could do in bf16 in a step without the profiler."""
    reason: str | None
    """Why utilisation is not known; null: it is."""
