"""Measures the speed of a plain all-reduce: the implementations are compared with it."""

from __future__ import annotations

import torch
import torch.distributed as dist

from aorta.artefacts.ddp_benchmark import PeakPoint
from aorta.instrument.streams import clock_for
from aorta.units import NS_PER_MS, NS_PER_S
from aorta.workloads.trainer.world import World

SMALLEST = 1 << 20
LARGEST = {"cuda": 1 << 30, "cpu": 1 << 26}
CALLS = {"cuda": (5, 20), "cpu": (1, 4)}
"""Calls that warm up, and calls that count."""


def bus_bytes(payload: int, ranks: int) -> float:
    """Bytes that each rank must send for an all-reduce of `payload` bytes: 2(n−1)/n × payload, the ring's
    volume, by which all-reduces of different numbers of ranks compare (nccl-tests, doc/PERFORMANCE.md).
    """
    return 2 * (ranks - 1) / ranks * payload


def sizes(gradient_bytes: int, device_type: str) -> list[int]:
    """Payloads from 1 MiB in steps of 4×, and the gradients' own size if it is not too large."""
    largest = min(max(gradient_bytes, SMALLEST), LARGEST[device_type])
    found = []
    size = SMALLEST
    while size < largest:
        found.append(size)
        size *= 4
    return [*found, largest // 4 * 4]


def measure(gradient_bytes: int, world: World) -> list[PeakPoint]:
    """Time all-reduces back to back; every rank calls it. Nothing for a single rank."""
    if world.size == 1:
        return []
    return [_point(size, world) for size in sizes(gradient_bytes, world.device.type)]


def _point(size: int, world: World) -> PeakPoint:
    warm, count = CALLS[world.device.type]
    clock = clock_for(world.device)
    tensor = torch.zeros(size // 4, device=world.device)
    for _ in range(warm):
        dist.all_reduce(tensor)
    start = clock.mark()
    for _ in range(count):
        dist.all_reduce(tensor)
    end = clock.mark()
    clock.wait(end)
    clock.anchor(start, 0)
    slowest = torch.tensor([(clock.nanoseconds(end) - clock.nanoseconds(start)) / count], device=world.device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    ns = float(slowest.item())
    return PeakPoint(
        bytes=size, time_ms=ns / NS_PER_MS, bus_bytes_per_s=bus_bytes(size, world.size) / ns * NS_PER_S
    )
