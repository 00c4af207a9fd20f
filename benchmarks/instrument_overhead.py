"""Instrumented over plain step time: both in one process group, taking turns.

    torchrun --nproc_per_node 2 benchmarks/instrument_overhead.py [--alternations 40] [--json FILE]

At the default configuration and at a step of about 5 ms (a shallow model, its batch grown until a plain step
takes that long), for FSDP2 and DDP. A turn runs a block of steps of each; a block's time is the slowest
rank's. The ratio is the median over turns with its 95% interval. Target: at most 1.01. On a CPU: --small.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

from loops import Training, block_ms, ratio, say, settings, shared_folder, take_turns, write

from aorta.config import schema
from aorta.train.world import World, join

TARGET = 1.01
SHORT_MS = 5.0
LARGEST_BATCH = 512


def short_step(small: bool, strategy: str, world: World) -> schema.Config:
    """The configuration whose plain step takes `SHORT_MS` or a little more."""
    batch = 4 if small else 8
    while True:
        config = settings(
            small, f"distributed.strategy={strategy}", "model.num_layers=1", f"training.batch_size={batch}"
        )
        trial = Training(config, world, None)
        block_ms(trial, 5)
        if small or batch >= LARGEST_BATCH or block_ms(trial, 10) >= SHORT_MS:
            return config
        batch *= 2


def compare(config: schema.Config, world: World, folder: Path, turns: int, steps: int) -> dict[str, Any]:
    """Both ways to train that configuration."""
    plain, recorded = Training(config, world, None), Training(config, world, folder)
    times = take_turns([recorded, plain], turns, steps, warmup=5)
    recorded.close()
    found = ratio(*times)
    return {
        "batch_size": config.training.batch_size,
        "plain_ms": statistics.median(times[1]),
        "plain_spread_ms": [min(times[1]), max(times[1])],
        "instrumented_ms": statistics.median(times[0]),
        "ratio": found.median,
        "ratio_interval": [found.low, found.high],
        "text": str(found),
        "met": found.median <= TARGET,
    }


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    flags.add_argument("--alternations", type=int, default=40)
    flags.add_argument("--steps", type=int, default=10, help="of a block")
    flags.add_argument("--small", action="store_true")
    flags.add_argument("--json", type=Path)
    given = flags.parse_args()
    rows = []
    with join(settings(given.small)) as world:
        folder = shared_folder(world)
        say(world, f"{'size':<8}{'strategy':<10}{'plain ms':>10}{'with ms':>10}  ratio [95%]")
        for size in ("default", "short"):
            for strategy in ("fsdp", "ddp"):
                if size == "short":
                    config = short_step(given.small, strategy, world)
                else:
                    config = settings(given.small, f"distributed.strategy={strategy}")
                row = compare(config, world, folder / f"{size}_{strategy}", given.alternations, given.steps)
                rows.append({"size": size, "strategy": strategy, **row})
                say(
                    world,
                    f"{size:<8}{strategy:<10}{row['plain_ms']:>10.2f}{row['instrumented_ms']:>10.2f}"
                    f"  {row['text']}{'' if row['met'] else '  over ' + str(TARGET)}",
                )
        write(given.json, world, {"target": TARGET, "rows": rows})


if __name__ == "__main__":
    main()
