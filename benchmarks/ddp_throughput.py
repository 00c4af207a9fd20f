"""Throughput of ddp_bucketed over torch's DDP: both in one process group, taking turns.

    python benchmarks/ddp_throughput.py [--sizes default communication launches] [--alternations N]
    torchrun --nproc-per-node 8 benchmarks/ddp_throughput.py

Each turn runs both, a block of steps each, the first of them changing from turn to turn; a block's time is
the slowest rank's. The ratio is the median over turns, with the interval that holds the true median in 95 of
100 cases. Target: at least 0.98. `small` is for trying the script on a CPU.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from dataclasses import replace

import torch
import torch.distributed as dist

from aorta.workloads.ddp_benchmark import launch
from aorta.workloads.ddp_benchmark.model import parameter_count
from aorta.workloads.ddp_benchmark.options import SMALL, BenchmarkOptions
from aorta.workloads.ddp_benchmark.training import BenchmarkTraining
from aorta.workloads.trainer.world import World

PAIR = ("ddp_bucketed", "torch_ddp")
FEW_TOKENS = BenchmarkOptions(
    d_model=4096,
    d_ff=16384,
    num_layers=3,
    num_heads=32,
    batch_size=1,
    context_length=128,
    precision="tf32",
    warmup_epochs=0,
)
SIZES = {
    "default": BenchmarkOptions(warmup_epochs=0),
    # Few tokens on few large parameters: exchanging gradients takes longer than computing them.
    "communication": FEW_TOKENS,
    # As many gradients, spread over layers enough that the host's launches take longer than either.
    "launches": replace(FEW_TOKENS, d_model=2048, d_ff=8192, num_layers=12, num_heads=16),
    "small": replace(BenchmarkOptions(), **SMALL | {"warmup_epochs": 0}),
}
WARMUP_STEPS = 5


def block_ms(training: BenchmarkTraining, first: int, steps: int, world: World) -> float:
    """Milliseconds of a step in a block, of the slowest rank."""
    cuda = world.device.type == "cuda"
    dist.barrier(device_ids=[world.device.index] if cuda else None)
    if cuda:
        torch.cuda.synchronize(world.device)
    start = time.monotonic_ns()
    for index in range(first, first + steps):
        training.update(index)
    if cuda:
        torch.cuda.synchronize(world.device)
    taken = torch.tensor([(time.monotonic_ns() - start) / steps / 1e6], device=world.device)
    dist.all_reduce(taken, op=dist.ReduceOp.MAX)
    return float(taken.item())


def measure(options: BenchmarkOptions, alternations: int, steps: int, world: World) -> dict[str, list[float]]:
    trainings = {name: BenchmarkTraining(name, options, world) for name in PAIR}
    for training in trainings.values():
        block_ms(training, 0, WARMUP_STEPS, world)
    times: dict[str, list[float]] = {name: [] for name in PAIR}
    for turn in range(alternations):
        for name in PAIR if turn % 2 == 0 else PAIR[::-1]:
            times[name].append(block_ms(trainings[name], WARMUP_STEPS + turn * steps, steps, world))
    return times


def median_interval(values: list[float]) -> tuple[float, float]:
    """Order statistics between which the true median lies with at least 95% (binomial, exact)."""
    ordered, count = sorted(values), len(values)
    tail, below = 0.0, 0
    while (tail := tail + math.comb(count, below) / 2**count) <= 0.025:
        below += 1
    return ordered[max(below - 1, 0)], ordered[-max(below, 1)]


def work(sizes: list[str], alternations: int, steps: int, as_json: bool) -> None:
    with launch.joined("auto", 300) as world:
        device = torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else "cpu"
        rows = []
        for size in sizes:
            options = SIZES[size]
            torch.set_float32_matmul_precision("high" if options.precision == "tf32" else "highest")
            times = measure(options, alternations, steps, world)
            ratios = [theirs / mine for mine, theirs in zip(*(times[name] for name in PAIR), strict=True)]
            low, high = median_interval(ratios)
            rows.append(
                {
                    "size": size,
                    "device": device,
                    "ranks": world.size,
                    "parameters": parameter_count(options),
                    "tokens_per_rank": options.batch_size * options.context_length,
                    "precision": options.precision,
                    **{f"{name}_ms": statistics.median(times[name]) for name in PAIR},
                    "ratio": statistics.median(ratios),
                    "low": low,
                    "high": high,
                    "alternations": alternations,
                    "steps": steps,
                    "torch": str(torch.__version__),
                }
            )
        if world.rank == 0:
            print(json.dumps(rows, indent=2) if as_json else table(rows), flush=True)


def table(rows: list[dict[str, object]]) -> str:
    lines = [
        "| size | ranks | parameters | tokens | precision | ddp_bucketed ms | torch_ddp ms | ratio (95%) |",
        "|---|---:|---:|---:|---|---:|---:|---:|",
    ]
    for row in rows:
        lines.append(
            "| {size} | {ranks} × {device} | {parameters:,} | {tokens_per_rank:,} | {precision}"
            " | {ddp_bucketed_ms:.2f} | {torch_ddp_ms:.2f} | {ratio:.4f} ({low:.4f} to {high:.4f}) |".format(
                **row
            )
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["default", "communication", "launches"])
    parser.add_argument("--alternations", type=int, default=30)
    parser.add_argument("--steps", type=int, default=5, help="steps of a block")
    parser.add_argument("--nproc", type=int, help="ranks, without a launcher; default: all GPUs, or 2")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    given = parser.parse_args()
    arguments = (given.sizes, given.alternations, given.steps, given.json)
    if launch.launched():
        work(*arguments)
    else:
        launch.start(work, launch.ranks_to_start("auto", given.nproc), *arguments)


if __name__ == "__main__":
    main()
