"""Benchmark mode: every implementation, one after another, in one process group."""

from __future__ import annotations

import gc
import logging
import socket
import time
from dataclasses import asdict, replace

import torch
import torch.distributed as dist

from aorta.artefacts.ddp_benchmark import DdpBenchmark, ImplementationResult, PeakPoint
from aorta.artefacts.io import write_json
from aorta.artefacts.study_layout import DdpBenchmarkDir
from aorta.workloads.ddp_benchmark import peak
from aorta.workloads.ddp_benchmark.model import parameter_count
from aorta.workloads.ddp_benchmark.options import (
    IMPLEMENTATIONS,
    MINIMUM_WARMUP_STEPS,
    REFERENCE,
    BenchmarkOptions,
)
from aorta.workloads.ddp_benchmark.results import ImplementationTimes, results_of
from aorta.workloads.ddp_benchmark.timing import StepSample
from aorta.workloads.ddp_benchmark.training import BenchmarkTraining, EpochLog, weights_equal
from aorta.workloads.trainer.world import World

log = logging.getLogger(__name__)

OBSERVED_STEPS = 10
"""Steps of torch_ddp with its all-reduces timed, after the ones whose speed counts."""


def compare(options: BenchmarkOptions, world: World) -> None:
    """Measure everything. Rank 0 writes `ddp_benchmark.json` again after each implementation, so that a run
    that ends early leaves what it has measured.

    torch_ddp goes first: what is left of such a run can then be held against it.
    """
    points = peak.measure(4 * parameter_count(options), world)
    if world.rank == 0:
        for point in points:
            rate = point.bus_bytes_per_s / 1e9
            log.info("plain all-reduce of %d bytes: %.3f ms, bus %.2f GB/s", point.bytes, point.time_ms, rate)
    hosts: list[str] = [""] * world.size
    dist.all_gather_object(hosts, socket.gethostname())
    order = sorted(options.implementations, key=lambda name: name != REFERENCE)
    measured: list[ImplementationTimes] = []
    started = time.monotonic()
    for name in order:
        measured.append(measure(name, options, world))
        if world.rank != 0:
            continue
        shown = sorted(measured, key=lambda one: IMPLEMENTATIONS.index(one.name))
        document = _document(results_of(shown, options, points), points, hosts, options, world)
        write_json(DdpBenchmarkDir(options.output_dir).results, document)
        spent, left = time.monotonic() - started, len(order) - len(measured)
        log.info("%s measured; %d to go, about %.0f s", name, left, spent / len(measured) * left)


def _document(
    results: list[ImplementationResult],
    points: list[PeakPoint],
    hosts: list[str],
    options: BenchmarkOptions,
    world: World,
) -> DdpBenchmark:
    cuda = world.device.type == "cuda"
    return DdpBenchmark(
        wall_ns=time.time_ns(),
        hosts=sorted(set(hosts)),
        device=torch.cuda.get_device_name(world.device) if cuda else "cpu",
        backend=dist.get_backend(),
        world_size=world.size,
        torch_version=str(torch.__version__),
        timing="event_window" if cuda else "host",
        options={
            name: str(value) if name.endswith("_dir") else value for name, value in asdict(options).items()
        },
        parameters=parameter_count(options),
        gradient_bytes=4 * parameter_count(options),
        tokens_per_step=options.batch_size * options.context_length * world.size,
        peak=points,
        implementations=results,
    )


def measure(name: str, options: BenchmarkOptions, world: World) -> ImplementationTimes:
    """Run one implementation on every rank, and gather what they measured."""
    steps, equal = _run(name, options, world, observed=False)
    if name != REFERENCE:
        return ImplementationTimes(name, steps, steps, equal)
    few = min(options.total_steps - options.first_steady_step, OBSERVED_STEPS)
    shorter = replace(options, num_epochs=1, warmup_epochs=0, steps_per_epoch=MINIMUM_WARMUP_STEPS + few)
    parts, _ = _run(name, shorter, world, observed=True)
    return ImplementationTimes(name, steps, parts, equal)


def _run(
    name: str, options: BenchmarkOptions, world: World, observed: bool
) -> tuple[list[list[StepSample]], bool]:
    """Steady samples by rank, and whether the weights ended equal."""
    training = BenchmarkTraining(name, options, world, observed)
    progress = EpochLog(training, world)
    for index in range(options.total_steps):
        training.step(index)
        if (index + 1) % options.steps_per_epoch == 0 and not observed:
            progress.end_epoch(index // options.steps_per_epoch)
        progress.poll()
    progress.close()
    training.close()
    samples = training.timer.samples()[options.first_steady_step :]
    equal = weights_equal(training.model)
    by_rank: list[list[StepSample]] = [[] for _ in range(world.size)]
    dist.all_gather_object(by_rank, samples)
    del training, progress
    gc.collect()  # hooks and implementation refer to each other; the next model needs the memory
    if world.device.type == "cuda":
        torch.cuda.empty_cache()
    return by_rank, equal
