"""Throughput of the explicit streams over stock DDP and FSDP2: in one process group, taking turns.

    torchrun --nproc_per_node 2 benchmarks/overlap_manager.py [--seconds 60] [--json FILE]

Sizes: `default`, and `communication` (few samples on wide layers). Per strategy: `explicit` is what the
trainer does; `priority` puts the streams of communication before compute; `serial` switches overlap off;
`two_buffers` keeps two buffers of gradients in flight, where this torch can. Steps are timed as a whole, as
most are on a GPU (`capture.detail_interval`). The ratio is stock time over
theirs, above 1 where they win: the median over turns with its 95% interval. Target of `explicit`: at least
0.99. Each size and strategy is measured for --seconds, its rows are printed then. On a CPU: --small.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

from loops import WIDE, Training, say, settings, shared_folder, take_turns, write
from ratios import ratio
from torch.distributed.fsdp import FSDPModule

from aorta.instrument.capture import DETAIL_STEPS
from aorta.workloads.trainer.fsdp import TWO_BUFFERS
from aorta.workloads.trainer.world import World, join

TARGET = 0.99
WHOLE = ["capture.warmup_steps=0", "capture.detail_interval=1000000"]
SIZES: dict[str, list[str]] = {
    "default": [],
    "communication": [*WIDE, "model.num_layers=4", "training.batch_size=2"],
}
VARIANTS = {
    "explicit": [],
    "priority": ["distributed.stream_priority=-1"],
    "serial": ["distributed.enable_overlap=false"],
}


def measure(
    size: str, strategy: str, world: World, folder: Path, given: argparse.Namespace
) -> list[dict[str, Any]]:
    """Every variant of one size and strategy."""
    base = [*([] if given.small else SIZES[size]), f"distributed.strategy={strategy}", *WHOLE]
    variants = dict(VARIANTS)
    if strategy == "fsdp" and hasattr(FSDPModule, TWO_BUFFERS):
        variants["two_buffers"] = ["distributed.overlap_clone_for_reduce_scatter=true"]
    runs = [Training(settings(given.small, *base), world, None)]
    runs += [
        Training(settings(given.small, *base, *more), world, folder / f"{size}_{strategy}_{name}")
        for name, more in variants.items()
    ]
    blocks = take_turns(runs, given.alternations, given.steps, warmup=DETAIL_STEPS, limit_s=given.seconds)
    for run in runs:
        run.close()
    rows = []
    stock = [block.ms for block in blocks[0]]
    for name, taken in zip(variants, blocks[1:], strict=True):
        found = ratio(blocks[0], taken)
        rows.append(
            {
                "size": size,
                "strategy": strategy,
                "variant": name,
                "stock_ms": statistics.median(stock),
                "stock_spread_ms": [min(stock), max(stock)],
                "variant_ms": statistics.median(block.ms for block in taken),
                "turns": len(taken),
                "steps_of_a_block": given.steps,
                "ratio": found.value,
                "ratio_interval": list(found.interval),
            }
        )
        say(
            world,
            f"{size:<15}{strategy:<10}{name:<13}{rows[-1]['stock_ms']:>10.2f}{rows[-1]['variant_ms']:>10.2f}"
            f"  {found}",
        )
    return rows


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    flags.add_argument("--alternations", type=int, default=10_000)
    flags.add_argument("--steps", type=int, default=5, help="of a block")
    flags.add_argument("--seconds", type=float, default=60.0, help="of measured time a size and strategy")
    flags.add_argument("--small", action="store_true")
    flags.add_argument("--json", type=Path)
    given = flags.parse_args()
    rows: list[dict[str, Any]] = []
    with join(settings(given.small)) as world:
        folder = shared_folder(world)
        say(world, f"{'size':<15}{'strategy':<10}{'variant':<13}{'stock ms':>10}{'ms':>10}  ratio [95%]")
        for size in SIZES:
            for strategy in ("fsdp", "ddp"):
                rows += measure(size, strategy, world, folder, given)
        winners = [row for row in rows if row["ratio_interval"][0] > 1]
        for row in winners:
            say(world, f"wins: {row['size']} {row['strategy']} {row['variant']} ({row['ratio']:.4f})")
        if not winners:
            say(world, "no variant is faster than stock, by the 95% intervals")
        write(given.json, world, {"target": TARGET, "rows": rows})


if __name__ == "__main__":
    main()
