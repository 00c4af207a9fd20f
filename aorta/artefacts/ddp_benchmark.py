"""Schema of `ddp_benchmark.json`: what the benchmark of gradient exchanges measured. Absent is None, never 0.

Times of a part are distributions over every steady step of every rank.
"""

from __future__ import annotations

from typing import Any, Literal

from aorta.artefacts.records import SCHEMA_VERSION, Record


class TimeSpread(Record, frozen=True, kw_only=True):
    """A distribution of times in ms: its middle, its slow end, and how wide its middle half is."""

    median_ms: float
    p95_ms: float
    iqr_ms: float
    """Third quartile minus first."""


class ImplementationResult(Record, frozen=True, kw_only=True):
    """One way to average gradients, measured."""

    name: str
    steps: int
    """Steady steps of each rank."""
    total: TimeSpread
    forward: TimeSpread
    backward: TimeSpread
    """Compute of the backward pass; waiting for gradients of other ranks is not in it."""
    exposed_sync: TimeSpread
    """From the end of the backward pass's compute until the averaged gradients may be used."""
    optimizer: TimeSpread
    tokens_per_s: float
    """Rate of all ranks together, by the slowest rank of each step."""
    samples_per_s: float
    throughput_over_torch_ddp: float | None
    """None where torch_ddp was not among the implementations."""
    comm_ms: float
    """Communication of a step, median: the union of its collectives' windows."""
    hidden_comm_ms: float
    exposed_comm_ms: float
    overlap_ratio: float | None
    """Hidden / all communication over all steady steps; None without communication."""
    collectives_per_step: int
    bytes_per_step: int
    """Bytes that a rank hands to all-reduce in a step."""
    bus_bytes_per_s: float | None
    """2(n−1)/n × bytes / communication time; None on one rank."""
    bus_over_peak_ratio: float | None
    communication_from: Literal["same_steps", "extra_steps"]
    """`extra_steps`: parts and communication come from a second run of fewer steps through a communication
    hook, because torch's reducer does not show its collectives; total and throughput come from the plain one.
    """
    final_loss: float | None
    """Mean over ranks in the last step; None where it is not finite."""
    weights_equal_on_all_ranks: bool
    """Bit by bit, after the last step."""


class PeakPoint(Record, frozen=True, kw_only=True):
    """A plain all-reduce of one size."""

    bytes: int
    time_ms: float
    """Mean of the calls back to back, of the slowest rank."""
    bus_bytes_per_s: float


class DdpBenchmark(Record, frozen=True, kw_only=True):
    """One run of the benchmark."""

    schema_version: int = SCHEMA_VERSION
    wall_ns: int
    hosts: list[str]
    device: str
    """GPU name, or `cpu`."""
    backend: str
    world_size: int
    torch_version: str
    timing: Literal["host", "event_window", "kernel"]
    options: dict[str, Any]
    parameters: int
    gradient_bytes: int
    tokens_per_step: int
    """Tokens of all ranks together."""
    peak: list[PeakPoint]
    """Empty on one rank: nothing crosses a bus."""
    implementations: list[ImplementationResult]
    """The implementations that were measured; the run ended before it came to `missing`."""

    @property
    def missing(self) -> list[str]:
        """Implementations that were asked for and not measured."""
        measured = {result.name for result in self.implementations}
        return [name for name in self.options.get("implementations", []) if name not in measured]
