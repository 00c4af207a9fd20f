"""Turns step samples of all ranks into the numbers of an implementation. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from aorta.artefacts.ddp_benchmark import ImplementationResult, PeakPoint, TimeSpread
from aorta.units import NS_PER_MS, NS_PER_S
from aorta.workloads.ddp_benchmark.options import REFERENCE, BenchmarkOptions
from aorta.workloads.ddp_benchmark.peak import bus_bytes
from aorta.workloads.ddp_benchmark.timing import StepSample

ByRank = Sequence[Sequence[StepSample]]


@dataclass(frozen=True, slots=True)
class ImplementationTimes:
    """Measurements of one implementation by all ranks, steady steps only."""

    name: str
    steps: ByRank
    """Steps of the run whose speed counts, by rank."""
    parts: ByRank
    """Steps of the run in which communication was observed, by rank; often the same run."""
    weights_equal: bool


def spread(ns: Sequence[int]) -> TimeSpread:
    """The distribution of times in ns, by linear interpolation between samples."""
    low, middle, high, slow = (float(value) / NS_PER_MS for value in np.percentile(ns, (25, 50, 75, 95)))
    return TimeSpread(median_ms=middle, p95_ms=slow, iqr_ms=high - low)


def samples_per_second(steps: ByRank, batch_size: int) -> float:
    """Global throughput: all ranks' samples over the time of the slowest rank, from the start of the first
    step to the end of the last.
    """
    slowest = max(rank[-1].end - rank[0].start for rank in steps)
    return sum(len(rank) for rank in steps) * batch_size / slowest * NS_PER_S


def result_of(
    measured: ImplementationTimes,
    options: BenchmarkOptions,
    peak: Sequence[PeakPoint],
    reference: float | None,
) -> ImplementationResult:
    """The numbers of one implementation.

    Args:
        measured: samples of every rank.
        options: for the sizes.
        peak: the plain all-reduces.
        reference: samples/s of torch_ddp, None if it did not run.
    """
    steps = [sample for rank in measured.steps for sample in rank]
    parts = [sample for rank in measured.parts for sample in rank]
    comm = [sample.comm for sample in parts if sample.comm is not None]
    hidden = [sample.hidden for sample in parts if sample.hidden is not None]
    exposed = [sample.exposed for sample in parts if sample.exposed is not None]
    ranks, total = len(measured.steps), sum(comm)
    payload = sum(sample.bytes for sample in parts)
    bus = bus_bytes(payload, ranks) / total * NS_PER_S if ranks > 1 and total else None
    best = max((point.bus_bytes_per_s for point in peak), default=None)
    losses = [rank[-1].loss for rank in measured.steps]
    finite = [loss for loss in losses if loss is not None]
    throughput = samples_per_second(measured.steps, options.batch_size)
    return ImplementationResult(
        name=measured.name,
        steps=len(measured.steps[0]),
        total=spread([sample.end - sample.start for sample in steps]),
        forward=spread([sample.forward for sample in parts]),
        backward=spread([sample.backward for sample in parts]),
        exposed_sync=spread([sample.sync for sample in parts]),
        optimizer=spread([sample.optimizer for sample in parts]),
        tokens_per_s=throughput * options.context_length,
        samples_per_s=throughput,
        throughput_over_torch_ddp=throughput / reference if reference else None,
        comm_ms=spread(comm).median_ms,
        hidden_comm_ms=spread(hidden).median_ms,
        exposed_comm_ms=spread(exposed).median_ms,
        overlap_ratio=sum(hidden) / total if total else None,
        collectives_per_step=parts[-1].collectives,
        bytes_per_step=parts[-1].bytes,
        bus_bytes_per_s=bus,
        bus_over_peak_ratio=bus / best if bus is not None and best else None,
        communication_from="same_steps" if measured.parts is measured.steps else "extra_steps",
        final_loss=sum(finite) / len(finite) if len(finite) == len(losses) else None,
        weights_equal_on_all_ranks=measured.weights_equal,
    )


def results_of(
    measured: Sequence[ImplementationTimes], options: BenchmarkOptions, peak: Sequence[PeakPoint]
) -> list[ImplementationResult]:
    """The numbers of every implementation, each also over torch_ddp's."""
    speed = {one.name: samples_per_second(one.steps, options.batch_size) for one in measured}
    return [result_of(one, options, peak, speed.get(REFERENCE)) for one in measured]
