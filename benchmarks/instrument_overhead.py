"""Instrumented over plain step time: all in one process group, taking turns.

    torchrun --nproc_per_node 2 benchmarks/instrument_overhead.py [--rows wide/fsdp ...] [--json FILE]

For FSDP2 and DDP, at three sizes: `default`; `short`, the ranking model with one layer; and `wide`, two wide
layers whose batch is grown until a plain step takes 5 ms, so that the GPU is the bottleneck where the host is
fast enough. `queued ms` is when the host had queued a plain step: where it equals the step, the host is the
bottleneck, and whatever the recorder does is added to the step. Steps timed part by part (`parts`) and as a
whole (`whole`) are measured apart; `all` is what a long run pays, of whose blocks one in 40 is of the first
kind (`capture.detail_interval`). A turn runs a few steps of each: the host of a GPU may change its speed from
second to second, by more than is to be measured, and turns have to be shorter than that. A block's time is
the slowest rank's. Two plain runs take part: `whole` is the mean of the ratios over each; `control` is one
over the other, which shows what the machine and the method can tell apart. A ratio is the median over turns;
those in which the recorder handed over what it had have a median of their own, and both weigh as many turns
as they are of. Intervals are of 95% (bootstrap). Target of `all`: at most 1.01. On a CPU: --small.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loops import (
    LONG,
    Training,
    Wide,
    measured,
    recording,
    say,
    settings,
    shared_folder,
    strategies,
    take_turns,
    write,
)
from ratios import Block, mixed, over_both, ratio

from aorta.config import schema
from aorta.instrument.capture import DETAIL_STEPS, GPU_INTERVAL
from aorta.workloads.ranking import Ranking
from aorta.workloads.trainer.world import World, join

TARGET = 1.01
PARTS_SHARE = 0.25
"""Of the time of a row, for the turns with steps timed part by part, which weigh little."""
SHORT_MS = 5.0
LARGEST_BATCH = 1 << 16
SIZES = ("default", "short", "wide")
SHORT = ["model.num_layers=1"]
WIDE = ["model.model_dim=4096", "model.num_heads=16"]


@dataclass(frozen=True, slots=True)
class Case:
    """One row."""

    size: str
    strategy: str
    config: schema.Config
    workload: Callable[[schema.Config], Any] = Ranking


def wide(small: bool, chosen: list[str], world: World) -> schema.Config:
    """The configuration of two wide layers whose plain step takes `SHORT_MS` or a little more."""
    batch = 4 if small else 1024
    while True:
        size = [] if small else WIDE
        config = settings(small, *size, *chosen, f"training.batch_size={batch}")
        trial = Training(config, world, None, Wide)
        measured(trial, 5)
        if small or batch >= LARGEST_BATCH or measured(trial, 10).ms >= SHORT_MS:
            return config
        batch = batch * 5 // 4


def cases(small: bool, world: World, rows: Collection[str]) -> Iterator[Case]:
    """Those of `rows` (`size/strategy`), each made when it is asked for; without any, all of them."""
    for strategy, chosen in strategies(world).items():
        for size in SIZES:
            if rows and f"{size}/{strategy}" not in rows:
                continue
            if size == "wide":
                yield Case(size, strategy, wide(small, chosen, world), Wide)
            else:
                more = SHORT if size == "short" else []
                yield Case(size, strategy, settings(small, *chosen, *more))


def compare(case: Case, world: World, folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Ways to train that configuration: plain twice, timed as a whole, and timed part by part."""
    plain, again = (Training(case.config, world, None, case.workload) for _ in range(2))
    whole, parts = (
        Training(recording(case.config, interval), world, folder / str(interval), case.workload)
        for interval in (LONG, 1)
    )

    def turns(share: float, *runs: Training) -> list[list[Block]]:
        return take_turns(
            runs, given.alternations, given.steps, warmup=DETAIL_STEPS, limit_s=share * given.seconds
        )

    first, second, light = turns(1 - PARTS_SHARE, plain, again, whole)
    beside, detail = turns(PARTS_SHARE, plain, parts)
    whole.close()
    parts.close()
    both = [Block((one.ms + other.ms) / 2, 0.0) for one, other in zip(first, second, strict=True)]
    found = {"control": ratio(second, first), "parts": ratio(detail, beside)}
    found["whole"] = over_both(light, first, second)
    found["all"] = mixed(found["whole"], found["parts"], GPU_INTERVAL)
    return {
        "size": case.size,
        "strategy": case.strategy,
        "batch_size": case.config.training.batch_size,
        "plain_ms": statistics.median(block.ms for block in both),
        "plain_spread_ms": [min(block.ms for block in both), max(block.ms for block in both)],
        "plain_queued_ms": statistics.median(block.queued_ms for block in first),
        "turns": len(both),
        "turns_of_parts": len(detail),
        "steps_of_a_block": given.steps,
        **{name: [item.value, *item.interval] for name, item in found.items()},
        "text": "  ".join(f"{item!s:<25}" for item in found.values()),
        "met": found["all"].value <= TARGET,
    }


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    flags.add_argument("--rows", nargs="+", default=(), metavar="SIZE/STRATEGY", help="all, if not given")
    flags.add_argument("--alternations", type=int, default=10_000)
    flags.add_argument("--steps", type=int, default=5, help="of a block")
    flags.add_argument("--seconds", type=float, default=60.0, help="of measured time a row, at most")
    flags.add_argument("--small", action="store_true")
    flags.add_argument("--json", type=Path)
    given = flags.parse_args()
    rows = []
    with join(settings(given.small)) as world:
        folder = shared_folder(world)
        say(
            world,
            f"{'size':<8}{'strategy':<10}{'plain ms':>10}{'queued ms':>11}{'turns':>7}"
            f"  {'control [95%]':<27}{'parts':<27}{'whole':<27}all, of {GPU_INTERVAL} blocks",
        )
        for case in cases(given.small, world, given.rows):
            row = compare(case, world, folder / f"{case.size}_{case.strategy}", given)
            rows.append(row)
            say(
                world,
                f"{case.size:<8}{case.strategy:<10}{row['plain_ms']:>10.2f}{row['plain_queued_ms']:>11.2f}"
                f"{row['turns']:>7}"
                f"  {row['text']}{'' if row['met'] else '  over ' + str(TARGET)}",
            )
        write(given.json, world, {"target": TARGET, "rows": rows})


if __name__ == "__main__":
    main()
