"""What the recorder does on the training's threads, by part: µs and calls per step.

    torchrun --nproc_per_node 2 benchmarks/recorder_cost.py [--whole] [--steps 128] [--json FILE]

For FSDP2 and DDP at the default configuration and with two wide layers, in steps that are timed part by part,
or as a whole. Each part is timed by the host's clock around its calls; what it calls of another part counts
there. Timing a call costs about 0.2 µs itself, and a part that runs on autograd's thread counts as well.
`copy` replaces a copy that the loop makes without the recorder too, and `exchange` the strategy's own way to
call the collectives, which for FSDP2 is the row of the plain run; so neither is all overhead. What calls do
to the caches is in no row: `instrument_overhead.py` says what overhead is. On a CPU: --small.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch.distributed.fsdp._fully_shard._fsdp_collectives as defaults
from instrument_overhead import WIDE
from loops import LONG, Training, Wide, recording, say, settings, shared_folder, write

from aorta.config import schema
from aorta.instrument import (
    allocator,
    channel,
    collectives,
    contexts,
    opened,
    pending,
    recorder,
    scalars,
    sharding,
    watching,
)
from aorta.instrument.streams import CudaClock, HostClock
from aorta.workloads.ranking import Ranking
from aorta.workloads.trainer.world import World, join

PARTS: dict[str, list[tuple[Any, str]]] = {
    "marks": [(CudaClock, "mark"), (HostClock, "mark")],
    "exchange": [
        (defaults.DefaultAllGather, "__call__"),
        (defaults.DefaultReduceScatter, "__call__"),
        (watching.Watching, "noted"),
        (sharding._Gather, "__call__"),
        (sharding._Scatter, "__call__"),
        (collectives.CollectiveRunner, "all_reduce"),
    ],
    "collective": [(collectives.CollectiveRunner, "own")],
    "waits": [
        (sharding.ShardedExchange, name)
        for name in (
            "_before_weights",
            "_after_weights",
            "_first_on_gradient",
            "_last_on_gradient",
            "_open",
            "_close",
            "_note_computed",
        )
    ],
    "copy": [(recorder.StepRecorder, "to_device")],
    "memory": [(allocator.AllocatorCounts, "start"), (allocator.AllocatorCounts, "read")],
    "contexts": [
        (contexts.ComputePart, "__enter__"),
        (contexts.ComputePart, "__exit__"),
        (contexts.LoaderWait, "__enter__"),
        (contexts.LoaderWait, "__exit__"),
        (recorder.StepRecorder, "opened"),
        (recorder.StepRecorder, "closed"),
    ],
    "result": [(opened.Step, "result"), (scalars.Landing, "__init__")],
    "queue": [(pending.PendingSteps, "add")],
    "read": [(opened.Step, "read")],
    "hand over": [(channel.RecordChannel, "send")],
    "hear": [(recorder.StepRecorder, "_tell")],
}
"""`collective` is the call of torch's collective itself, with or without a recorder."""
SIZES: dict[str, tuple[list[str], Callable[[schema.Config], Any]]] = {
    "default": ([], Ranking),
    "wide": ([*WIDE, "training.batch_size=1024"], Wide),
}


class Costs:
    """Times calls; the time of a call inside another counts for the inner one only."""

    def __init__(self) -> None:
        self.ns: defaultdict[str, int] = defaultdict(int)
        self.calls: defaultdict[str, int] = defaultdict(int)
        self._inner = [0]

    def timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """`call`, timed."""

        @functools.wraps(call)  # DDP looks at the hook's parameters
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            self._inner.append(0)
            start = time.perf_counter_ns()
            try:
                return call(*args, **kwargs)
            finally:
                taken = time.perf_counter_ns() - start
                self.ns[part] += taken - self._inner.pop()
                self._inner[-1] += taken
                self.calls[part] += 1

        return wrapper

    def clear(self) -> None:
        """Begin anew."""
        self.ns.clear()
        self.calls.clear()


def measure(run: Training, costs: Costs, steps: int) -> dict[str, tuple[float, float]]:
    """Calls and µs a step of each part, after as many steps in which everything is made that is kept."""
    for counting in (False, True):
        for _ in range(steps):
            run.step()
        if not counting:
            costs.clear()
    return {part: (costs.calls[part] / steps, costs.ns[part] / steps / 1000) for part in costs.calls}


def trainings(size: str, world: World, folder: Path, given: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    """By name, each made when it is asked for."""
    chosen, workload = SIZES[size]
    for strategy in ("fsdp", "ddp"):
        config = settings(given.small, *(() if given.small else chosen), f"distributed.strategy={strategy}")
        interval = LONG if given.whole else 1
        yield strategy, Training(recording(config, interval), world, folder / size / strategy, workload)
        if strategy == "fsdp":
            yield f"{strategy}, plain", Training(config, world, None, workload)


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    flags.add_argument("--steps", type=int, default=128, help="that are timed, after as many others")
    flags.add_argument("--whole", action="store_true", help="steps that are timed as a whole")
    flags.add_argument("--small", action="store_true")
    flags.add_argument("--json", type=Path)
    given = flags.parse_args()
    costs, rows = Costs(), []
    for part, places in PARTS.items():
        for owner, name in places:
            setattr(owner, name, costs.timed(part, getattr(owner, name)))
    with join(settings(given.small)) as world:
        folder = shared_folder(world)
        say(world, f"{'size':<9}{'strategy':<13}{'part':<12}{'calls':>8}{'µs a step':>12}{'µs a call':>12}")
        for size in SIZES:
            for strategy, run in trainings(size, world, folder, given):
                for part, (calls, us) in measure(run, costs, given.steps).items():
                    rows.append({"size": size, "strategy": strategy, "part": part, "calls": calls, "us": us})
                    say(
                        world,
                        f"{size:<9}{strategy:<13}{part:<12}{calls:>8.2f}{us:>12.1f}{us / calls:>12.2f}",
                    )
                run.close()
        write(given.json, world, {"rows": rows})


if __name__ == "__main__":
    main()
